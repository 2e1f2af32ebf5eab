"""Warm up a small policy of the bookkeeping task and save it as a Hugging Face folder."""

import argparse
from pathlib import Path

from openrlhf_shear.cli import warming
from openrlhf_shear.line import frame

EPILOG = """\
A Qwen2 model of 1.9M parameters (--size large: 5.1M) learns to keep the books of stories of eight transfers, a word a
token, from generated entries that include misconceptions. It stops when its responses, sampled at temperature 1, are
nearly as often correct as these entries. It takes about half an hour on a core (large: an hour or two). The training
state is saved in DIR.state, and the same command resumes from it.

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


OWN = ("form", "size", "start", "batch_size", "learning_rate", "decay_steps")


def _flags(parser: argparse.ArgumentParser) -> None:
    warming.add_flags(
        parser, accuracy=0.34, most=10_000, also="; of the generated entries 0.365 are right (paraphrased: 0.49)"
    )
    about = "plain, or paraphrased: eight templates, sixteen phrases, six transfers (default: plain)"
    parser.add_argument("--form", choices=("plain", "paraphrased"), default="plain", help=about)
    about = "small: 1.9M parameters, large: 5.1M (default: small)"
    parser.add_argument("--size", choices=("small", "large"), default="small", help=about)
    about = "folder of a policy of that size to start from; words it lacks are added (default: random weights)"
    parser.add_argument("--start", type=Path, help=about)
    about = "stories of full length a step, or shorter stories with as many tokens (default: 12)"
    parser.add_argument("--batch-size", type=int, default=12, help=about)
    about = "learning rate while stories grow (default: 1e-3)"
    parser.add_argument("--learning-rate", type=float, default=1e-3, help=about)
    about = "steps on full-length stories in which the rate falls; then its responses are checked (default: 3000)"
    parser.add_argument("--decay-steps", type=int, default=3000, help=about)


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    import torch  # late, so that --help is instant

    from openrlhf_shear.tasks.bookkeeping import warm_up

    settings = warm_up.WarmUpSettings(**{name: getattr(args, name) for name in (*warming.ASKED, *OWN)})
    torch.set_num_threads(args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    result = warm_up.warm_up(settings, state=args.out.with_name(args.out.name + ".state"))
    warming.keep(args, result, README, __spec__.name, [name for name in OWN if getattr(args, name) is not None])


if __name__ == "__main__":
    main()
