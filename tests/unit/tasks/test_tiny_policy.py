"""The arithmetic task's small policy: the shipped one, its sampling and texts, and the warm-up at other sizes."""

import json
import random
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_shear.cli import warm_up as command_line
from openrlhf_shear.tasks.arithmetic import warm_up as module
from openrlhf_shear.tasks.arithmetic.policy import MAX_POSITIONS, build_tokenizer
from openrlhf_shear.tasks.arithmetic.problems import LETTERS, POLICY_DIR, alphabet, make_problems
from openrlhf_shear.tasks.arithmetic.sampling import Accuracy, response_text, sample_ids, sampled_checks
from openrlhf_shear.tasks.arithmetic.solutions import (
    MAX_RESPONSE_TOKENS,
    SolutionCheck,
    max_response_tokens,
    write_solution,
)
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask
from openrlhf_shear.tasks.arithmetic.warm_up import IGNORED, WarmUpSettings, encode_batch, warm_up
from openrlhf_shear.tasks.smollm2 import word_problem

PROMPT = "37a+45bx7c-12d+08ex3f-31g+77="
SOLUTION = "a37+45=82;~b7x82=74;.,c-12+74=62;d62+08=70;~e70x3=10;f-31+10=79;_g79+77=56;#56"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TINY = {"max_steps": 2, "batch_size": 2, "evaluation_problems": 2, "final_problems": 2}


@pytest.fixture(scope="module")
def policy():
    tokenizer = AutoTokenizer.from_pretrained(POLICY_DIR)
    model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
    return model.eval(), tokenizer


@pytest.mark.parametrize("operations", [7, 12])
def test_tokenizer_makes_one_token_a_character_and_decodes_exactly(policy, operations):
    tokenizer, rng = policy[1] if operations == 7 else build_tokenizer(operations), random.Random(0)
    for problem in make_problems(40, seed=11, operations=operations):
        text = problem.prompt + write_solution(problem, rng)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
        assert tokenizer(text)["input_ids"] == ids and response_text(tokenizer, ids) == text
        for skipped, end in ((False, "<eos>"), (True, "")):
            assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=skipped) == text + end
    for garbage in ("", "====", "#" * 50, "=;#~.,_-+x" * 5, "0" * 100, "a-a-a", LETTERS[:operations]):
        assert tokenizer.decode(tokenizer(garbage, add_special_tokens=False)["input_ids"]) == garbage
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3


def test_shipped_policy_is_small_bfloat16_and_documented(policy):
    model, tokenizer = policy
    assert len(tokenizer) == model.config.vocab_size
    assert 0.5e6 < model.num_parameters() < 1.2e6
    assert sum(f.stat().st_size for f in POLICY_DIR.iterdir()) < 3e6
    assert model.config.model_type == "qwen2"
    assert json.loads((POLICY_DIR / "config.json").read_text())["dtype"] == "bfloat16"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert "warm_up arithmetic" in (POLICY_DIR / "README.md").read_text()


def test_shipped_policy_is_right_about_as_often_as_its_readme_says(policy):
    checks = sampled_checks(*policy, ArithmeticTask(), make_problems(64, 21, "heldout"), seed=0)
    accuracy = Accuracy.of(checks)
    assert 0.2 <= accuracy.correct <= 0.65
    claimed = float(re.search(r"\*\*([0-9.]+)% right", (POLICY_DIR / "README.md").read_text())[1]) / 100
    # Four standard errors of 64 draws.
    assert abs(accuracy.correct - claimed) < 4 * (claimed * (1 - claimed) / 64) ** 0.5


def test_warm_up_trains_on_response_tokens_only_and_is_reproducible():
    tokenizer = build_tokenizer()
    input_ids, labels = encode_batch(tokenizer, [PROMPT, PROMPT], [SOLUTION, "a37"])
    assert input_ids.shape == labels.shape == (2, len(PROMPT) + len(SOLUTION) + 1)
    for row, response in zip(range(2), (SOLUTION, "a37"), strict=True):
        kept = labels[row][labels[row] != IGNORED]
        assert tokenizer.decode(kept) == response + "<eos>"
        assert (labels[row] != IGNORED).nonzero()[0].item() == len(PROMPT)

    settings = WarmUpSettings(seed=5, max_steps=3, batch_size=4, evaluation_problems=4, final_problems=4)
    with torch.random.fork_rng(devices=[]):
        first = warm_up(settings).model.state_dict()
        torch.rand(7)  # the global random state must not matter
        second = warm_up(settings).model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_default_tokenizer_is_the_shipped_one(policy):
    assert build_tokenizer().get_vocab() == build_tokenizer(7).get_vocab() == policy[1].get_vocab()
    assert len(build_tokenizer(3)) == 3 + len(alphabet(3))


def test_every_setting_fits_into_the_model():
    prompt = make_problems(1, seed=0, operations=len(LETTERS))[0].prompt
    longest_prompt = len(prompt) + sum(sign == "x" for sign in prompt)
    assert longest_prompt + max_response_tokens(len(LETTERS)) <= MAX_POSITIONS


def test_sampled_ids_end_at_the_first_eos_and_read_as_the_sampled_texts(policy):
    model, tokenizer = policy
    prompts = [problem.prompt for problem in make_problems(5, seed=2)]
    before = torch.get_rng_state()
    ids = sample_ids(model, tokenizer, prompts, seed=3, batch_size=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(ids) == 5 and len({len(row) for row in ids}) > 1
    for row in ids:
        assert row.dtype == torch.int64 and row.ndim == 1 and len(row) <= MAX_RESPONSE_TOKENS
        assert (row == tokenizer.eos_token_id).nonzero().flatten().tolist() == [len(row) - 1]
    texts = [response_text(tokenizer, row) for row in ids]
    assert texts == tokenizer.batch_decode(ids, skip_special_tokens=True)
    short = sample_ids(model, tokenizer, prompts, seed=4, max_new_tokens=40)
    assert [response_text(tokenizer, row) for row in short] != [text[:40] for text in texts]


def test_a_response_without_eos_has_all_its_tokens(policy):
    model, tokenizer = policy
    prompts = [problem.prompt for problem in make_problems(3, seed=2)]
    ids = sample_ids(model, tokenizer, prompts, seed=3, max_new_tokens=5)
    assert [len(row) for row in ids] == [5, 5, 5]
    assert all(tokenizer.eos_token_id not in row for row in ids)
    # The copies hold their own tokens only, not the batch they come from.
    assert all(row.untyped_storage().nbytes() == 5 * 8 for row in ids)
    assert sample_ids(model, tokenizer, [], seed=3) == []


def test_an_index_into_the_response_text_is_a_token_index():
    tokenizer = build_tokenizer()
    pad, eos, unk = tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
    a, b = (tokenizer.convert_tokens_to_ids(letter) for letter in "ab")
    assert response_text(tokenizer, [a, pad, b, eos]) == f"a{REPLACEMENT}b"
    assert response_text(tokenizer, torch.tensor([unk, a, eos, b])) == f"{REPLACEMENT}a{REPLACEMENT}b"
    assert response_text(tokenizer, torch.tensor([a, pad])) == f"a{REPLACEMENT}"
    assert response_text(tokenizer, [eos]) == response_text(tokenizer, []) == ""
    every = torch.arange(len(tokenizer))
    text = response_text(tokenizer, every)
    assert len(text) == len(every)
    assert [tokenizer.convert_ids_to_tokens(i) for i in range(3, len(every))] == list(text[3:])


@pytest.mark.parametrize("operations", [2, 10])
def test_warm_up_uses_its_operations_everywhere(operations, monkeypatch):
    seen, measured = [], []

    def recorded(tokenizer, prompts, responses, encode=module.encode_batch):
        seen.extend(zip(prompts, responses, strict=True))
        return encode(tokenizer, prompts, responses)

    def sampled(model, tokenizer, task, problems, seed):
        measured.append(({len(problem.operations) for problem in problems}, task.budget))
        return [SolutionCheck(False, 0)] * len(problems)

    monkeypatch.setattr(module, "encode_batch", recorded)
    monkeypatch.setattr(module, "sampled_checks", sampled)
    monkeypatch.setattr(module, "MAYBE_RIGHT", 100.0)
    settings = WarmUpSettings(**{**TINY, "max_steps": 4}, evaluate_every=4, operations=operations)
    result = warm_up(settings)
    assert len(result.tokenizer) == result.model.config.vocab_size == 3 + len(alphabet(operations))
    assert len(seen) == 8 and all(prompt.count(LETTERS[operations - 1]) == 1 for prompt, _ in seen)
    # Once to decide when to stop, once at the end.
    assert measured == [({operations}, max_response_tokens(operations))] * 2


def test_bad_settings_are_errors_that_name_the_value():
    cases = [({"operations": n}, f"operations must be from 2 to 12: got {n}") for n in (1, 13)]
    for settings, message in [*cases, ({"target_accuracy": 1.5}, "target_accuracy"), ({"max_steps": 0}, "max_steps")]:
        with pytest.raises(ValueError, match=message):
            WarmUpSettings(**settings)


def test_the_folder_says_how_it_was_made(tmp_path, monkeypatch):
    def quick(settings):
        return warm_up(WarmUpSettings(**TINY, operations=settings.operations))

    monkeypatch.setattr(module, "warm_up", quick)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    for flags in ([], ["--operations", "2"]):
        with pytest.raises(SystemExit, match="stayed under"):
            command_line.main(["arithmetic", "--out", str(tmp_path), *flags])
        command = (tmp_path / "README.md").read_text().partition("warm_up arithmetic ")[2].partition("\n")[0]
        assert command == " ".join(["--out DIR --seed 0 --target-accuracy 0.4 --threads 1", *flags])


def test_drawn_word_problems_are_those_of_earlier_versions():
    """`make run-smollm2` trains on these."""
    assert word_problem(random.Random(0)) == {
        "question": "A pack of apples costs 6 dollars. Grace buys 9 packs and Jonas buys 8 packs. How many dollars do "
        "they spend together?",
        "answer": "Together they buy 9 + 8 = 17 packs, which cost 6 * 17 = 102 dollars.\n#### 102",
    }
    for row in (word_problem(random.Random(seed), easy) for seed in range(60) for easy in (True, False)):
        solution, _, answer = row["answer"].partition("\n#### ")
        assert re.findall(r"[0-9]+", solution)[-1] == answer
        for left, right in re.findall(r"([0-9]+ [-+*] [0-9]+) = ([0-9]+)", solution):
            assert eval(left) == int(right)
