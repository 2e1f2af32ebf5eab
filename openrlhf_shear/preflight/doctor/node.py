"""All checks of one machine, and what differs between the machines of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from openrlhf_shear.preflight.doctor import gpu, jail, network, resources, versions
from openrlhf_shear.preflight.doctor.result import Result, fail


def check_node(path: Path, deep: bool = False, announced: float | None = None) -> Iterator[Result]:
    """The results, one by one; a few seconds, most of which are torch's import.

    Args:
        path: where a run would write.
        deep: import what training stands on too, each in a process of its own; a minute or more.
        announced: GPUs that this machine offers as a node of a Ray cluster; None where it is none.
    """
    pinned, gpus = versions.pins(), gpu.probe()
    importable = versions.import_problem
    yield versions.python_version()
    checks: list[Callable[[], Result]] = [
        *(partial(versions.package, name, pinned) for name in versions.PACKAGES),
        partial(versions.flash_attn, bool(gpus.devices), pinned, importable),
        *(partial(versions.imported, name, importable) for name in versions.IMPORTS if deep),
        *(partial(look, gpus) for look in (gpu.driver, gpu.devices, gpu.gpu_memory)),
        *([] if announced is None else [partial(gpu.announced, gpus, announced)]),
        jail.jail,
        jail.escapes,
        lambda: resources.memory(*resources.free_memory()),
        resources.shared_memory,
        partial(resources.disk, path),
        resources.open_files,
        *(partial(network.port, number, *about) for number, about in network.PORTS.items()),
        network.hub,
    ]
    for check in checks:
        yield check()


def differences(nodes: Mapping[str, Sequence[Result]]) -> list[Result]:
    """A failure for each check and each node that has something else there than most nodes (of two, than the first)."""
    odd = []
    names = dict.fromkeys(result.name for results in nodes.values() for result in results if result.same)
    for name in names:
        values = {node: one.same for node, results in nodes.items() for one in results if one.name == name and one.same}
        usual, count = Counter(values.values()).most_common(1)[0]
        for node, value in values.items():
            if value != usual:
                seen = f"{node} has {value}; {count} of {len(values)} nodes {'has' if count == 1 else 'have'} {usual}"
                odd.append(fail(f"{name}, the same on all nodes", seen, "install the same everywhere"))
    return odd
