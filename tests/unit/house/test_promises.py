"""The tables of promises say what the benchmarks' kept results say."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAULTS = json.loads((ROOT / "benchmarks/results/faults.json").read_text())["rows"]
_ROW = re.compile(r"`(\w+)`(?:×(\d+))?")


def promises(page: str) -> list[list[str]]:
    """Cells of a page's main table: promise, what shows it, last run."""
    table = (ROOT / page).read_text().partition("| promise | ")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def lines_of_faults() -> list[tuple[list[str], str]]:
    """Lines of docs/reliability.md with rows of the fault bench: the rows' names, and their last runs."""
    lines = [(_ROW.findall(shown), last) for _, shown, last in promises("docs/reliability.md")]
    assert all(int(trials or 1) == FAULTS[name]["trials"] for rows, _ in lines for name, trials in rows)
    return [([name for name, _ in rows], last) for rows, last in lines if rows]


def test_every_row_of_the_fault_bench_is_in_the_table():
    assert sorted(name for rows, _ in lines_of_faults() for name in rows) == sorted(FAULTS)


def test_a_line_of_faults_has_the_commits_the_exit_codes_and_the_longest_time_of_its_rows():
    for rows, last in lines_of_faults():
        results = [FAULTS[name] for name in rows]
        commits = sorted({re.sub(r"^(\w{7})\w*", r"\1", result["commit"]) for result in results})
        (codes,) = {", ".join(re.findall(r"exit (\d+)", result["ends"])) for result in results}
        longest = max(second for result in results for second in result["seconds"])
        assert last == f"{', '.join(commits)}: {codes}; {longest:.0f}", rows


@pytest.mark.parametrize("page", ["docs/reliability.md", "docs/security.md"])
def test_what_shows_a_promise_is_there(page):
    shown = [
        place
        for _, cell, last in promises(page)
        for place in re.findall(r"`([\w./:]+\.(?:py|json)[\w:]*)`", cell + last)
    ]
    for file, _, test in (place.partition("::") for place in shown):
        assert f"def {test}" in (ROOT / "tests" / file).read_text(), file
    assert shown


def test_the_commits_of_the_page_on_security_are_those_of_its_file():
    found = json.loads((ROOT / "benchmarks/results/hostile_neighbours.json").read_text())
    commits = {part["environment"]["commit"][:7] for part in (found, found["before"])}
    assert {last for *_, last in promises("docs/security.md")} == commits | {"CI"}


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


def test_the_measured_memory_is_its_file_s():
    page = " ".join((ROOT / "docs/memory.md").read_text().split())
    rows = json.loads((ROOT / "benchmarks/results/memory_cpu.json").read_text())["rows"]
    ratios = {
        phase: [row["ratio"] for row in rows if row["phase"] == phase] for phase in ("idle", "log-probs", "backward")
    }
    least, most = ([f"{of(each):.2f}" for each in ratios.values()] for of in (min, max))
    assert f"{least[0]} to {most[0]} of the idle memory" in page
    assert f"{least[1]} to {most[1]} in the log-prob pass and {least[2]} to {most[2]} in backward" in page
    wide = {
        r["logits_chunk"]: f"{r['measured_mib']:,.0f}" for r in rows if (r["size"], r["phase"]) == ("wide", "backward")
    }
    assert f"`--actor.logits_chunk 64` lowers backward from {wide[0]} to {wide[64]} MiB" in page


def test_the_table_of_files_has_the_largest_measurement_of_each_row():
    page = (ROOT / "docs/performance.md").read_text()
    rows = json.loads((ROOT / "benchmarks/results/files.json").read_text())["rows"]
    largest = {row["job"]: row for row in rows}
    cells = re.findall(r"^\| (.*?) \| ([\d,]+) \| ([\d.]+) \| (\d+) \|$", page.partition("## Files")[2], re.M)
    assert len(cells) == 8
    for job, *numbers in cells:
        row = largest[job]
        assert numbers == [f"{row['rows']:,}", f"{row['seconds']:.1f}", f"{row['peak_megabytes']:.0f}"], job
    for job, row in largest.items():
        smaller = next(each for each in rows if each["job"] == job and each["rows"] == row["rows"] // 100)
        assert row["microseconds_a_row"] < 1.5 * smaller["microseconds_a_row"], f"{job}: not linear"


def test_the_driver_s_numbers_are_its_file_s():
    page = (ROOT / "docs/performance.md").read_text()
    found = json.loads((ROOT / "benchmarks/results/driver.json").read_text())
    whole = found["driver"][-1]
    assert f"{whole['ms a rollout']:.3f} ms a rollout and\n{whole['us a token']:.3f} us a token" in page
    for row in found["front_end"]:
        assert f"| {row['asked']} | {row['us a token']:.1f} |" in page


def test_the_tables_of_the_first_step_and_of_each_part_are_their_files():
    page = (ROOT / "docs/performance.md").read_text()
    first, parts, starts = (
        json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
        for name in ("first_step", "additions", "starts_at_load_40")
    )
    for row in [*first["rows"], {"stage": "all"} | first["total"]]:
        assert f"| {row['stage']} | {row['seconds']:.1f} | {row['cpu']:.1f} |" in page
    assert ", ".join(f"{row['process']} {row['cpu']:.1f}" for row in first["imports"]) in page
    for row in parts["rows"]:
        assert f"| {row['part']} | {row['percent']:.1f} |" in page
    assert [row["code"] for row in starts["rows"]] == [0] * 10 and starts["busy"] == 40
