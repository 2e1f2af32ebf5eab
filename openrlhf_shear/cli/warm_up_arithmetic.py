"""Warm up the arithmetic task's small policy and save it as a Hugging Face folder."""

import argparse

import torch

from openrlhf_shear.cli import warming
from openrlhf_shear.line import frame
from openrlhf_shear.tasks.arithmetic import warm_up

EPILOG = """\
A 0.64M-parameter Qwen2 model learns to write out seven steps (or --operations) of arithmetic modulo 100, a character
a token, from generated solutions. Every few steps it answers problems, sampled at temperature 1, and training stops
at --target-accuracy. With 30-50% correct answers most groups hold correct and incorrect rollouts to compare. It takes
a few minutes on a core. The package ships such a policy (openrlhf_shear/tasks/arithmetic/shipped_policy); run this for
another seed, accuracy or size.

  python -m openrlhf_shear.cli.warm_up_arithmetic --out /tmp/policy
  python -m openrlhf_shear.cli.warm_up_arithmetic --out /tmp/weaker --target-accuracy 0.2 --seed 1
  python -m openrlhf_shear.cli.warm_up_arithmetic --out /tmp/longer --operations 10
"""

README = """\
# The arithmetic task's warmed-up policy

A {parameters:,}-parameter Qwen2 model, one token a character, in bfloat16, made from random weights and generated
problems by

    {command}

in {result.steps} steps ({minutes:.1f} minutes, {args.threads} thread(s), seed {args.seed}).
Sampled at temperature 1 on {result.accuracy.problems} held-out problems, after rounding to bfloat16: \
**{result.accuracy.correct:.1%} right**;
{result.accuracy.lucky:.1%} of the right answers come from a wrong chain.
"""


@frame.command(warming.flags(warm_up.WarmUpSettings), __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    settings = frame.knobs_of(args, warm_up.WarmUpSettings)
    torch.set_num_threads(args.threads)
    warming.write(args, warm_up.warm_up(settings), settings, README, __spec__.name)


if __name__ == "__main__":
    main()
