"""The page of results, docs/results.md, and the chart of the README, both from the JSON files in benchmarks/results.

    PYTHONPATH=. python benchmarks/results_page.py       # rewrites the page's tables and docs/images/results.png

A row of the page is an entry of `results_rows.toml`. What a row leaves out comes from its JSON file.
"""

import argparse
import json
import re
import tomllib
from pathlib import Path

from openrlhf_shear.report.estimates import Paired
from openrlhf_shear.report.figures import Picture, Series, columns, plot_rows, render, spread

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE, CHART = ROOT / "docs/results.md", ROOT / "docs/images/results.png"
MARK = re.compile(r"(<!-- printed by benchmarks/results_page\.py: (\w+) -->)\n+(?:\|[^\n]*\n)*\n*")
HEADER = "| result | command | commit | log and curve |\n| --- | --- | --- | --- |\n"
NO_COMMIT = "not recorded"
LONGEST = 150  # characters of a command; the file has the whole

RULES = {  # of the chart, in the order of its rows
    "shear": "SHEAR",
    "error_odds": "error_odds: surprisal\nand the rise of SHEAR's weights",
    "error_odds/rise=0": "error_odds without the rise:\nno hidden states",
    "oracle_first_wrong": "blame on the known\nfirst error (a reference)",
}


# ── The chart ──


def chart() -> Picture:
    """Return the README's chart: mean accuracy over GRPO, of rules on both tasks of the lab."""
    found = {
        "Credit lab, 0.6M, 10 seeds": ("blue", lab_gains()),
        "Bookkeeping, 1.9M, 14 seeds": ("vermilion", bookkeeping_gains("over uniform", "primary")),
        "Bookkeeping, 5.1M, 14 seeds": ("purple", bookkeeping_gains("5.1M")),
    }
    series = [
        Series(label, label, ink, [gains.get(rule) for rule in RULES], hollow=ink == "purple")
        for label, (ink, gains) in found.items()
    ]
    numbers = {title: column for each in series for title, column in spread(each.title, each.numbers).items()}
    return Picture(
        *("results", "Points of mean accuracy over GRPO", "two small tasks whose every first error is known"),
        "Mean accuracy over the training steps minus that of GRPO, with 95% intervals paired over seeds.",
        *columns({"rule": list(RULES), **numbers}),
        lambda axis, theme: plot_rows(
            *(axis, theme, list(RULES.values()), series), xlabel="Difference (percentage points)", line=0, scale=100
        ),
        4.0,
    )


def lab_gains() -> dict[str, Paired]:
    """Return the gain in mean accuracy over GRPO of each rule on chain arithmetic."""
    rules = read("credit_lab_all")["rules"]
    return {row["rule"]: Paired(**row["against"]["baseline"]["mean"]) for row in rules if "baseline" in row["against"]}


def bookkeeping_gains(*parts: str) -> dict[str, Paired]:
    """Return the same on bookkeeping, from these parts of the comparison."""
    rows = [row for row in read("ledger_comparison")["differences"] if row["part"] in parts]
    return {row["rule"]: Paired(**row["mean"]) for row in rows if row["over"] == "uniform"}


# ── The page ──


def page(text: str) -> str:
    """Return the page with its tables made again."""
    rows = tomllib.loads(Path(__file__).with_name("results_rows.toml").read_text())
    missing = set(rows) - {name for _, name in MARK.findall(text)}
    if missing:
        raise ValueError(f"{PAGE.name} has no place for {', '.join(sorted(missing))}: add a line that MARK finds")
    return MARK.sub(lambda mark: f"{mark[1]}\n\n{HEADER}{''.join(map(line, rows[mark[2]]))}\n", text)


def line(row: dict) -> str:
    """Return a row of the page; `row` has `name`, `file` and `page`, and may have `command`, `commit` and `curve`."""
    recorded, path = origins(row["file"]), f"../benchmarks/results/{row['file']}"
    command = row.get("command") or recorded[0]["command"]
    if re.match(r"python \w+\.py", command):  # as scripts of benchmarks/ recorded themselves
        command = command.replace("python ", "python benchmarks/", 1)
    command = re.sub(r"(?<=\s)(?:\.\./shared|/tmp)/", "", command)  # folders of the machine that ran it
    if len(command) > LONGEST:
        command = command[:LONGEST].rpartition(" ")[0] + " ..."
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
    print(f"{PAGE.relative_to(ROOT)} and {CHART.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
