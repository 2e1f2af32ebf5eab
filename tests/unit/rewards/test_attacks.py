"""Attacks by reward files, reward servers and responses on the rewards of others: the rows of docs/security.md."""

import attacks
import pytest

from openrlhf_shear.rewards.verdict import Verdict, of_numbers


def test_no_attack_works(needs_jail):
    rows = [*attacks.try_attacks()]
    assert [row for row in rows if not row[2].startswith("refused")] == []
    assert len({name for name, _, _ in rows}) == attacks.COUNT > 50


@pytest.mark.parametrize(
    ("verdict", "honest", "wrong", "own"),
    [
        (Verdict(False, "error"), True, "refused: error", "WORKED: a reward of 0"),
        (Verdict(True), True, "WORKED: it counts as correct", "WORKED: a reward of 1"),
        (Verdict(None, failure="timeout"), True, "WORKED: timeout", "refused: timeout"),
        (of_numbers(7.0, 0.0), True, "refused: wrong", "refused: its own reward, and no other"),
        (Verdict(False, "error"), False, "WORKED: the honest grade", "WORKED: the honest grade"),
    ],
)
def test_what_counts_as_refused(verdict, honest, wrong, own):
    assert attacks.outcome_of_response(verdict, Verdict(honest)).startswith(wrong)
    assert attacks.outcome_of_reward(verdict, 7.0, honest).startswith(own)


def test_a_text_that_is_not_read_is_told():
    assert attacks.outcomes_of_texts(["quotes"], 0.01) == {"quotes": "WORKED: it is not read in 0.01 s"}
    outcomes = attacks.outcomes_of_texts(["quotes", "none of them", "spaces"])
    assert outcomes["quotes"].startswith("refused")
    assert "KeyError" in outcomes["none of them"] == outcomes["spaces"]
