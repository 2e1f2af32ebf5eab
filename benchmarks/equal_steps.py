"""Gains at equal steps, from a table of the lab's runs at several learning rates.

    PYTHONPATH=. python benchmarks/equal_steps.py --table step_size_runs --output benchmarks/results/step_size.json

A row is a rule at a rate, over the seeds that every arm has. It has the mean accuracy, and the KL of its steps over
that of GRPO's (`uniform` at --rate). Its paired differences have 95% t intervals:

- over that GRPO, at the end too, and with the range of either end of the interval where one seed is left out
- over GRPO at its best rate. That rate is chosen on the same seeds, which favours GRPO
- over GRPO with steps as large, and over its matched control
- on its own curve, where its steps are as large as those of GRPO at the row's rate

`along` has means over each third of the steps: KL, blame over praise, and the contrasts where the runs have them.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from ledger_comparison import points
from measure import print_table, script_parser, write_json
from run_tables import STUDIES, read, table_of

from openrlhf_shear.config.names import titled
from openrlhf_shear.lab.runs import run_of
from openrlhf_shear.lab.settings import BASELINE, LabSettings
from openrlhf_shear.lab.worth import LabRun, over_equal_steps, step_kl
from openrlhf_shear.report.estimates import Paired, paired
from openrlhf_shear.report.findings import plain
from openrlhf_shear.report.provenance import distinct, provenance

DIFFERENCES = {
    "over_grpo": "over GRPO",
    "at_the_end": "at the end",
    "over_tuned": "tuned GRPO",
    "equal_steps": "equal steps",
    "own_curve": "own curve",
    "over_matched": "matched",
}
Arms = Mapping[tuple[str, float], Mapping[int, LabRun]]  # (rule, learning rate) -> seed -> run


def arms_of(
    table: list[dict], seeds: range | None = None, updates: int = 2, rules: Sequence[str] = ()
) -> dict[tuple[str, float], dict[int, LabRun]]:
    """Return the runs with `updates` a step of GRPO and these rules, of the seeds that all have; ValueError: none."""
    arms: dict[tuple[str, float], dict[int, LabRun]] = {}
    for row in table:
        settings = LabSettings(**row["settings"])
        if rules and row["rule"] not in (BASELINE, *rules):
            continue
        if settings.mini_batches == updates and (seeds is None or row["seed"] in seeds):
            arms.setdefault((row["rule"], settings.learning_rate), {})[row["seed"]] = run_of(row, row["rule"])
    shared = set.intersection(*map(set, arms.values())) if arms else set()
    if not shared:
        raise ValueError("no seed has a run of every arm")
    return {arm: {seed: runs[seed] for seed in sorted(shared)} for arm, runs in sorted(arms.items())}


def differences(own: Mapping[int, LabRun], others: Mapping[int, LabRun], measure: str = "mean") -> list[float]:
    """Return the difference of each seed."""
    return [getattr(own[seed], measure) - getattr(others[seed], measure) for seed in own]


def without_a_seed(values: Sequence[float]) -> dict[str, list[float]] | None:
    """Return the least and largest `low` and `high` over the sets without one seed; None with fewer than three."""
    if len(values) < 3:
        return None
    left = [paired([*values[:i], *values[i + 1 :]]) for i in range(len(values))]
    return {end: [pick(getattr(each, end) for each in left) for pick in (min, max)] for end in ("low", "high")}


def along(runs: Sequence[LabRun], parts: int = 3) -> dict[str, list[float]]:
    """Return means over runs and over the steps of each part of the training that have a number."""
    found = {}
    for name in ("kl", "positive_credit", "negative_credit", "contrast/last_first", "contrast/wrong_right"):
        if all(name in run.metrics for run in runs):
            steps = np.array_split(np.array([run.metrics[name] for run in runs], dtype=float), parts, axis=1)
            found[name] = [float(np.nanmean(part)) for part in steps]
    praise, blame = found.pop("positive_credit"), found.pop("negative_credit")
    return found | {"blame_over_praise": [-b / p for b, p in zip(blame, praise, strict=True)]}


def rows_of(arms: Arms, rate: float) -> list[dict]:
    """Return a row for each arm; `rate` is GRPO's."""
    curves: dict[str, dict[float, list[LabRun]]] = {}
    for (rule, at), runs in arms.items():
        curves.setdefault(rule, {})[at] = [*runs.values()]
    grpo = curves[BASELINE]
    tuned = max(grpo, key=lambda at: fmean(run.mean for run in grpo[at]))
    rows = []
    for (rule, at), own in arms.items():
        runs = [*own.values()]

        def over(others: Mapping[int, LabRun] | None, measure: str = "mean", own: Mapping = own) -> Paired | None:
            return None if others is None or others is own else paired(differences(own, others, measure))

        row = {"rule": rule, "rate": at, "seeds": [*own], "mean": fmean(run.mean for run in runs)}
        row |= {"kl": step_kl(runs) / step_kl(grpo[rate]), "tuned_rate": tuned}
        base = arms[BASELINE, rate]
        row |= {"over_grpo": over(base), "at_the_end": over(base, "final"), "along": along(runs)}
        row["without_a_seed"] = None if own is base else without_a_seed(differences(own, base))
        row |= {"over_tuned": over(arms[BASELINE, tuned])}
        row |= {"over_matched": over(arms.get((f"{rule}/matched", at)))}
        of_rule = rule != BASELINE
        row["equal_steps"] = over_equal_steps(runs, grpo) if of_rule else None
        row["own_curve"] = (
            over_equal_steps(grpo[at], curves[rule], of_baseline=True) if of_rule and at in grpo else None
        )
        rows.append(plain(row))
    return rows


def main() -> None:
    parser = script_parser(__doc__, required=True)
    parser.add_argument("--table", choices=STUDIES, required=True, help="runs that benchmarks/run_tables.py keeps")
    parser.add_argument("--rate", type=float, default=1e-4, help="GRPO's (default: 1e-4)")
    parser.add_argument("--seeds", metavar="FIRST-LAST", help="e.g. 930-933 (default: all that every arm has)")
    parser.add_argument("--rules", nargs="+", default=(), metavar="NAME", help="to read beside GRPO (default: all)")
    parser.add_argument("--updates", type=int, default=2, help="of a step, of the runs to read (default: 2)")
    args = parser.parse_args()
    first, _, last = (args.seeds or "").partition("-")
    table = read(table_of(args.table))
    try:
        seeds = range(int(first), int(last) + 1) if args.seeds else None
        arms = arms_of(table, seeds, args.updates, args.rules)
        if (BASELINE, args.rate) not in arms:
            raise ValueError(f"--rate {args.rate:g}: no run of {BASELINE} has this rate")
        rows = rows_of(arms, args.rate)
    except ValueError as error:
        parser.error(str(error))
    names = dict(zip(kinds := [*dict.fromkeys(row["rule"] for row in rows)], titled(kinds), strict=True))
    shown = [
        {"rule": names[row["rule"]], "rate": f"{row['rate']:g}", "seeds": len(row["seeds"])}
        | {"mean": f"{100 * row['mean']:.1f}%", "kl": f"{row['kl']:.2f}"}
        | {name: points(row[name]) if row[name] else "" for name in DIFFERENCES}
        for row in rows
    ]
    titles = {name: name for name in ("rule", "rate", "seeds", "mean", "kl")}
    print_table(f"{args.table}, GRPO at {args.rate:g}", shown, titles | DIFFERENCES)
    runs = distinct(row["made"] for row in table)
    write_json(args.output, {**provenance(), "table": args.table, "grpo_rate": args.rate, "runs": runs, "rows": rows})


if __name__ == "__main__":
    main()
