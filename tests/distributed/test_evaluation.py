"""The evaluation command with real vLLM engines, killed halfway."""

import json
import os
import shutil
import sys

import pytest

from .conftest import ARITHMETIC_REWARD
from .processes import wait_until

ROOT_FILES = ("results.json", "generations.jsonl")


@pytest.fixture
def heldout(tmp_path):
    from openrlhf_shear.tasks.arithmetic.problems import write_dataset

    return write_dataset(tmp_path / "heldout.jsonl", 24, seed=1, split="heldout")


def command(policy, heldout, output) -> list:
    return [
        *(sys.executable, "-m", "openrlhf_shear.cli.evaluate", "--model", policy, "--device", "cpu", "--enforce-eager"),
        *("--benchmarks", heldout, "--task", ARITHMETIC_REWARD, "--label-key", "answer", "--output", output),
        *("--k", "4", "--temperature", "1.0", "--max-new-tokens", "150", "--prompt-format", "plain", "--seed", "5"),
    ]


@pytest.mark.long
def test_an_evaluation_goes_on_from_what_is_on_disk_and_equals_an_undisturbed_one(policy, heldout, tmp_path, jobs):
    """A copy of the folder, made halfway, stands for the folder after a kill."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    process, log = jobs.start(*command(policy, heldout, whole)), whole / "samples.jsonl"

    def sampled_some() -> bool:
        assert process.poll() is None, "it ended before it could be copied"
        return log.exists() and log.read_bytes().count(b"\n") >= 10

    wait_until(sampled_some, "ten completions are there", pause=0.05)
    shutil.copytree(whole, parts)
    before = (parts / "samples.jsonl").read_bytes().count(b"\n")
    assert 10 <= before < 96 and not (parts / "results.json").exists(), "it was copied halfway"
    jobs.finish(process)
    results = json.loads((whole / "results.json").read_text())["benchmarks"]["custom-heldout"]
    assert results["graded"] == 24 * 4 and 0.2 < results["avg@4"] < 0.8

    done = jobs.run(*command(policy, heldout, parts))
    assert done.code == 0 and f"{before} completions are there already" in done.log
    for name in ROOT_FILES:
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


def test_engines_that_die_or_raise_lose_no_completion_silently(cluster, tokenizer):
    """Stand-ins with the engines' method: one dies at its third request, or only its core; one raises for a prompt."""
    from vllm.v1.engine.exceptions import EngineDeadError

    from openrlhf_shear.data.prompts import PromptFormat
    from openrlhf_shear.rewards.verdict import Failure, Verdict
    from openrlhf_shear.sampling.records import Question
    from openrlhf_shear.sampling.sampler import Output, Sampling, requests
    from openrlhf_shear.train.sampling.engine_sampler import EngineSampler

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
    questions.append(Question("b", "22", questions[0].messages, "", prefix=tokenizer("12345")["input_ids"]))
    wanted = requests(questions, {"b": 1}, seed=0)

    def sampled(engines):
        sampler = EngineSampler(engines, tokenizer, Sampling(max_new_tokens=3), PromptFormat(chat=False), room=100)
        return {request.question.id: output for request, output in sampler(wanted)}

    outputs = sampled([Engine.remote(), Engine.remote("actor"), Engine.remote("core")])
    assert len(outputs) == 23
    assert outputs["22"].truncated and outputs["22"].response.startswith("12345")  # all 3 tokens, behind a prefix of 5
    for i, request in enumerate(wanted[:20]):
        tokens = [*tokenizer(texts[i])["input_ids"], request.seed % 10]
        expected = tokenizer.decode(tokens, skip_special_tokens=True)
        assert outputs[str(i)] == Output(expected, len(texts[i]) + 1, True, tokens)
    assert outputs["20"] == Verdict(None, failure=Failure.ENGINE_RAISED, which="KeyError")
    assert outputs["21"] == Verdict(None, failure=Failure.NO_ROOM)
    lost = sampled([Engine.remote("actor")])
    assert {output.failure for output in lost.values() if isinstance(output, Verdict)} >= {
        *(Failure.NO_ENGINE, Failure.NO_ROOM)
    }
    assert len(lost) == 23 and sum(isinstance(output, Output) for output in lost.values()) <= 2
