"""The planned differences of docs/bookkeeping.md, from the lab's finished runs.

    examples/scripts/ledger.sh               # trains the runs and calls this: PYTHONPATH=. python ...

Differences are of mean accuracy over the steps and of final accuracy, paired over seeds, with 95% intervals (t). p is
that of the two-sided paired t test. For the secondary differences it is also corrected by Holm's method, over all that
are planned. A row with missing seeds is interim.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from measure import print_table, script_parser, write_json
from scipy.stats import ttest_1samp

from openrlhf_shear.config.names import titled
from openrlhf_shear.lab.policy import fingerprint, start_policy
from openrlhf_shear.lab.runs import finished, jobs
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.lab.worth import MEASURES
from openrlhf_shear.report.bootstrap import holm
from openrlhf_shear.report.estimates import paired
from openrlhf_shear.report.findings import plain
from openrlhf_shear.report.provenance import distinct, provenance

SETTINGS = {"prompts": 8, "steps": 20, "eval_problems": 256, "window": 32, "stride": 8, "epsilon_rel": 0.015}
SETTINGS = LabSettings(task="bookkeeping", **SETTINGS)
ORACLE = "oracle_first_wrong"
RULES = "examples.rules."
# the rules that were tried, after the best rule without hidden states
SURPRISAL = "error_odds/surprisal=4/entropy=0/rise=0"
TRIED = (
    f"{RULES}change_rule:ChangeRule",
    f"{RULES}change_rule:ChangeRule/window=1/rise=2",
    "error_odds/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015",
    f"{RULES}contrast_rule:ContrastRule",
    f"{RULES}contrast_rule:ContrastRule/surprisal=0",
    f"{RULES}discriminant_rule:DiscriminantRule",
)
JUDGED = "error_odds/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015"  # the best of `TRIED` on the seeds `SEARCHED`
WINDOWS = ("shear/window=8/stride=2", "shear/window=16/stride=4", "shear", "shear/window=64/stride=16")
PLANNED = range(14)
FEW = range(5)
SEARCHED, JUDGING = range(900, 904), range(100, 114)
# SHA-256 of the weights of the policy with 5.1M parameters, results/bookkeeping_large.tar.xz
LARGE = "f51f835003389b3a65de4ba5edcfe0e1b707f1c9285c495f4c329563ca1dbbd3"


@dataclass(frozen=True)
class Comparison:
    """A planned difference: a rule over another, at the same seeds."""

    part: str
    rule: str
    over: str
    seeds: range = PLANNED
    learning_rate: float = SETTINGS.learning_rate  # of the rule
    its_rate: float = SETTINGS.learning_rate  # of the other rule
    large: bool = False  # whether it is of the policy with 5.1M parameters


COMPARISONS = (
    Comparison("primary", "shear", "uniform"),
    Comparison("secondary", "shear", "shear/matched"),
    Comparison("secondary", "shear", "shear/shuffled"),
    Comparison("secondary", "shear", "shear/permuted"),
    Comparison("secondary", "shear/on_incorrect", "shear"),
    Comparison("secondary", "shear", "error_odds/rise=0"),
    Comparison("secondary", "error_odds", "error_odds/rise=0"),
    Comparison("secondary", ORACLE, f"{ORACLE}/hits=0"),
    *(
        Comparison("over uniform", rule, "uniform")
        for rule in (
            *(ORACLE, f"{ORACLE}/hits=0", f"{ORACLE}/matched", "oracle_from_error", "error_odds", "error_odds/rise=0"),
            *("shear/on_incorrect", "shear/matched", "shear/permuted", "shear/shuffled"),
        )
    ),
    Comparison("place", ORACLE, f"{ORACLE}/matched"),
    *(Comparison("added", "shear/normalize=per_rollout", over) for over in ("uniform", "shear")),
    Comparison("added", "shear/on_incorrect", "shear/on_incorrect/matched"),
    Comparison("added", "shear/on_incorrect/matched", "uniform"),
    *(Comparison("window", rule, "uniform", FEW) for rule in WINDOWS),
    *(Comparison("window", rule, WINDOWS[0], FEW) for rule in WINDOWS[1:]),
    Comparison("tail", "shear/tail=every", "shear", FEW),
    *(Comparison("learning rate", "uniform", "uniform", FEW, learning_rate=rate) for rate in (5e-5, 2e-4)),
    Comparison("primary at 2e-4", "shear", "uniform", learning_rate=2e-4, its_rate=2e-4),
    *(Comparison("tried", rule, "uniform", SEARCHED) for rule in (SURPRISAL, *TRIED)),
    *(Comparison("tried", rule, SURPRISAL, SEARCHED) for rule in TRIED),
    *(Comparison("judged", JUDGED, over, JUDGING) for over in ("shear", f"{JUDGED}/matched", SURPRISAL)),
    Comparison("5.1M", "shear", "uniform", large=True),
    *(
        Comparison("judged at 5.1M", JUDGED, over, JUDGING, large=True)
        for over in ("shear", f"{JUDGED}/matched", SURPRISAL)
    ),
)
# of rules over their earlier runs
AGAIN = tuple(Comparison("again", rule, rule) for rule in ("uniform", "shear", "shear/matched"))
COLUMNS = {"rule": "rule", "seeds": "seeds", "mean": "mean, points", "final": "final, points"}
COLUMNS |= {"p": "p", "holm": "p, Holm"}


class Runs:
    """The lab's finished runs."""

    def __init__(self, folder: Path):
        self._folder, self.made = folder, []
        self._starts = {False: fingerprint(start_policy(SETTINGS)), True: LARGE}

    def of(self, rule: str, comparison: Comparison, learning_rate: float) -> dict:
        """Return the finished runs by seed, of the seeds asked for."""
        settings = replace(SETTINGS, learning_rate=learning_rate)
        wanted = jobs(
            settings, parse_rules(rule), comparison.seeds, Path(), self._starts[comparison.large], self._folder
        )
        runs = [run for run in finished(wanted) if run.seed in comparison.seeds]
        self.made += [run.made for run in runs]
        return {run.seed: run for run in runs}


def differences(runs: Runs, comparison: Comparison, earlier: Runs | None = None) -> dict[str, list[float]]:
    """Return the differences of both measures, over the seeds that both rules have; the other rule may be `earlier`."""
    mine = runs.of(comparison.rule, comparison, comparison.learning_rate)
    its = (earlier or runs).of(comparison.over, comparison, comparison.its_rate)
    seeds = [seed for seed in mine if seed in its]
    return {of: [getattr(mine[seed], of) - getattr(its[seed], of) for seed in seeds] for of in MEASURES}


def compared(runs: Runs, earlier: Runs | None = None) -> list[dict]:
    """Return a row for each difference that has runs, and with `earlier` runs for each rule over its earlier self."""
    rows = []
    for comparison in (*COMPARISONS, *(AGAIN if earlier else ())):
        found = differences(runs, comparison, earlier if comparison in AGAIN else None)
        if not found["mean"]:
            continue
        n, planned = len(found["mean"]), len(comparison.seeds)
        rate = "" if comparison.learning_rate == comparison.its_rate else f" at {comparison.learning_rate:g}"
        row = {
            "part": comparison.part,
            "rule": comparison.rule + rate,
            "over": comparison.over,
            "seeds": n,
            "planned": planned,
        }
        row |= {of: plain(paired(values)) for of, values in found.items()}
        row["p"] = float(ttest_1samp(found["mean"], 0.0).pvalue) if n > 1 else None
        rows.append(row | {"interim": n < planned})
    tested = [row for row in rows if row["part"] == "secondary" and row["p"] is not None]
    planned = sum(comparison.part == "secondary" for comparison in COMPARISONS)
    for row, p in zip(tested, holm([row["p"] for row in tested], planned), strict=True):
        row["holm"] = p
    return rows


def points(difference: dict) -> str:
    """Return "+1.2 (-0.3 to +2.7)", in percentage points."""
    values = (difference[name] for name in ("mean", "low", "high"))
    shown = [f"{round(100 * value, 1) + 0.0:+.1f}" for value in values if value is not None]
    return shown[0] + (f" ({shown[1]} to {shown[2]})" if len(shown) == 3 else "")


def _shown(row: dict) -> dict:
    (name,) = titled((row["rule"],))
    seeds = f"{row['seeds']} of {row['planned']}, interim" if row["interim"] else str(row["seeds"])
    return row | {"rule": name, "seeds": seeds} | {of: points(row[of]) for of in MEASURES}


def main() -> None:
    parser = script_parser(__doc__, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="the lab's --output")
    parser.add_argument("--earlier", type=Path, help="the lab's --output with other code: compare rules with it too")
    args = parser.parse_args()
    for flag, folder in (("--runs", args.runs), ("--earlier", args.earlier)):
        if folder and not (folder / "runs").is_dir():
            parser.error(f"{flag}: no runs of the lab in {folder}; give the lab's --output, which has a folder runs")
    runs = Runs(args.runs)
    rows = compared(runs, Runs(args.earlier) if args.earlier else None)
    for part, over in dict.fromkeys((row["part"], row["over"]) for row in rows):
        shown = [_shown(row) for row in rows if (row["part"], row["over"]) == (part, over)]
        print_table(f"{part[0].upper()}{part[1:]}, over {over}", shown, COLUMNS)
    settings, made = SETTINGS.of_a_run(), distinct(runs.made)
    write_json(args.output, {**provenance(), "settings": settings, "runs": made, "differences": rows})


if __name__ == "__main__":
    main()
