"""All checks of a machine, and the differences between the machines of a cluster."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from openrlhf_shear.doctor import gpu, machine, toolkit, versions
from openrlhf_shear.doctor.result import Result, fail


def check_node(path: Path, announced: float | None = None) -> Iterator[Result]:
    """Yield the results of all checks; they take a few seconds, mostly for the import of torch.

    Args:
        path: folder that a run would write to.
        announced: GPUs that this machine offers as a node of a Ray cluster; None outside a cluster.
    """
    pinned, gpus = versions.pins(), gpu.probe()
    yield versions.python_version()
    yield from (versions.package(name, pinned) for name in versions.PACKAGES)
    yield versions.flash_attn(bool(gpus.devices), pinned)
    yield versions.compiler()
    yield from (gpu.driver(gpus), gpu.devices(gpus), gpu.gpu_memory(gpus))
    if announced is not None:
        yield gpu.announced(gpus, announced)
    yield from (toolkit.optimizers(gpus), toolkit.locks(), gpu.allocator())
    yield machine.jail()
    yield machine.escapes()
    yield machine.memory(*machine.free_memory())
    yield from (machine.shared_memory(), machine.disk(path))
    yield from (machine.open_files(), machine.processes(), machine.addresses())
    yield machine.hub()


def differences(nodes: Mapping[str, Sequence[Result]]) -> list[Result]:
    """Return a failure for each check and each node that differs from most nodes; of two nodes, from the first."""
    odd = []
    for name in dict.fromkeys(result.name for results in nodes.values() for result in results if result.same):
        found = ((node, result) for node, results in nodes.items() for result in results if result.name == name)
        values = {node: result.same for node, result in found if result.same}
        usual, count = Counter(values.values()).most_common(1)[0]
        for node, value in values.items():
            if value != usual:
                seen = f"{node} has {value}; {count} of {len(values)} nodes {'has' if count == 1 else 'have'} {usual}"
                odd.append(fail(f"{name}, the same on all nodes", seen, "install the same everywhere"))
    return odd
