"""Flags of what samples from a model and grades, the same for `evaluate` and `diagnose`."""

from __future__ import annotations

import argparse

from openrlhf_shear.sampling.plan import Grading
from openrlhf_shear.sampling.sampler import Engines, Sampling


def add_own_file(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a file of your own")
    group.add_argument("--task", default="math", help="math, code, or a .py file with reward_func (default: math)")
    group.add_argument("--prompt-key", default="prompt", help="column of the problem: a text or chat (default: prompt)")
    group.add_argument("--label-key", default="label", help="column of the answer or tests (default: label)")


def add_sampling(group: argparse._ArgumentGroup, temperature: float, budget: str = "of a completion") -> None:
    """Those of `sampling()` and `--prompt-format`."""
    group.add_argument("--temperature", type=float, default=temperature, help=f"(default: {temperature})")
    group.add_argument("--top-p", type=float, default=1.0, help="(default: 1.0)")
    group.add_argument("--max-new-tokens", type=int, default=3072, help=f"{budget} (default: 3072)")
    group.add_argument("--seed", type=int, default=0, help="(default: 0)")
    group.add_argument(
        "--prompt-format",
        choices=("chat", "plain"),
        default="chat",
        help="chat: the model's chat template; plain: the turns' texts, a blank line between them (default: chat)",
    )


def sampling(args: argparse.Namespace) -> Sampling:
    """
    Raises:
        ValueError: a value is out of its range.
    """
    return Sampling(args.temperature, args.top_p, args.max_new_tokens, args.seed)


def add_engines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engines")
    group.add_argument("--engines", type=int, default=1, metavar="N", help="vLLM engines (default: 1)")
    group.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N", help="GPUs an engine (default: 1)")
    group.add_argument("--gpu-memory-utilization", type=float, default=0.9, help="of each GPU (default: 0.9)")
    group.add_argument("--max-model-len", type=int, metavar="TOKENS", help="prompt and answer (default: the model's)")
    group.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs: starts sooner, samples slower")
    group.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="(default: auto)")


def engines(args: argparse.Namespace) -> Engines:
    """
    Raises:
        ValueError: a number is below 1.
    """
    return Engines(
        args.device, args.engines, args.tensor_parallel_size, args.gpu_memory_utilization, args.enforce_eager
    )


def add_grading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("grading")
    group.add_argument("--cores", type=int, default=0, metavar="N", help="grades at a time; 0 for half of the cores")
    group.add_argument("--timeout", type=float, default=0.0, metavar="SECONDS", help="0 for 5 (math), 10 (code)")
    group.add_argument("--memory-mb", type=int, default=1024, metavar="MB", help="of a program (default: 1024)")
    group.add_argument(
        "--allow-unsandboxed", action="store_true", help="run the model's programs without a jail where none works"
    )


def grading(args: argparse.Namespace) -> Grading:
    return Grading(args.cores, args.timeout, args.memory_mb, args.allow_unsandboxed)
