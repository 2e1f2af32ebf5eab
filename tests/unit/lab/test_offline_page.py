"""The page of offline placement against the kept results."""

import json

import pytest
from command_lines import ROOT

FOUND, MATHS = (
    json.loads((ROOT / "benchmarks" / "results" / f"offline_{name}.json").read_text())
    for name in ("processbench", "math")
)
SHEAR, TEXT, ODDS = "shear/window=", "text/ngram=3/window=", "error_odds/surprisal="
JUDGED = f"{ODDS}4/entropy=0/reach=32/epsilon_rel=0.015"
ON_WORDS = "examples.rules.text_odds:TextOddsRule" + JUDGED.removeprefix("error_odds")
ROWS = {  # row of the page -> rule, its form on words
    "SHEAR, window 32": (f"{SHEAR}32/stride=8", f"{TEXT}32/stride=8"),
    "SHEAR, window 100": (f"{SHEAR}100", f"{TEXT}100"),
    "surprisal": (f"{ODDS}1/entropy=0/rise=0", None),
    "its fourth power": (f"{ODDS}4/entropy=0/rise=0", None),
    "judged rule": (JUDGED, ON_WORDS),
}


def said(number: dict, form: str = ".3f") -> str:
    return f"{number['value']:{form}} ({number['low']:{form}} to {number['high']:{form}})"


@pytest.fixture(scope="module")
def page() -> str:
    text = (ROOT / "docs" / "credit-bench-offline.md").read_text(encoding="utf-8")
    return " ".join(text.partition("## What came out")[2].split())


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_the_kept_lift_and_difference(page, row):
    rule, words = ROWS[row]
    rules, differences = (FOUND["comparison"][name] for name in ("rules", "differences_equal_contrast"))
    over = said(differences[rule][words], "+.3f") if words else ""
    own = [said(rules[rule][name]) for name in ("lift", "lift_equal_contrast")]
    cells = [row, *own, over, said(rules[rule]["auc_over_control"], "+.3f")]
    assert " ".join(f"| {' | '.join(cells)} |".split()) in page


def test_the_first_hypothesis_could_not_come_out_positive(page):
    share = FOUND["comparison"]["rules"][ROWS["SHEAR, window 32"][0]]["chance"]["value"]
    lift = 1.12 / (1 + 0.12 * share)
    assert f"contrast of 1.12, weights that are large on the marked step alone have a lift of {lift:.2f}" in page


def test_the_gate_the_hypotheses_and_the_counts_are_those_of_the_file(page):
    gate, differences = FOUND["gate"], FOUND["comparison"]["differences"]
    assert not gate["passed"] and gate["by"] == JUDGED and gate["rules"][JUDGED]["lift"]["rows"] == 32
    assert f"the judged rule has the largest lift, {said(gate['rules'][JUDGED]['lift'], '.2f')}" in page
    assert f"nothing to surprisal: {said(differences[JUDGED][ROWS['its fourth power'][0]], '+.3f')}" in page
    shear, equal = ROWS["SHEAR, window 32"][0], FOUND["comparison"]["differences_equal_contrast"]
    controls = [said(equal[shear][f"{shear}/{control}"], "+.3f") for control in ("permuted", "shuffled")]
    assert f"window 32 has {controls[0]}, over its own weights in a random order {controls[1]}" in page
    surprisal = said(equal[JUDGED][ROWS["its fourth power"][0]], "+.3f")
    assert f"{said(differences[JUDGED][ROWS['its fourth power'][0]], '+.3f')}, at equal contrast {surprisal}" in page
    assert f"do, {said(differences[JUDGED][ON_WORDS], '+.3f')}, and at equal contrast hardly" in page
    counts = FOUND["counts"]
    assert f"{counts['problems']} problems with a marked step, {counts['responses']:,} responses" in page
    contrast = [FOUND["comparison"]["rules"][ROWS[f"SHEAR, window {w}"][0]]["last_over_first"] for w in (32, 100)]
    assert "{:.2f} times (window 32) and {:.2f} times".format(*(each["value"] for each in contrast)) in page


def test_the_numbers_of_math_are_those_of_the_file(page):
    rules, differences = (MATHS["comparison"][name] for name in ("rules", "differences"))
    pairs = [ROWS[f"SHEAR, window {window}"] for window in (32, 100)]
    assert " and ".join(said(rules[shear]["lift"]) for shear, _ in pairs) in page
    assert " and ".join(said(differences[shear][text], "+.3f") for shear, text in pairs) in page
    equal = [said(rules[shear]["lift_equal_contrast"]) for shear, _ in pairs]
    assert f"at equal contrast {' and '.join(equal)}" in page
    assert f"The judged rule has {said(rules[JUDGED]['lift'])}" in page
    assert f"has {MATHS['counts']['problems']} such problems" in page and MATHS["gate"]["passed"] is None
