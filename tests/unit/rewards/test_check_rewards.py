"""The command that tries the escapes from this machine's jail."""

import json
from contextlib import nullcontext

import pytest

from openrlhf_shear.cli import check_rewards


@pytest.mark.parametrize(("happened", "ends"), [("refused", None), ("WORKED: <socket>", 1)])
def test_escapes(needs_jail, capsys, monkeypatch, tmp_path, happened, ends):
    """Made up: `tests/unit/rewards/test_jail.py` tries them all."""
    monkeypatch.setattr(check_rewards, "try_escapes", lambda jail: [("TCP", "seccomp: socket", happened)])
    words = ["--output", str(tmp_path / "escapes.json")]
    with nullcontext() if ends is None else pytest.raises(SystemExit, match=str(ends)):
        check_rewards.main(words)
    told = capsys.readouterr().out
    assert "seccomp: socket" in told and ("IT DOES NOT HOLD" if ends else "it holds") in told
    written = json.loads((tmp_path / "escapes.json").read_text())
    assert written["holds"] == (ends is None) and len(written["jail"]) > 5
    assert written["rows"][0].keys() == {"escape", "refused by", "what happened"}
