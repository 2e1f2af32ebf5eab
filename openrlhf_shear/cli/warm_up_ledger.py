"""Warm up a small policy of the ledger task and save it as a Hugging Face folder."""

import argparse
from pathlib import Path

from openrlhf_shear.cli import frame

EPILOG = """\
What happens: a Qwen2 model of 1.9M parameters (--size large: 5.2M) learns to keep the books of stories of eight
transfers, one word a token, from entries written on the fly with their misconceptions. It stops when its responses,
sampled at temperature 1, are nearly as often right as these. About half an hour on one core (large: an hour or two).
What it has come to is kept in DIR.state, and the same command goes on from there.

  {prog} --out runs/ledger/small
  {prog} --out runs/ledger/large --size large
"""

README = """\
# A warmed-up policy of the ledger task

A {parameters:,}-parameter Qwen2 model, one token a word, in bfloat16, made from random weights and generated stories by

    {command}

in {result.steps} steps ({minutes:.1f} minutes, {args.threads} thread(s), seed {args.seed}).
Sampled at temperature 1 on held-out problems, after rounding to bfloat16: **{result.accuracy.correct:.1%} right**;
{result.slips:.1%} of the first errors are slips, the others misconceptions.
"""


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder to write (config, tokenizer, bf16 weights)")
    parser.add_argument("--size", choices=("small", "large"), default="small", help="1.9M or 5.2M parameters")
    parser.add_argument("--seed", type=int, default=0, help="initial weights and stories (default 0)")
    about = "stop when this fraction of sampled responses is right; the written ones are 0.53 (default 0.49)"
    parser.add_argument("--target-accuracy", type=float, default=0.49, help=about)
    parser.add_argument("--max-steps", type=int, default=10_000, help="give up after this many steps (default 10000)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; changes the rounding (default 1)")


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    import torch  # after parsing, so that --help is instant

    from openrlhf_shear.arithmetic.policy import save
    from openrlhf_shear.ledger.warm_up import WarmUpSettings, warm_up

    asked = ("seed", "size", "target_accuracy", "max_steps")
    settings = WarmUpSettings(**{name: getattr(args, name) for name in asked})
    torch.set_num_threads(args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    result = warm_up(settings, state=args.out.with_name(args.out.name + ".state"))
    out = save(result.model, result.tokenizer, args.out)
    command = (
        f"python -m openrlhf_shear.cli.warm_up_ledger --out DIR --size {args.size} --seed {args.seed} "
        f"--target-accuracy {args.target_accuracy} --threads {args.threads}"
    )
    told = {"parameters": result.model.num_parameters(), "command": command, "minutes": result.seconds / 60}
    (out / "README.md").write_text(README.format(args=args, result=result, **told), encoding="utf-8")
    print(f"{result.steps} steps in {result.seconds:.0f} s; {result.accuracy.correct:.1%} right; saved to {out}")
    if not result.reached_target:
        raise frame.Shortfall(
            f"the accuracy stayed under --target-accuracy {args.target_accuracy} for {args.max_steps} steps; "
            f"the folder was written all the same; raise --max-steps or lower the target"
        )


if __name__ == "__main__":
    main()
