"""Warm up the small policy of a built-in task and save it as a Hugging Face folder."""

import argparse
from pathlib import Path

import torch

from openrlhf_shear.line import frame
from openrlhf_shear.tasks.arithmetic import warm_up as arithmetic
from openrlhf_shear.tasks.arithmetic.policy import save
from openrlhf_shear.tasks.bookkeeping import warm_up as bookkeeping

EPILOG = """\
A Qwen2 model with random weights learns from generated solutions. Every few steps it answers problems, sampled at
temperature 1, and training stops at --target-accuracy. The package ships such policies; run this for another seed,
accuracy or size.

arithmetic    0.64M parameters, a character a token: seven steps (or --operations) of arithmetic modulo 100. With
              30-50% correct answers most groups hold correct and incorrect rollouts to compare. Minutes on a core
bookkeeping   1.9M parameters (--size large: 5.1M), a word a token: the books of stories of eight transfers, in entries
              that include misconceptions. It stops when responses are nearly as often correct as these entries. Half
              an hour on a core (large: an hour or two)

  {prog} arithmetic --out /tmp/weaker --target-accuracy 0.2 --seed 1
  {prog} arithmetic --out /tmp/longer --operations 10
  {prog} bookkeeping --out runs/ledger/large --size large
  {prog} bookkeeping --out runs/ledger/new --start runs/ledger/small --learning-rate 5e-4 --decay-steps 600
  {prog} bookkeeping --out runs/paraphrased --form paraphrased --start runs/ledger/small --decay-steps 1500
"""

README = """\
# A warmed-up policy of the {task} task

A {parameters:,}-parameter Qwen2 model, one token a {unit}, in bfloat16, made from generated problems by

    {command}

in {result.steps} steps ({minutes:.1f} minutes, {args.threads} thread(s), seed {args.seed}).
Sampled at temperature 1 on {result.accuracy.problems} held-out problems, after rounding to bfloat16:
**{result.accuracy.correct:.1%} right**; {result.remark}.
"""
TASKS = {"arithmetic": (arithmetic, "character"), "bookkeeping": (bookkeeping, "word")}  # and what a token is
SHOWN = ("seed", "target_accuracy", "threads")  # settings that the README's command always has


def _flags(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(dest="task", required=True, metavar="|".join(TASKS))
    for name, (module, _) in TASKS.items():
        task = frame.plainly(tasks.add_parser(name, description=module.warm_up.__doc__))
        about = "folder to write (config, tokenizer, bf16 weights)"
        task.add_argument("--out", type=Path, metavar="DIR", required=True, help=about)
        frame.add_knobs(task, module.WarmUpSettings)
        task.add_argument("--threads", type=int, default=1, help="CPU threads; changes the rounding (default: 1)")


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    module, unit = TASKS[args.task]
    settings = frame.knobs_of(args, module.WarmUpSettings)
    torch.set_num_threads(args.threads)
    result = module.warm_up(settings)
    out = save(result.model, result.tokenizer, args.out)
    words = [f"--{n.replace('_', '-')} {getattr(args, n)}" for n in dict.fromkeys((*SHOWN, *settings.changed()))]
    command = f"python -m {__spec__.name} {args.task} --out DIR {' '.join(words)}"
    facts = {"parameters": result.model.num_parameters(), "command": command, "minutes": result.seconds / 60}
    readme = README.format(args=args, task=args.task, unit=unit, result=result, **facts)
    (out / "README.md").write_text(readme, encoding="utf-8")
    print(
        f"{result.steps} steps in {result.seconds:.0f} s; {result.accuracy.correct:.1%} right at temperature 1 on "
        f"{result.accuracy.problems} held-out problems\nsaved to {out}"
    )
    if not result.reached_target:
        raise frame.Shortfall(
            f"the accuracy stayed under --target-accuracy {args.target_accuracy} for {args.max_steps} steps; "
            f"the folder was written anyway; raise --max-steps or lower the target"
        )


if __name__ == "__main__":
    main()
