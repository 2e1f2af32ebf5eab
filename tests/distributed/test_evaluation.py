"""The evaluation command with real vLLM engines, killed halfway; benchmarks in training, and the best checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

ROOT_FILES = ("results.json", "generations.jsonl")


@pytest.fixture
def heldout(tmp_path):
    from openrlhf_shear.arithmetic.problems import write_dataset

    return write_dataset(tmp_path / "heldout.jsonl", 24, seed=1, split="heldout")


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {"RAY_ADDRESS": "local"}


def command(policy, heldout, output, *words) -> list[str]:
    line = [
        *(sys.executable, "-m", "openrlhf_shear.cli.evaluate", "--model", policy, "--device", "cpu", "--enforce-eager"),
        *("--benchmarks", heldout, "--task", policy.parents[1] / "rewards" / "arithmetic.py", "--label-key", "answer"),
        *("--k", "4", "--temperature", "1.0", "--max-new-tokens", "150", "--prompt-format", "plain", "--seed", "5"),
        *("--output", output, *words),
    ]
    return [str(word) for word in line]


def test_a_killed_evaluation_goes_on_and_equals_an_undisturbed_one(policy, heldout, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = subprocess.run(command(policy, heldout, whole), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((whole / "results.json").read_text())["benchmarks"]["custom-heldout"]
    assert found["graded"] == 24 * 4 and 0.2 < found["avg@4"] < 0.8

    killed = subprocess.Popen(command(policy, heldout, parts), env=environment(), start_new_session=True)
    log = parts / "samples.jsonl"
    for _ in range(3000):
        if log.exists() and log.read_bytes().count(b"\n") >= 10:
            break
        assert killed.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = log.read_bytes().count(b"\n")
    assert 10 <= before < 96, "it was killed halfway"
    assert not (parts / "results.json").exists()

    done = subprocess.run(command(policy, heldout, parts), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{before} completions are there already" in done.stdout
    for name in ROOT_FILES:
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


def test_engines_that_die_or_raise_lose_no_completion_silently(cluster, tokenizer):
    """Stand-ins with the engines' method: one dies at its third request, or only its core; one raises for a prompt."""
    from vllm.v1.engine.exceptions import EngineDeadError

    from openrlhf_shear.fork.engine_sampler import EngineSampler
    from openrlhf_shear.sampling.records import Question
    from openrlhf_shear.sampling.sampler import Failure, Output, Sampling, requests

    @cluster.remote(num_cpus=0)
    class Engine:
        def __init__(self, dies=None):
            self.dies, self.asked = dies, 0

        async def complete(self, prompt, sampling):
            self.asked += 1
            if self.dies and self.asked > 2:
                if self.dies == "core":
                    raise EngineDeadError()
                os._exit(1)
            if tokenizer.decode(prompt) == "99":
                raise KeyError("no such prompt")
            return [*prompt, sampling["seed"] % 10], sampling["max_tokens"] == 3

    texts = [*(str(10 + i) for i in range(20)), "99", "1" * 300]
    questions = [Question("b", str(i), [{"role": "user", "content": text}], "") for i, text in enumerate(texts)]
    wanted = requests(questions, {"b": 1}, seed=0)

    def sampled(engines):
        sampler = EngineSampler(engines, tokenizer, Sampling(max_new_tokens=3), chat=False, room=100)
        return {request.question.id: output for request, output in sampler(wanted)}

    found = sampled([Engine.remote(), Engine.remote("actor"), Engine.remote("core")])
    assert len(found) == 22
    for i, request in enumerate(wanted[:20]):
        tokens = [*tokenizer(texts[i])["input_ids"], request.seed % 10]
        expected = tokenizer.decode(tokens, skip_special_tokens=True)
        assert found[str(i)] == Output(expected, len(texts[i]) + 1, True, tokens)
    assert found["20"] == Failure("the engine raised KeyError")
    assert found["21"] == Failure("the prompt leaves no room for an answer")
    lost = sampled([Engine.remote("actor")])
    assert {str(output) for output in lost.values() if isinstance(output, Failure)} >= {
        *(str(Failure("no engine is left")), str(Failure("the prompt leaves no room for an answer"))),
    }
    assert len(lost) == 22 and sum(isinstance(output, Output) for output in lost.values()) <= 2


def test_benchmarks_during_training_choose_the_best_checkpoint_also_after_a_resume(policy, train, heldout, tmp_path):
    reward = policy.parents[1] / "rewards" / "arithmetic.py"
    words = ("--reward.remote_url", reward, "--eval.suite", heldout, "--eval.k", "2", "--eval.steps", "1")
    words += (
        "--algo.advantage.estimator",
        "uniform",
        "--eval.temperature",
        "1.0",
        "--eval.before_train",
        "--ckpt.save_steps",
        "1",
        "--ckpt.load_enable",
    )
    _, scalars = train(*words)
    assert scalars["train/ledger/trained"] == [32.0, 64.0]
    assert scalars["train/uniform/weight_min"] == scalars["train/uniform/weight_max"] == [1.0, 1.0]
    assert all(0 < value < 1 for value in scalars["train/uniform/credit_share"])
    scores = scalars["eval/suite/average"]
    assert scores == scalars["eval/suite/custom-heldout"] and len(scores) == 3 and all(0 < s < 1 for s in scores)
    best = max(range(1, 3), key=lambda step: scores[step])
    kept = tmp_path / "ckpt" / "_actor"
    assert {path.name for path in kept.glob("best*")} == {f"best_global_step{best}"}
    results = tmp_path / "ckpt" / "evaluations" / f"step{best}" / "results.json"
    assert json.loads(results.read_text())["average"]["arithmetic"] == pytest.approx(scores[best])

    # as if it had been killed in its last evaluation, with one completion left to sample
    last = tmp_path / "ckpt" / "evaluations" / "step2"
    (last / "results.json").unlink()
    log = (last / "samples.jsonl").read_text().splitlines(keepends=True)
    (last / "samples.jsonl").write_text("".join(log[:-1]))
    said, scalars = train(*words, problems=24, again=True)
    later = scalars["eval/suite/average"]
    assert f"{len(log) - 1} completions are there already, 1 are to be sampled" in said
    assert len(later) == 2, "step 2 is finished, step 3 follows; the others are not evaluated again"
    assert later[0] == pytest.approx(scores[2], abs=1.5 / len(log))
    best = max((1, 2, 3), key=lambda step: (scores[1], later[0], later[1])[step - 1])
    assert {path.name for path in kept.glob("best*")} == {f"best_global_step{best}"}
    assert (last / "questions.jsonl").samefile(results.parent / "questions.jsonl"), "one copy for all steps"
