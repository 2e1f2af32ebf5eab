"""Warm up the arithmetic task's small policy and save it as a Hugging Face folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from openrlhf_shear.data.tiny_policy import WarmUpResult, WarmUpSettings, save_policy, warm_up

EPILOG = """\
What happens: a 0.64M-parameter Qwen2 model learns to write out seven steps of arithmetic modulo 100, one character a
token, from solutions made on the fly. Every few steps it answers problems by sampling at temperature 1, and training
stops when it is right often enough: a policy that is right 35-45% of the time gives every group of rollouts something
to compare. A few minutes on one core. The package already ships the result (openrlhf_shear/data/arithmetic_policy);
run this to get another seed, or another starting accuracy.

  python -m openrlhf_shear.cli.warm_up_arithmetic --out /tmp/policy
  python -m openrlhf_shear.cli.warm_up_arithmetic --out /tmp/weaker --target_accuracy 0.2 --seed 1
"""

README = """\
# The arithmetic task's warmed-up policy

A {parameters:,}-parameter Qwen2 model with a character tokenizer, in bfloat16; Apache-2.0 like the rest of the package.
It was made from nothing (random weights, generated problems) by

    {command}

in {steps} steps ({minutes:.1f} minutes, {threads} thread(s)). Seed: {seed}. Sampled at temperature 1 on
{problems} held-out problems, after rounding to bfloat16: **{correct:.1%} right**; {lucky:.1%} of the right answers
come from a wrong chain.
"""


def main(argv: list[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    settings = WarmUpSettings(seed=args.seed, target_accuracy=args.target_accuracy, max_steps=args.max_steps)
    import torch

    torch.set_num_threads(args.threads)
    result = warm_up(settings)
    out = save_policy(result, args.out)
    command = (
        f"OMP_NUM_THREADS={args.threads} python -m openrlhf_shear.cli.warm_up_arithmetic --out DIR "
        f"--seed {args.seed} --target_accuracy {args.target_accuracy} --threads {args.threads}"
    )
    (out / "README.md").write_text(_readme(result, settings, args.threads, command), encoding="utf-8")
    print(f"{result.steps} steps in {result.seconds:.0f} s; right at temperature 1: {result.accuracy.correct:.3f}")
    print(f"saved to {out}")
    if not result.reached_target:
        raise SystemExit(f"the target accuracy {args.target_accuracy} was not reached; try more --max_steps")
