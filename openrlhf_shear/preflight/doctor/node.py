"""All checks of one machine, and what differs between the machines of a cluster."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from openrlhf_shear.preflight.doctor import gpu, machine, versions
from openrlhf_shear.preflight.doctor.result import Result, fail


def check_node(path: Path, deep: bool = False, announced: float | None = None) -> Iterator[Result]:
    """The results, one by one; a few seconds, most of which are torch's import.

    Args:
        path: where a run would write.
        deep: import what training stands on too, each in a process of its own; a minute or more.
        announced: GPUs that this machine offers as a node of a Ray cluster; None where it is none.
    """
    pinned, gpus = versions.pins(), gpu.probe()
    yield versions.python_version()
    yield from (versions.package(name, pinned) for name in versions.PACKAGES)
    yield versions.flash_attn(bool(gpus.devices), pinned)
    yield versions.compiler()
    yield from (versions.imported(name) for name in versions.IMPORTS if deep)
    yield from (gpu.driver(gpus), gpu.devices(gpus), gpu.gpu_memory(gpus))
    if announced is not None:
        yield gpu.announced(gpus, announced)
    yield machine.jail()
    yield machine.escapes()
    yield machine.memory(*machine.free_memory())
    yield from (machine.shared_memory(), machine.disk(path), machine.open_files(), machine.addresses())
    yield from (machine.port(number, *about) for number, about in machine.PORTS.items())
    yield machine.hub()


def differences(nodes: Mapping[str, Sequence[Result]]) -> list[Result]:
    """A failure for each check and each node that has something else there than most nodes (of two, than the first)."""
    odd = []
    for name in dict.fromkeys(result.name for results in nodes.values() for result in results if result.same):
        values = {node: one.same for node, results in nodes.items() for one in results if one.name == name and one.same}
        usual, count = Counter(values.values()).most_common(1)[0]
        for node, value in values.items():
            if value != usual:
                seen = f"{node} has {value}; {count} of {len(values)} nodes {'has' if count == 1 else 'have'} {usual}"
                odd.append(fail(f"{name}, the same on all nodes", seen, "install the same everywhere"))
    return odd
