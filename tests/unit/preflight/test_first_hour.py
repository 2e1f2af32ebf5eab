"""Lines of a first hour, each with its answer in a line: tests/data/first_hour.txt."""

from functools import cache
from pathlib import Path

import pytest
from command_lines import ROOT, files_here, refusal

from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.data import hub, training_rows
from openrlhf_shear.preflight import models

ROW = '{"question": "1 + 1?", "answer": "2"}\n'
FILES = {
    "sharegpt.jsonl": '{"question": [{"from": "human", "value": "1 + 1?"}], "answer": "2"}\n',
    "tools.jsonl": '{"question": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "tool_calls": []}], '
    '"answer": "2"}\n',
    "contentless.jsonl": '{"question": [{"role": "user", "text": "1 + 1?"}], "answer": "2"}\n',
    "written.jsonl": '{"question": "[{\\"role\\": \\"user\\", \\"content\\": \\"1 + 1?\\"}]", "answer": "2"}\n',
    "shown.jsonl": """{"question": "[{'role': 'user', 'content': '1 + 1?'}]", "answer": "2"}\n""",
    "latin.jsonl": ROW.encode() + b'{"question": "caf\xe9", "answer": "2"}\n',
    "latin.csv": b"question,answer\ncaf\xe9,2\n",
    "nested.jsonl": '{"question": "30 + 4?", "reward_model": {"ground_truth": "34"}}\n',
    "whole.jsonl": '{"question": "90 + 7?", "answer": 97}\n',
    "semicolons.csv": "question;answer\n1 + 1?;2\n",
    "comma.jsonl": ROW.strip() + ",\n" + ROW,
    "truth.jsonl": '{"question": "Is 1 prime?", "answer": true}\n',
    "several.jsonl": '{"question": "1 + 1?", "answer": "2", "level": 1}\n',
    "unnamed.py": "def reward_func(queries, prompts, labels): return {'reward': 1.0}\n",
    "extern.py": "import no_such_package\ndef reward_func(queries, prompts, labels): return {'rewards': 1.0}\n",
    "of_verl.py": "def compute_score(data_source, solution_str, ground_truth): return 1.0\n",
    "exits.py": "import sys\ndef reward_func(queries, prompts, labels): sys.exit()\n",
    "strict.py": "def reward_func(queries, prompts, labels):\n"
    "    return {'rewards': float(queries[0].removeprefix(prompts[0]) == labels[0])}\n",
    "trl_easy.py": "def reward_func(completions, **kwargs): return [1.0]\n",
    "trl_none.py": "def right(completions, answer, **kwargs): return None\n",
    "trl_two.py": "def right(completions, **kwargs): return [1.0, 0.0]\n",
    "trl_raises.py": "def right(completions, **kwargs): return [kwargs['level']]\n",
    "trl_good.py": "def right(completions, answer, **kwargs):\n"
    "    return [float(c == a) for c, a in zip(completions, answer)]\n",
    "trl_columns.py": "def right(completions, answer, difficulty): return [0.0 * difficulty[0]]\n",
    "graded.jsonl": '{"question": "1 + 1?", "answer": "2", "difficulty": 3}\n',
    "trl_messages.py": "def right(completions, **kwargs):\n"
    "    return [float(completion[0]['content'] == '2') for completion in completions]\n",
    "trl_ids.py": "def right(completions, completion_ids): return [1.0]\n",
    "trl_async.py": "async def right(completions, **kwargs): return [1.0]\n",
    "two_trl.py": "def first(completions): return [0.0]\ndef second(completions): return [0.0]\n",
    "typed_rules.py": "from openrlhf_shear.credit import Credit, CreditRule\n"
    "class Typed(CreditRule):\n"
    "    def __init__(self, share: float = 0.5, rounds: int = 1, keep: bool = False): pass\n"
    "    def credit(self, group): return Credit([])\n"
    "class Bare(CreditRule):\n    def credit(self, group): return Credit([])\n",
    "finished/config.json": "{}",
    "finished/model.safetensors": "",
    "twice.yaml": "train:\n  seed: 1\ntrain:\n  max_epochs: 2\n",
    "nested.yaml": "train:\n  seed: 1\n  seed: 2\n",
    "dotted.yaml": "train.seed: 1\ntrain:\n  seed: 2\n",
    "latin.yaml": b"logger.wandb.run_name: caf\xe9\n",
    "grpo.yaml": "num_generations: 8\nlearning_rate: 1.0e-5\nbf16: true\n",
    "ppo_trainer.yaml": "actor_rollout_ref:\n  rollout: {n: 8}\n  actor: {use_kl_loss: true}\n",
    "typo.yaml": "actor:\n  learning_rate: 1.0e-6\n",
    "listed.yaml": "data.label_key: [answer, level]\n",
    "blank.yaml": "# nothing yet\n",
    "wrong.yaml": "train:\n  sed: 1\n  seed: 1\n  seed: 2\ndata.max_len: [1, 2]\n",
}


def rows() -> list[tuple[str, str, list[str]]]:
    text = (ROOT / "tests" / "data" / "first_hour.txt").read_text()
    lines = [line.split(" => ") for line in text.splitlines() if line and not line.startswith("#")]
    return [(words, *(kind_said := said.split(" | "))[:1], kind_said[1:]) for words, said in lines]


parser = cache(train_ppo_ray.build_parser)


@pytest.mark.parametrize(("words", "kind", "said"), rows())
def test_answer(job, capsys, monkeypatch, tmp_path, words, kind, said):
    monkeypatch.setattr(train_ppo_ray, "build_parser", parser)  # a third of a second each
    for module in (models.hub, training_rows):
        monkeypatch.setattr(module, "unreachable", lambda: "no network here")
    monkeypatch.syspath_prepend(tmp_path)
    line = job(words)
    for name in FILES:
        if name.split(".")[0].split("/")[0] in words:
            Path(name).parent.mkdir(exist_ok=True)
            content = FILES[name]
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = files_here()
    if kind == "refused":
        told = refusal(capsys, line)
        assert "\n" not in told or "things are wrong" in said[0], told
    else:
        assert kind == "told"
        train_ppo_ray.read(line)
        told = capsys.readouterr().err
    assert all(part in told for part in said), told
    assert files_here() == before


def test_there_are_many_and_each_is_another():
    words = [row[0] for row in rows()]
    assert len(set(words)) == len(words) >= 80


def test_a_hub_that_does_not_answer_is_said_once_without_retries(monkeypatch):
    from huggingface_hub import constants, utils

    asked = []

    class Session:
        def head(self, url, timeout):
            asked.append((url, timeout))
            raise OSError("no route")

    monkeypatch.setattr(utils, "get_session", Session)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # true where a refusal's test imported it first
    hub.unreachable.cache_clear()
    try:
        assert hub.unreachable().endswith(": no route") and hub.unreachable().startswith("https://")
    finally:
        hub.unreachable.cache_clear()
    assert len(asked) == 1 and asked[0][1] == hub.SECONDS
