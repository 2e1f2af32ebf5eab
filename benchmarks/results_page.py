"""The page of results, docs/results.md, and the chart of the README, both from the JSON files in benchmarks/results.

    PYTHONPATH=. python benchmarks/results_page.py       # rewrites the page's tables and docs/images/results*.png

A row of the page is an entry of `results_rows.toml`. What a row leaves out comes from its JSON file.
"""

import argparse
import json
import lzma
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from openrlhf_shear.report.estimates import Paired, paired
from openrlhf_shear.report.figures import Picture, Series, columns, plot_rows, render, spread

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE, CHART, DARK_CHART = (
    ROOT / "docs/results.md",
    ROOT / "docs/images/results.png",
    ROOT / "docs/images/results_dark.png",
)
MARK = re.compile(r"(<!-- printed by benchmarks/results_page\.py: (\w+) -->)\n+(?:\|[^\n]*\n)*\n*")
HEADER = "| result | command | commit | log and curve |\n| --- | --- | --- | --- |\n"
NO_COMMIT = "not recorded"
LONGEST = 150  # characters of a command; the file has the whole

LAB_FILES = ("all", "fresh", "controls", "rate5e-5", "rate1e-4", "rate2e-4")
TUNED = "tuned"
RULES = {  # of the chart, in the order of its rows
    "shear": "SHEAR",
    "shear/matched": "as much blame, spread evenly",
    "error_odds": "error_odds",
    "error_odds/matched": "as much blame, spread evenly ",
    "oracle_first_wrong": "blame on the known\nfirst error (a reference)",
    "oracle_first_wrong/matched": "as much blame, spread evenly  ",
    TUNED: "GRPO at its best\nlearning rate",
}


# ── The chart ──


def chart() -> Picture:
    """Return the README's chart: mean accuracy over GRPO of rules, of their matched controls, and of tuned GRPO."""
    found = {"Chain arithmetic, 0.6M": ("blue", lab_gains()), "Bookkeeping, 1.9M": ("vermilion", bookkeeping_gains())}
    series = [Series(label, label, ink, [gains.get(rule) for rule in RULES]) for label, (ink, gains) in found.items()]
    numbers = {title: column for each in series for title, column in spread(each.title, each.numbers).items()}
    return Picture(
        *("results", "Points of mean accuracy over GRPO", "two small tasks whose every first error is known"),
        "Mean accuracy over the training steps minus GRPO's at 1e-4, with 95% intervals over 5 to 14 paired seeds.",
        *columns({"rule": list(RULES), **numbers}),
        lambda axis, theme: plot_rows(
            *(axis, theme, list(RULES.values()), series), xlabel="Difference (percentage points)", line=0, scale=100
        ),
        4.0,
    )


def lab_gains() -> dict[str, Paired]:
    """Return the gain in mean accuracy over GRPO on chain arithmetic: on fresh seeds, and the references' on others."""
    files = {name: {row["rule"]: row["runs"] for row in read(f"credit_lab_{name}")["rules"]} for name in LAB_FILES}
    fresh, controls = files["fresh"], files["controls"]
    gains = {rule: gain(fresh[rule], fresh["uniform"]) for rule in ("shear", "error_odds", "error_odds/matched")}
    gains["shear/matched"] = gain(files["all"]["shear/matched"], files["all"]["uniform"])
    references = "oracle_first_wrong", "oracle_first_wrong/matched"
    gains |= {rule: gain(controls[rule], controls["uniform"]) for rule in references}
    rates = [files[f"rate{rate}"]["uniform"] for rate in ("5e-5", "1e-4", "2e-4")]
    return gains | {TUNED: max((gain(runs, rates[1]) for runs in rates), key=lambda each: each.mean)}


def bookkeeping_gains() -> dict[str, Paired]:
    """Return the same on bookkeeping, of seeds 0 to 13; GRPO at its best rate is that of the rates with all seeds."""
    with lzma.open(RESULTS / "bookkeeping_runs.jsonl.xz", "rt") as lines:
        runs = [run for run in map(json.loads, lines) if run["seed"] < 14 and "start" not in run["settings"]]
    by_rule = defaultdict(list)
    for run in runs:
        by_rule[run["rule"], run["settings"].get("learning_rate", 1e-4)].append(run | {"mean": fmean(run["accuracy"])})
    grpo = by_rule["uniform", 1e-4]
    gains = {rule: gain(by_rule[rule, 1e-4], grpo) for rule in RULES if by_rule[rule, 1e-4]}
    rates = [gain(by_rule["uniform", rate], grpo) for rate in (1e-4, 2e-4)]
    return gains | {TUNED: max(rates, key=lambda each: each.mean)}


def gain(runs: list[dict], others: list[dict]) -> Paired:
    """Return the difference in mean accuracy over the seeds that both have."""
    theirs = {run["seed"]: run["mean"] for run in others}
    return paired([run["mean"] - theirs[run["seed"]] for run in runs if run["seed"] in theirs])


# ── The page ──


def page(text: str) -> str:
    """Return the page with its tables made again."""
    rows = tomllib.loads(Path(__file__).with_name("results_rows.toml").read_text())
    missing = set(rows) - {name for _, name in MARK.findall(text)}
    if missing:
        raise ValueError(f"{PAGE.name} has no place for {', '.join(sorted(missing))}: add a line that MARK finds")
    return MARK.sub(lambda mark: f"{mark[1]}\n\n{HEADER}{''.join(map(line, rows[mark[2]]))}\n", text)


def line(row: dict) -> str:
    """Return a row of the page; `row` has `name`, `file`, `page`, and maybe `command`, `commit`, `gone` and `curve`."""
    recorded, path = origins(row["file"]), f"../benchmarks/results/{row['file']}"
    command = row.get("command") or recorded[0]["command"]
    if re.match(r"python \w+\.py", command):  # as scripts of benchmarks/ recorded themselves
        command = command.replace("python ", "python benchmarks/", 1)
    command = re.sub(r"(?<=\s)(?:\.\./shared|/tmp)/", "", command)  # folders of the machine that ran it
    if len(command) > LONGEST:
        command = command[:LONGEST].rpartition(" ")[0] + " ..."
    if "gone" in row:
        command = f"git checkout {row['gone']} && {command}"
    made = [each["commit"][:7] for each in recorded if each.get("commit")] or [row.get("commit", NO_COMMIT)]
    curve = f", [curve](images/{row['curve']})" if "curve" in row else ""
    cells = (
        f"[{row['name']}]({row['page']})",
        f"`{command}`",
        ", ".join(dict.fromkeys(made)),
        f"[{row['file']}]({path}){curve}",
    )
    return f"| {' | '.join(cells)} |\n"


def origins(file: str) -> list[dict]:
    """Return what a file of results recorded of its runs: `commit` and `command` of each; empty without a record."""
    found = json.loads((RESULTS / file).read_text())
    if not isinstance(found, dict):
        return []
    made = found.get("runs") if "differences" in found else found.get("made") or found.get("environment")
    if made is None:
        made = [found] if "commit" in found else []
    return made if isinstance(made, list) else [made]


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    PAGE.write_text(page(PAGE.read_text()))
    CHART.write_bytes(render(chart(), "png"))
    DARK_CHART.write_bytes(render(chart(), "png", dark=True))
    print(*(f"{file.relative_to(ROOT)}: written" for file in (PAGE, CHART, DARK_CHART)), sep="\n")


if __name__ == "__main__":
    main()
