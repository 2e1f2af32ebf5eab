"""Check whether a run fits into its GPUs: show the estimate, refuse a run that does not fit, name flags to change."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from openrlhf_shear.config.refusal import Finding, Note
from openrlhf_shear.doctor.gpu import smallest
from openrlhf_shear.doctor.machine import free_memory
from openrlhf_shear.line.run import Run
from openrlhf_shear.memory.estimate import ENGINES, GIB, MemoryEstimate, estimate
from openrlhf_shear.memory.model_shape import ModelShape
from openrlhf_shear.preflight.models import Models
from openrlhf_shear.preflight.resources import own_ray
from openrlhf_shear.report.tables import Cell, Table, print_tables

_ON_CPU = {"vllm.enable_sleep": False, "ds.enable_sleep": False, "ds.adam_offload": False}  # the CPU backend's values
_KEPT = ("weights", "gradients", "optimizer")  # parts of a phase that do not depend on lengths
_TRIED_OUT = 1e7  # parameters: smaller models fit everywhere
_CHUNK = 2048  # tokens: their logits take 3 GB with a vocabulary of 152k, and are products large enough for a GPU
_ROOM = 0.95  # share of a GPU that advised flags may fill


@dataclass(frozen=True)
class MemoryPlan:
    """A run's demand on a GPU."""

    run: Run
    shapes: dict[str, ModelShape]
    memory: int | None  # bytes of a GPU; None if it is not known, and on the CPU

    def estimate(self, certain: bool = False, **changes: object) -> MemoryEstimate:
        run = self.run.with_flags(changes) if changes else self.run
        return estimate(run, self.shapes, self.memory, certain)

    def excess(self, certain: bool = False, room: float = 1.0, **changes: object) -> float:
        """Return the bytes that phases take beyond the share `room` of a GPU, plus the bytes that engines lack."""
        estimated = self.estimate(certain, **changes)
        share = ({**self.run.flags, **changes})["vllm.gpu_memory_utilization"] * self.memory
        beyond = sum(max(0.0, phase.total - room * self.memory) for phase in estimated.phases if phase.name != ENGINES)
        return beyond + max(0.0, estimated.engine - share)


def unknown(files: Models) -> str:
    """Return why memory cannot be estimated, or ""."""
    return next((model.unknown for model in files.values() if model.unknown), "")


def plan(run: Run, files: Models) -> MemoryPlan:
    """Return the plan of a run, the sizes of whose models are known."""
    shapes = {name: model.shape for name, model in files.items()}
    on_cpu = run.device == "cpu"
    memory = int(run.device_memory * GIB) or (None if on_cpu else smallest())
    return MemoryPlan(run.with_flags(_ON_CPU) if on_cpu else run, shapes, memory)


def memory(run: Run, files: Models) -> Iterator[Finding]:
    """Refuse a run that cannot fit; warn if only micro-batches of the longest rollouts do not fit."""
    if run.device_memory < 0:
        yield run.refusal("device_memory", "must be at least 0", "a GPU's GiB, e.g. 80")
        return
    if unknown(files):  # `show` prints it
        return
    planned = plan(run, files)
    large = planned.shapes["actor"].parameters > _TRIED_OUT
    if large and planned.memory is None and run.device != "cuda" and own_ray():
        yield from _main_memory(planned)
    if planned.memory is None or not planned.excess():
        return
    certain = bool(planned.excess(certain=True))
    worst = planned.estimate(certain).peak
    share = run.vllm.gpu_memory_utilization * planned.memory
    lacking = planned.estimate().engine - share
    size = f"{planned.memory / GIB:.0f} GiB"
    largest = sorted(worst.parts.items(), key=lambda part: -part[1])[:4]
    parts = ", ".join(f"{part} {taken / GIB:.1f}" for part, taken in largest)
    message = f"{worst.name} takes {worst.total / GIB:.1f} ({parts}) of {size}"
    if lacking > 0:
        message = f"an engine needs {(share + lacking) / GIB:.1f} GiB, for its weights and one sequence"
    changes = _remedy(planned)
    if not certain:
        use = f"; {_line(changes)} is safe" if changes else ""
        yield Note(f"memory: with all rollouts of data.max_len {message}{use}")
        return
    flag = next(iter(changes), "actor.num_gpus_per_node")
    remedy = _line(changes) if changes else "more or larger GPUs, a smaller model or a shorter data.max_len"
    yield run.refusal(flag, f"does not fit into a GPU: {message}", remedy)


def _main_memory(planned: MemoryPlan) -> Iterator[Finding]:
    """Refuse a run on the CPU whose weights, gradients and optimizer exceed all memory; warn if it may exceed it."""
    free, total = free_memory()
    shown, ranks = planned.estimate(), planned.run.ranks["actor"]
    least = ranks * max(sum(phase.parts.get(part, 0) for part in _KEPT) for phase in shown.phases)
    most = ranks * shown.peak.total
    size = f"of this machine's {total / GIB:.1f} GiB, {free / GIB:.1f} GiB are free"
    if least > total:
        problem = f"is too large a model for the CPU: its training keeps {least / GIB:.1f} GiB, and {size}"
        yield planned.run.refusal("actor.model_name_or_path", problem, "a smaller model, e.g. SmolLM2-135M, or GPUs")
    elif most > free:
        yield Note(f"memory: the run takes up to {most / GIB:.1f} GiB; {size}, and the system kills what exceeds it")


def _remedy(planned: MemoryPlan) -> dict[str, object]:
    """Return as few changes of flags as make everything fit; empty if no choice of flags does."""
    changes: dict[str, object] = {}
    lacking = partial(planned.excess, room=_ROOM)
    for flag, value in _possible(planned.run):
        if lacking(**changes | {flag: value}) < lacking(**changes):
            changes[flag] = value
        if not lacking(**changes):
            break
    else:
        return {}
    for flag in list(changes):
        rest = {other: value for other, value in changes.items() if other != flag}
        if not lacking(**rest):
            changes = rest
    return changes


def _possible(run: Run) -> Iterator[tuple[str, object]]:
    """Yield the flags that may change with their values, cheapest first."""
    if run.train.colocate_all and not run.train.async_enable:
        yield from (("vllm.enable_sleep", True), ("ds.enable_sleep", True))
        yield from (("vllm.gpu_memory_utilization", tenths / 10) for tenths in range(8, 2, -1))
    yield "actor.gradient_checkpointing_enable", True
    for stage in ("rollout", "train"):
        flag = f"{stage}.{'max_tokens_per_gpu' if run.train.dynamic_batch_enable else 'micro_batch_size'}"
        tokens = run.flags[flag] or run.train.max_tokens_per_gpu
        while tokens > 1:
            tokens //= 2
            yield flag, tokens
    if run.ds.tensor_parallel_size == 1:
        yield "actor.logits_chunk", min(run.actor.logits_chunk or _CHUNK, _CHUNK)
        if "lm_head" not in run.traits.needs:
            yield "ds.zero_stage", 3
    yield from (("ref.offload", True), ("ds.adam_offload", True))
    yield from (("vllm.gpu_memory_utilization", tenths / 10) for tenths in range(4, 10))


def _line(changes: dict[str, object]) -> str:
    return " ".join(f"--{flag}" if value is True else f"--{flag} {value}" for flag, value in changes.items())


def show(run: Run, files: Models) -> None:
    """Print the estimate, or why there is none."""
    if why := unknown(files):
        print(f"memory was not estimated: {why}")
    else:
        print_tables([_table(plan(run, files))])


def _table(planned: MemoryPlan) -> Table:
    """Return a table of GiB by part and phase, with each phase's total."""
    shown, run = planned.estimate(), planned.run
    parts = dict.fromkeys(part for phase in shown.phases for part in phase.parts)
    rows = [(part, *(_gib(phase.parts.get(part)) for phase in shown.phases)) for part in parts]
    rows.append([Cell(text, "bold") for text in ("all", *(_gib(phase.total) for phase in shown.phases))])
    size = "a GPU's size is not known here; --device_memory 80 checks against 80 GiB"
    if run.device == "cpu":
        needed, free = shown.peak.total * run.ranks["actor"], free_memory()[0]
        size = f"CPU profile: {needed / GIB:.1f} GiB for all ranks at most, {free / GIB:.1f} GiB are free"
    elif planned.memory:
        share = shown.peak.total / planned.memory
        size = f"a GPU has {planned.memory / GIB:.1f} GiB; {shown.peak.name} takes {share:.0%} of it"
    model = planned.shapes["actor"]
    title = f"GiB a GPU, {model.parameters / 1e9:.2f}B parameters on {run.ranks['actor']} ranks (an estimate)"
    notes = [size]
    if shown.host:
        notes.append(f"{shown.host / GIB:.0f} GiB of each node's memory: states put aside, weights of engines asleep")
    return Table(title, ("part", *(phase.name for phase in shown.phases)), rows, notes)


def _gib(size: float | None) -> str:
    return "" if size is None else f"{size / GIB:.1f}"
