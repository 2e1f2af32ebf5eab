"""Seconds of a training step, against another commit or another estimator, on the job of `make run`, in turns.

    python benchmarks/step.py --against 2591ff7              # the commit before runs could be killed at any moment
    python benchmarks/step.py --against HEAD~1 --steps 20 --rounds 4
    python benchmarks/step.py --over group_norm              # the cost of SHEAR over GRPO

The other commit is checked out into a temporary folder and runs in this environment. Evaluation and saving are off in
both. The first two steps of a run do not count: they compile and fill caches. With --over the learning rate is 0, so
that both estimators have the same responses throughout; the updates still run.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import environment, print_table, script_parser, write_json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

HERE = Path(__file__).parents[1]
PARTS = ("step_total", "generation", "make_experience", "ppo_train", "broadcast")
_SKIPPED = 2  # steps


def run(checkout: Path, estimator: str, folder: Path, steps: int, seed: int, more: list[str]) -> dict[str, list[float]]:
    """Return the seconds of each part, step by step."""
    variables = {"PYTHONPATH": str(checkout), "RUN": str(folder), "STEPS": str(steps), "SEED": str(seed)}
    variables["ESTIMATOR"] = estimator
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = [str(checkout / "examples/scripts/train_shear_arithmetic.sh"), "--eval.steps", str(10 * steps), *more]
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        done = subprocess.run(line, env=os.environ | variables | {"PATH": path}, stdout=log, stderr=log, cwd=checkout)
    if done.returncode:
        raise SystemExit(f"step.py: {checkout} ended with {done.returncode}:\n{Path(log.name).read_text()[-3000:]}")
    (events,) = {file.parent for file in (folder / "tensorboard").rglob("events.out.tfevents.*")}
    scalars = EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
    return {part: [event.value for event in scalars.Scalars(f"train/timing/{part}")][_SKIPPED:] for part in PARTS}


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(folder), commit], cwd=HERE, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=HERE, check=True)


def main() -> None:
    parser = script_parser(__doc__)
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--against", metavar="COMMIT", help="a commit of this repository, with the same estimator")
    other.add_argument("--over", metavar="ESTIMATOR", help="another estimator, at this commit")
    parser.add_argument("--estimator", default="shear", help="the estimator to measure (default shear)")
    parser.add_argument("--steps", type=int, default=12, help="steps of each run (default 12)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs, each pair with another seed (default 3)")
    args = parser.parse_args()
    about, rounds = environment("cpu"), []
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        base = stack.enter_context(checked_out(args.against, Path(temporary, "before"))) if args.against else HERE
        more = ["--actor.adam.lr", "0"] if args.over else []
        pair = {"before": (base, args.over or args.estimator), "now": (HERE, args.estimator)}
        for number in range(args.rounds):
            order = list(pair)[:: -1 if number % 2 else 1]
            folders = {name: Path(temporary, f"{name}{number}") for name in order}
            rounds.append({name: run(*pair[name], folders[name], args.steps, number, more) for name in order})
    against, rows = args.against or args.over, []
    for part in PARTS:
        medians = {name: [statistics.median(pair[name][part]) for pair in rounds] for name in ("before", "now")}
        ratios = [now / was for was, now in zip(medians["before"], medians["now"], strict=True)]
        rows.append(
            {"part": part}
            | {f"{name} [s]": f"{statistics.median(values):.3f}" for name, values in medians.items()}
            | {
                "now / before": f"{statistics.median(ratios):.2f}",
                "of the rounds": " ".join(f"{r:.2f}" for r in ratios),
            }
        )
    print_table(
        f"median seconds a step of {args.estimator}, against {against}",
        rows,
        {name: name for name in rows[0]},
    )
    write_json(args.output, {"environment": about, "against": against, "rows": rows, "rounds": rounds})


if __name__ == "__main__":
    main()
