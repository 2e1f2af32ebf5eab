"""Checks of what flags need from the GPU machine: allocator, toolkit, packages."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

from openrlhf_shear.config.refusal import Finding, Refusal, refusal
from openrlhf_shear.doctor import gpu, toolkit
from openrlhf_shear.doctor.allocator import expandable
from openrlhf_shear.line.values import Values


def stack(values: Values) -> Iterator[Finding]:
    """Run the checks, if the run will use GPUs: the CPU profile drops these flags."""
    gpus_here = bool(gpu.ask_driver()[2])
    if values["device"] == "cuda" or (values["device"] == "auto" and gpus_here):
        yield from _allocator(values)
        yield from _liger(values)
        if gpus_here:
            yield from _offload(values)


def _allocator(values: Values) -> Iterator[Refusal]:
    """Refuse expandable segments where weights go to vLLM through CUDA's memory sharing between processes.

    Torch shares such memory by pidfd_getfd. The kernel forbids that call between processes that may not trace each
    other: with Ubuntu's default (kernel.yama.ptrace_scope 1), and in containers without SYS_PTRACE.
    """
    shares = values["train.colocate_all"] and not values["train.async_enable"] and values["vllm.sync_backend"] == "nccl"
    if shares and (variable := expandable()):
        problem = "means segments out of which --train.colocate_all cannot send weights to vLLM"
        why = "(pidfd_getfd: Operation not permitted)"
        yield Refusal(variable, f"{problem} {why}", os.environ[variable], f"unset {variable}")


def _liger(values: Values) -> Iterator[Refusal]:
    if values["ds.use_liger_kernel"] and find_spec("liger_kernel") is None:
        problem = "needs the package liger_kernel, which is not installed"
        yield refusal("ds.use_liger_kernel", problem, True, "pip install liger-kernel on every node, or no such flag")


def _offload(values: Values) -> Iterator[Refusal]:
    """Refuse CPU Adam where DeepSpeed can neither load nor compile it."""
    gpus = gpu.probe() if values["ds.adam_offload"] else gpu.Gpus()
    if not gpus.torch_cuda:  # without the flag, or with torch's CPU build, which the doctor reports
        return
    built, found = toolkit.find_built(), toolkit.find_toolkit(os.environ)
    if problem := toolkit.compile_problem(toolkit.CPU_ADAM, gpus, found, built):
        remedy = "scripts/install_cluster.sh, which builds it, or that CUDA toolkit, or no such flag"
        yield refusal("ds.adam_offload", f"cannot work: {problem}", True, remedy)
