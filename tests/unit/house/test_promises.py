"""The tables of promises say what the benchmarks' kept results say."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FAULTS = json.loads((ROOT / "benchmarks/results/faults.json").read_text())["rows"]
_ROW = re.compile(r"`(\w+)` (\d+)")


def lines_of_faults() -> list[list[str]]:
    """Cells of the table in docs/reliability.md: fault, answer, rows of the bench, exit codes, seconds."""
    section = (ROOT / "docs/reliability.md").read_text().partition("## Measured")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines()]
    return [line for line in cells if len(line) == 5 and _ROW.search(line[2])]


def test_every_row_of_the_fault_bench_is_in_the_table():
    counted = [(name, int(trials)) for line in lines_of_faults() for name, trials in _ROW.findall(line[2])]
    assert sorted(counted) == sorted((name, row["trials"]) for name, row in FAULTS.items())


def test_a_line_of_faults_has_the_exit_codes_and_the_longest_time_of_its_rows():
    for _, _, rows, codes, seconds in lines_of_faults():
        results = [FAULTS[name] for name, _ in _ROW.findall(rows)]
        assert {", ".join(re.findall(r"exit (\d+)", result["ends"])) for result in results} == {codes}, rows
        assert f"{max(second for result in results for second in result['seconds']):.0f}" == seconds, rows


def test_no_fault_lost_a_prompt_and_every_run_to_compare_with_was_equal():
    for column in ("lost", "doubled", "orphans", "hangs"):
        assert {row[column] for row in FAULTS.values()} <= {0, None}, column
    assert [name for name, row in FAULTS.items() if row["equal"] is False] == ["other_seed"]


def gradient_group(row: dict) -> str:
    if row["row"].startswith("OpenRLHF 0.11.2"):
        return "the same, with the probe" if "error" in row else "OpenRLHF 0.11.2 without"
    return "bfloat16:" if "bfloat16" in row["row"] else "float32:"


def test_the_table_of_gradients_sums_up_its_rows():
    page = (ROOT / "docs/correctness.md").read_text()
    groups: dict[str, list[dict]] = {}
    for row in json.loads((ROOT / "benchmarks/results/gradients.json").read_text())["rows"]:
        groups.setdefault(gradient_group(row), []).append(row)
    for name, rows in groups.items():
        cells = re.search(rf"^\| {re.escape(name)}.*? \| (\d+) \| (.*) \|$", page, re.M)
        assert int(cells[1]) == len(rows), name
        if "error" in rows[0]:
            continue
        norms = sorted({f"{row['norm']:.4f}" for row in rows})
        norms = norms[0] if len(norms) == 1 else f"{norms[0]} to {norms[-1]}"
        off = sum(len(row["off"]) for row in rows)
        assert cells[2] == f"{min(row['cosine'] for row in rows):.6f} | {norms} | {off}", name


def test_the_driver_s_numbers_are_its_file_s():
    page = (ROOT / "docs/performance.md").read_text()
    found = json.loads((ROOT / "benchmarks/results/driver.json").read_text())
    whole = found["driver"][-1]
    assert f"{whole['ms a rollout']:.3f} ms a rollout and\n{whole['us a token']:.3f} us a token" in page
    for row in found["front_end"]:
        assert f"| {row['asked']} | {row['us a token']:.1f} |" in page
