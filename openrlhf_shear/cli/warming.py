"""Shared parts of the warm-ups of the built-in policies: flags, and the output folder with its README."""

import argparse
from collections.abc import Callable
from pathlib import Path

from openrlhf_shear.config.knobs import Knobs
from openrlhf_shear.line import frame

SHOWN = ("seed", "target_accuracy")  # settings that the README's command always has


def flags(settings: type) -> Callable[[argparse.ArgumentParser], None]:
    """Return a function that adds the flags of a warm-up, with one for each knob of its `settings`."""

    def add(parser: argparse.ArgumentParser) -> None:
        about = "folder to write (config, tokenizer, bf16 weights)"
        parser.add_argument("--out", type=Path, required=True, help=about)
        frame.add_knobs(parser, settings)
        about = "CPU threads; changes the rounding (default: 1)"
        parser.add_argument("--threads", type=int, default=1, help=about)

    return add


def write(args: argparse.Namespace, result, settings: Knobs, readme: str, module: str) -> None:
    """Save the policy with its README, and print a summary.

    The README template gets `args`, `result`, `parameters`, `minutes` and `command`.

    Raises Shortfall: the target was not reached.
    """
    from openrlhf_shear.tasks.arithmetic.policy import save

    out = save(result.model, result.tokenizer, args.out)
    names = dict.fromkeys((*SHOWN, "threads", *settings.changed()))
    words = (f"--{name.replace('_', '-')} {getattr(args, name)}" for name in names)
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
