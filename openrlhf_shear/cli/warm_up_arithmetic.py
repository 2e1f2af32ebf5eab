"""Warm up the arithmetic task's small policy and save it as a Hugging Face folder."""

import argparse
from pathlib import Path

from openrlhf_shear.cli import frame

EPILOG = """\
What happens: a 0.64M-parameter Qwen2 model learns to write out seven steps of arithmetic modulo 100 (or --operations),
one character a token, from solutions made on the fly. Every few steps it answers problems by sampling at temperature 1,
and training stops when it is right often enough: a policy that is right 30-50% of the time gives most groups of
rollouts something to compare. A few minutes on one core. The package already ships a result
(openrlhf_shear/arithmetic/shipped_policy); run this to get another seed, another starting accuracy or another size.

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
Sampled at temperature 1 on {accuracy.problems} held-out problems, after rounding to bfloat16: \
**{accuracy.correct:.1%} right**;
{accuracy.lucky:.1%} of the right answers come from a wrong chain.
"""


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder to write (config, tokenizer, bf16 weights)")
    parser.add_argument("--seed", type=int, default=0, help="initial weights and training problems (default 0)")
    about = "stop when this fraction of responses sampled at temperature 1 is right (default 0.4)"
    parser.add_argument("--target-accuracy", type=float, default=0.4, help=about)
    parser.add_argument("--max-steps", type=int, default=4000, help="give up after this many steps (default 4000)")
    about = "operations a problem, 1-12; the task's data and reward have 7, the others are for studies (default 7)"
    parser.add_argument("--operations", type=int, default=7, metavar="N", help=about)
    about = "at most so many random filler characters before each written step, 0-8 (default 2)"
    parser.add_argument("--fillers", type=int, default=2, metavar="N", help=about)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; changes the rounding (default 1)")


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    import torch  # after parsing, so that --help is instant

    from openrlhf_shear.arithmetic.policy import save
    from openrlhf_shear.arithmetic.warm_up import WarmUpSettings, warm_up

    asked = ("seed", "target_accuracy", "max_steps", "operations", "fillers")
    settings = WarmUpSettings(**{name: getattr(args, name) for name in asked})
    torch.set_num_threads(args.threads)
    result = warm_up(settings)
    out = save(result.model, result.tokenizer, args.out)
    accuracy, defaults = result.accuracy, WarmUpSettings()
    command = (
        f"python -m openrlhf_shear.cli.warm_up_arithmetic --out DIR --seed {args.seed} "
        f"--target-accuracy {args.target_accuracy} --threads {args.threads}"
    )
    for name in ("operations", "fillers"):  # what changes the task
        if getattr(args, name) != getattr(defaults, name):
            command += f" --{name} {getattr(args, name)}"
    told = {"parameters": result.model.num_parameters(), "command": command, "minutes": result.seconds / 60}
    readme = README.format(args=args, result=result, accuracy=accuracy, **told)
    (out / "README.md").write_text(readme, encoding="utf-8")
    print(
        f"{result.steps} steps in {result.seconds:.0f} s; {accuracy.correct:.1%} right at temperature 1 on "
        f"{accuracy.problems} held-out problems\nsaved to {out}"
    )
    if not result.reached_target:
        raise frame.Shortfall(
            f"the accuracy stayed under --target-accuracy {args.target_accuracy} for {args.max_steps} steps; "
            f"the folder was written all the same; raise --max-steps or lower the target"
        )


if __name__ == "__main__":
    main()
