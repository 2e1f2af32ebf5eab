"""Warm up a small policy of the bookkeeping task and save it as a Hugging Face folder."""

import argparse

import torch

from openrlhf_shear.cli import warming
from openrlhf_shear.line import frame
from openrlhf_shear.tasks.bookkeeping import warm_up

EPILOG = """\
A Qwen2 model of 1.9M parameters (--size large: 5.1M) learns to keep the books of stories of eight transfers, a word a
token, from generated entries that include misconceptions. It stops when its responses, sampled at temperature 1, are
nearly as often correct as these entries. It takes about half an hour on a core (large: an hour or two).

  {prog} --out runs/ledger/small
  {prog} --out runs/ledger/large --size large
  {prog} --out runs/ledger/new --start runs/ledger/small --learning-rate 5e-4 --decay-steps 600   # after a task change
  {prog} --out runs/paraphrased --form paraphrased --start runs/ledger/small --decay-steps 1500
"""

README = """\
# A warmed-up policy of the bookkeeping task

A {parameters:,}-parameter Qwen2 model, one token a word, in bfloat16, made from generated stories by

    {command}

in {result.steps} steps ({minutes:.1f} minutes, {args.threads} thread(s), seed {args.seed}).
Sampled at temperature 1 on held-out problems, after rounding to bfloat16: **{result.accuracy.correct:.1%} right**;
{result.slips:.1%} of the first errors are slips, the others misconceptions.
"""


@frame.command(warming.flags(warm_up.WarmUpSettings), __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    settings = frame.knobs_of(args, warm_up.WarmUpSettings)
    torch.set_num_threads(args.threads)
    warming.write(args, warm_up.warm_up(settings), settings, README, __spec__.name)


if __name__ == "__main__":
    main()
