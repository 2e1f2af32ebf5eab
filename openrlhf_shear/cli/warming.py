"""Shared parts of the warm-ups of the built-in policies: flags, and the output folder with its README."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from openrlhf_shear.line import frame

ASKED = ("seed", "target_accuracy", "max_steps")  # fields of both `WarmUpSettings`


def add_flags(parser: argparse.ArgumentParser, accuracy: float, most: int, also: str = "") -> None:
    """Add the common flags. `accuracy` and `most` are defaults; `also` extends the help of --target-accuracy."""
    parser.add_argument("--out", type=Path, required=True, help="folder to write (config, tokenizer, bf16 weights)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of initial weights and training problems (default: 0)"
    )
    about = f"stop when this share of responses sampled at temperature 1 is right{also} (default: {accuracy})"
    parser.add_argument("--target-accuracy", type=float, default=accuracy, help=about)
    parser.add_argument("--max-steps", type=int, default=most, help=f"give up after this many steps (default: {most})")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; changes the rounding (default: 1)")


def keep(args: argparse.Namespace, result, readme: str, module: str, others: Iterable[str] = ()) -> None:
    """Save the policy with its README, and print a summary.

    The README template gets `args`, `result`, `parameters`, `minutes` and `command`. `others` names the flags to show
    in `command` besides the common flags.

    Raises Shortfall: the target was not reached.
    """
    from openrlhf_shear.tasks.arithmetic.policy import save

    out = save(result.model, result.tokenizer, args.out)
    told = ("seed", "target_accuracy", "threads", *others)
    words = (f"--{name.replace('_', '-')} {getattr(args, name)}" for name in told)
    command = f"python -m {module} --out DIR {' '.join(words)}"
    facts = {"parameters": result.model.num_parameters(), "command": command, "minutes": result.seconds / 60}
    (out / "README.md").write_text(readme.format(args=args, result=result, **facts), encoding="utf-8")
    print(
        f"{result.steps} steps in {result.seconds:.0f} s; {result.accuracy.correct:.1%} right at temperature 1 on "
        f"{result.accuracy.problems} held-out problems\nsaved to {out}"
    )
    if not result.reached_target:
        raise frame.Shortfall(
            f"the accuracy stayed under --target-accuracy {args.target_accuracy} for {args.max_steps} steps; "
            f"the folder was written anyway; raise --max-steps or lower the target"
        )
