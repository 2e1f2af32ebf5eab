"""What cannot work is refused before anything starts, in a line that says what is wrong, what it got and what helps."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from cases import table
from command_lines import ROOT, files_here, refusal

from openrlhf_shear.cli.train_ppo_ray import main as train
from openrlhf_shear.config.refusal import Findings
from openrlhf_shear.config.refusal import refusal as refusal_of
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.lab import placement
from openrlhf_shear.rollouts.record import write_rollouts
from openrlhf_shear.tasks.arithmetic import arithmetic

USUAL = {  # beside those of training
    "evaluate": {"model": "model", "output": "out"},
    "diagnose": {"model": "model", "dataset": "prompts.jsonl", "output": "out", "task": arithmetic.__file__}
    | {"prompt-key": "question", "label-key": "answer"},
    "lab": {"rules": "uniform", "output": "out"},
    "prepare_data": {"source": "gsm8k", "input": "prompts.jsonl", "output": "train.jsonl"},
    **{"report": {"output": "out"}, "rollout_page": {"output": "page.html"}},
    "serve_reward": {"reward": "math"},
}


def cases() -> list[tuple[str, str, str]]:
    text = (ROOT / "tests" / "data" / "refused_lines.txt").read_text().replace("\n    ", " ")
    rows = [line.split(" => ") for line in text.splitlines() if line and not line.startswith("#")]
    return [(*line.partition(" ")[::2], said) for line, said in rows]


FILES = table("preflight", "REFUSED")  # by name, what is wrong with them


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(("command", "words", "said"), cases())
def test_refused(job, capsys, monkeypatch, command, words, said):
    for name in FILES.keys() & set(words.replace(",", " ").split()):
        Path(name).write_bytes(FILES[name].encode("latin-1"))
    Path("rewards.jsonl").write_text('{"task": "x"}')
    write_rollouts(Path("empty.parquet"), [], {})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv(REWARD_TOKEN, "a-token_of-tests.0123")
    monkeypatch.setattr(placement, "known_rollouts", lambda *of: pytest.fail("sampled"))
    line = job(words, USUAL.get(command))
    before = files_here()
    told = refusal(capsys, line, import_module(f"openrlhf_shear.cli.{command}").main)
    assert all(part in told for part in said.split(" | ")), told
    assert "\n" not in told, told
    assert files_here() == before


WRONG = "--actor.adam.lr -1 --shear.window 0 --no.flag 3 --shear.pool mxa --rollout.batch_size many --train.seed -4"
FLAGS = ["actor.adam.lr", "no.flag", "rollout.batch_size", "shear.pool", "shear.window", "train.seed"]


def test_all_that_is_wrong_is_told_at_once_by_flag(job, capsys):
    told = refusal(capsys, job(WRONG)).splitlines()
    assert told[0].endswith("error: 6 things are wrong:")
    assert [re.match(r"  ([\w.]+)", line)[1] for line in told[1:]] == FLAGS
    assert told[1] == "  actor.adam.lr must be at least 0: got -1.0; use 0, or a positive number"


def test_no_more_than_twenty_are_shown(job, capsys):
    told = refusal(capsys, job(" ".join(f"--no.flag{number} 1" for number in range(25)))).splitlines()
    assert told[0].endswith("25 things are wrong:") and len(told) == 22 and told[-1] == "  and 5 more"


@pytest.mark.parametrize("way", ["--json", "--config json.yaml"])
@pytest.mark.parametrize("words", [WRONG, ""])
def test_a_dry_run_gives_the_list_as_json(job, capsys, words, way):
    Path("json.yaml").write_text("json: true")
    with pytest.raises(SystemExit) as stopped:
        train(job(f"{words} {way}"))
    said = json.loads(capsys.readouterr().out)
    assert stopped.value.code == (2 if words else 0) and said["ok"] == (not words)
    assert [each["flag"] for each in said["refusals"]] == (FLAGS if words else [])
    assert any("as response; labels are str" in each["text"] for each in said["told"]), "as of any dry run"
    if words:
        seed = {"flag": "train.seed", "problem": "must be from 0 to 4294967295", "got": "-4", "use": "e.g. 42"}
        assert seed in said["refusals"]


def test_an_error_after_a_refusal_is_a_consequence_and_else_shown():
    findings = Findings()
    with pytest.raises(ZeroDivisionError):
        findings.take(1 / 0 for _ in (1,))
    findings.take(iter([refusal_of("train.batch_size", "must be at least 1", 0, "e.g. 8")]))
    findings.take(1 / 0 for _ in (1,))
    assert findings.shown() == "train.batch_size must be at least 1: got 0; use e.g. 8"


def test_secrets_are_hidden_in_refusals():
    assert "tokentoken" not in str(refusal_of("reward.remote_url", "is no reward", "http://a:tokentoken@b/", "math"))
