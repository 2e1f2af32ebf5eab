"""Attacks on a warm jail: each has the right verdict, and an honest answer after it passes in the same jail."""

import json
from pathlib import Path

import pytest

from openrlhf_shear.rewards import grade_code
from openrlhf_shear.rewards.code.hosts import CodeWorkers

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("needs_jail")


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def test_no_attack_spoils_its_own_grade_or_the_next():
    from warm_jails import ATTACKS, attacked

    rows = [*attacked(ATTACKS)]
    assert [row for row in rows if not row["held"]] == []
    assert len(rows) == len(ATTACKS) >= 40
    assert {"same", "new"} == {row["jail"] for row in rows}


def test_an_attack_that_works_is_noticed(monkeypatch):
    import warm_jails
    from warm_jails import Attack

    working = {"paid": Attack("a verdict", "print(6)"), "left": Attack("state", "print(0)", looks="True")}
    monkeypatch.setattr(warm_jails, "ATTACKS", warm_jails.ATTACKS | working)
    assert [row["held"] for row in warm_jails.attacked(working)] == [False, False]


@pytest.mark.parametrize("search", ["memory()", "objects()"])
def test_a_search_finds_a_text_that_is_there(search: str):
    from warm_jails import SEARCH

    secret = "5bc5bc" + "7e" * 16
    with CodeWorkers(1) as workers:
        program = f"{SEARCH}\nkept = {{'x': [input()]}}\n{search}"
        label = {"inputs": [secret], "outputs": [secret]}
        assert grade_code(program, label, extract=False, timeout=60.0, workers=workers).correct


def test_the_page_has_the_tables_that_the_command_prints():
    from hostile_neighbours import markdown
    from warm_jails import ATTACKS

    found = json.loads((ROOT / "benchmarks/results/hostile_neighbours.json").read_text())["before"]
    page = (ROOT / "docs/security.md").read_text()
    assert [row["attack"] for row in found["rows"]] == [*ATTACKS]
    for table in "\n".join(markdown(found)).split("\n\n"):
        assert f"{table}\n" in page
