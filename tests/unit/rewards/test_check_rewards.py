"""The command that tries this machine's jail and the attacks on rewards."""

import json
from contextlib import nullcontext

import pytest

from openrlhf_shear.cli import check_rewards
from openrlhf_shear.rewards import attacks
from openrlhf_shear.rewards.verdict import Verdict, of_numbers


@pytest.mark.parametrize(("happened", "ends"), [("refused", None), ("WORKED: <socket>", 1)])
def test_escapes(needs_jail, capsys, monkeypatch, tmp_path, happened, ends):
    """Made up: `tests/unit/rewards/test_jail.py` tries them all."""
    monkeypatch.setattr(check_rewards, "try_escapes", lambda jail: [("TCP", "seccomp: socket", happened)])
    words = ["escapes", "--output", str(tmp_path / "escapes.json")]
    with nullcontext() if ends is None else pytest.raises(SystemExit, match=str(ends)):
        check_rewards.main(words)
    told = capsys.readouterr().out
    assert "seccomp: socket" in told and ("IT DOES NOT HOLD" if ends else "it holds") in told
    written = json.loads((tmp_path / "escapes.json").read_text())
    assert written["holds"] == (ends is None) and len(written["jail"]) > 5
    assert written["rows"][0].keys() == {"escape", "refused by", "what happened"}


def test_attacks(needs_jail, capsys, tmp_path):
    check_rewards.main(["attacks", "--output", str(tmp_path / "attacks.json")])
    told = capsys.readouterr().out
    assert f"it holds: {attacks.COUNT} tried, all refused" in told, told
    rows = json.loads((tmp_path / "attacks.json").read_text())["rows"]
    assert len({row["attack"] for row in rows}) == attacks.COUNT > 50


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
    assert attacks.outcome_of_text("quotes", seconds=0.01) == "WORKED: it is not read in 0.01 s"
    assert "KeyError" in attacks.outcome_of_text("none of them")


@pytest.mark.parametrize("words", [["gold", "--data-dir", "a folder"], ["malformed"]])
def test_what_checks_the_graders_is_elsewhere(capsys, words):
    with pytest.raises(SystemExit) as ended:
        check_rewards.main(words)
    told = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and f"python benchmarks/check_rewards.py {words[0]}" in told
    assert told.endswith("'a folder'") == (len(words) > 1)
