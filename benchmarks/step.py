"""Seconds of a training step of one estimator over another's, on the job of `make run`, in turns.

    python benchmarks/step.py --over group_norm              # the cost of SHEAR over GRPO

Evaluation and saving are off in both. The first two steps of a run do not count: they compile and fill caches. The
learning rate is 0, so that both estimators have the same responses throughout; the updates still run.
"""

import statistics
import tempfile
from pathlib import Path

from measure import arithmetic_job, environment, print_table, script_parser, write_json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PARTS = ("step_total", "generation", "make_experience", "ppo_train", "broadcast")
_SKIPPED = 2  # steps


def run(estimator: str, folder: Path, steps: int, seed: int) -> dict[str, list[float]]:
    """Return the seconds of each part, step by step."""
    words = ("--eval.steps", str(10 * steps), "--actor.adam.lr", "0")
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        code = arithmetic_job(folder, log, steps, *words, SEED=str(seed), ESTIMATOR=estimator).wait()
    if code:
        raise SystemExit(f"step.py: {estimator} ended with {code}:\n{Path(log.name).read_text()[-3000:]}")
    (events,) = {file.parent for file in (folder / "tensorboard").rglob("events.out.tfevents.*")}
    scalars = EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
    return {part: [event.value for event in scalars.Scalars(f"train/timing/{part}")][_SKIPPED:] for part in PARTS}


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--over", required=True, metavar="ESTIMATOR", help="the estimator to compare with")
    parser.add_argument("--estimator", default="shear", help="the estimator to measure (default shear)")
    parser.add_argument("--steps", type=int, default=12, help="steps of each run (default 12)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs, each pair with another seed (default 3)")
    args = parser.parse_args()
    about, pair, rounds = environment(), {"before": args.over, "now": args.estimator}, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            order = list(pair)[:: -1 if number % 2 else 1]
            rounds.append(
                {name: run(pair[name], Path(folder, f"{name}{number}"), args.steps, number) for name in order}
            )
    rows = []
    for part in PARTS:
        medians = {name: [statistics.median(done[name][part]) for done in rounds] for name in pair}
        ratios = [now / was for was, now in zip(medians["before"], medians["now"], strict=True)]
        row = {"part": part} | {f"{name} [s]": f"{statistics.median(medians[name]):.3f}" for name in pair}
        row |= {
            "now / before": f"{statistics.median(ratios):.2f}",
            "of the rounds": " ".join(f"{r:.2f}" for r in ratios),
        }
        rows.append(row)
    title = f"median seconds a step of {args.estimator}, against {args.over}"
    print_table(title, rows, {name: name for name in rows[0]})
    write_json(args.output, {"environment": about, "against": args.over, "rows": rows, "rounds": rounds})


if __name__ == "__main__":
    main()
