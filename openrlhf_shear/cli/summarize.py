"""Summarise a finished run: print a table, and write summary.json and curves.png beside its logs."""

import argparse
from pathlib import Path

from openrlhf_shear.evaluation.run_summary import SUITE_AVERAGE, before_and_after, held_out, read_run, write_summary
from openrlhf_shear.line import frame
from openrlhf_shear.report.tables import Table, print_tables


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run's folder, which contains its TensorBoard log at some level")
    parser.add_argument("--estimator", help="advantage estimator to note in summary.json (default: none)")
    parser.add_argument("--seed", type=int, help="seed of the run to note in summary.json (default: none)")


@frame.command(_flags, __doc__)
def main(args: argparse.Namespace) -> None:
    facts = {name: value for name, value in (("estimator", args.estimator), ("seed", args.seed)) if value is not None}
    summary = read_run(args.run)
    path = write_summary(summary, args.run, **facts)

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    title = ", ".join(f"{name} {value}" for name, value in facts.items()) or str(path.parent)
    samples = f" ({summary.heldout_problems} samples)" if summary.heldout_problems else ""
    sets = held_out(summary.curves) or {"suite average": SUITE_AVERAGE}
    accuracies = {name: before_and_after(summary.curves.get(tag, [])) for name, tag in sets.items()}
    rows = [
        *((f"held-out accuracy, {name}{samples}", *map(percent, both)) for name, both in accuracies.items()),
        ("rollout reward (first, last 5 steps)", f"{summary.reward_first:.3f}", f"{summary.reward_last:.3f}"),
        ("PPO steps", "", str(summary.steps)),
        ("seconds a step", "", f"{summary.seconds_per_step:.2f}"),
        ("credit stage, share of the step", "", percent(summary.credit_share)),
    ]
    print_tables([Table(title, ("", "before", "after"), rows)])
    print(f"{path}\n{path.with_name('curves.png')}")


if __name__ == "__main__":
    main()
