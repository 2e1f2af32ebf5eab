"""What cannot work is refused before anything starts, in a line that says what is wrong, what it got and what helps."""

from importlib import import_module
from pathlib import Path

import pytest
from command_lines import ROOT, refusal

from openrlhf_shear.arithmetic import arithmetic
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.lab import placement
from openrlhf_shear.rollouts.record import write_rollouts

USUAL = {  # beside those of training
    "evaluate": {"model": "model", "output": "out"},
    "diagnose": {"model": "model", "dataset": "prompts.jsonl", "output": "out", "task": arithmetic.__file__}
    | {"prompt-key": "question", "label-key": "answer"},
    "lab": {"rules": "uniform", "output": "out"},
    "prepare_data": {"source": "gsm8k", "input": "prompts.jsonl", "output": "train.jsonl"},
    **{"report": {"output": "out"}, "rollout_page": {"output": "page.html"}},
    **{"serve_reward": {"reward": "math"}, "warm_up_arithmetic": {"out": "out"}},
}


def cases() -> list[tuple[str, str, str]]:
    text = (ROOT / "tests" / "data" / "refused_lines.txt").read_text().replace("\n    ", " ")
    rows = [line.split(" => ") for line in text.splitlines() if line and not line.startswith("#")]
    return [(*line.partition(" ")[::2], said) for line, said in rows]


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(("command", "words", "said"), cases())
def test_refused(job, capsys, monkeypatch, command, words, said):
    Path("rewards.jsonl").write_text('{"task": "x"}')
    write_rollouts(Path("empty.parquet"), [], {})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv(REWARD_TOKEN, "a-token_of-tests.0123")
    monkeypatch.setattr(placement, "known_rollouts", lambda *of: pytest.fail("sampled"))
    line = job(words, USUAL.get(command))
    before = set(Path().rglob("*"))
    told = refusal(capsys, line, import_module(f"openrlhf_shear.cli.{command}").main)
    assert all(part in told for part in said.split(" | ")), told
    assert set(Path().rglob("*")) == before
