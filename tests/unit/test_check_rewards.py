"""The command that tries the jail of this machine."""

import json

import pytest

from openrlhf_shear.cli import check_rewards


def test_escapes(needs_jail, capsys, tmp_path):
    check_rewards.main(["escapes", "--output", str(tmp_path / "escapes.json")])
    told = capsys.readouterr().out
    assert "it holds" in told and "seccomp: socket" in told and "WORKED" not in told, told
    written = json.loads((tmp_path / "escapes.json").read_text())
    assert written["holds"] and written["rows"][0].keys() == {"escape", "refused by", "what happened"}
    assert len(written["jail"]) > 5


def test_an_escape_that_works_is_told_and_fails(needs_jail, capsys, monkeypatch):
    monkeypatch.setattr(check_rewards, "try_escapes", lambda jail: [("TCP", "seccomp", "WORKED: <socket>")])
    with pytest.raises(SystemExit) as ended:
        check_rewards.main(["escapes"])
    assert ended.value.code == 1 and "IT DOES NOT HOLD" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["gold", "--data-dir", "a folder"], ["malformed"]])
def test_what_checks_the_graders_is_elsewhere(capsys, words):
    with pytest.raises(SystemExit) as ended:
        check_rewards.main(words)
    told = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and f"python benchmarks/check_rewards.py {words[0]}" in told
    assert told.endswith("'a folder'") == (len(words) > 1)
