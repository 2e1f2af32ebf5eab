"""The arithmetic task's small policy: its sampling, its texts and the warm-up at other sizes of the task."""

import random

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from openrlhf_shear.arithmetic.policy import (  # noqa: E402
    MAX_FILLERS,
    MAX_POSITIONS,
    WarmUpSettings,
    build_tokenizer,
    warm_up,
)
from openrlhf_shear.arithmetic.problems import (  # noqa: E402
    LETTERS,
    MAX_RESPONSE_TOKENS,
    POLICY_DIR,
    alphabet,
    make_problems,
    max_response_tokens,
    write_solution,
)
from openrlhf_shear.arithmetic.sampling import response_text, sample_ids, sample_responses  # noqa: E402
from openrlhf_shear.cli import warm_up_arithmetic  # noqa: E402

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TINY = {"max_steps": 2, "batch_size": 2, "evaluation_problems": 2, "final_problems": 2}


@pytest.fixture(scope="module")
def policy():
    tokenizer = transformers.AutoTokenizer.from_pretrained(POLICY_DIR)
    model = transformers.AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
    return model.eval(), tokenizer


def test_twelve_operations_have_their_letters_as_tokens():
    tokenizer, rng = build_tokenizer(12), random.Random(0)
    for problem in make_problems(20, seed=1, operations=12):
        text = problem.prompt + write_solution(problem, rng, fillers=8)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(ids) == len(text) and tokenizer.decode(ids) == response_text(tokenizer, ids) == text
    assert tokenizer.decode(tokenizer("hijkl", add_special_tokens=False)["input_ids"]) == "hijkl"


def test_the_default_tokenizer_is_the_shipped_one(policy):
    assert build_tokenizer().get_vocab() == build_tokenizer(7).get_vocab() == policy[1].get_vocab()
    assert len(build_tokenizer(3)) == 3 + len(alphabet(3))


def test_every_setting_fits_into_the_model():
    for operations in range(1, len(LETTERS) + 1):
        prompt = make_problems(1, seed=0, operations=operations)[0].prompt
        longest_prompt = len(prompt) + sum(sign == "x" for sign in prompt)
        for fillers in range(MAX_FILLERS + 1):
            assert longest_prompt + max_response_tokens(operations, fillers) <= MAX_POSITIONS


def test_sampled_ids_end_at_the_first_eos_and_read_as_the_sampled_texts(policy):
    model, tokenizer = policy
    prompts = [problem.prompt for problem in make_problems(5, seed=2)]
    before = torch.get_rng_state()
    ids = sample_ids(model, tokenizer, prompts, seed=3, batch_size=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(ids) == 5 and len({len(row) for row in ids}) > 1
    for row in ids:
        assert row.dtype == torch.int64 and row.ndim == 1 and len(row) <= MAX_RESPONSE_TOKENS
        ends = (row == tokenizer.eos_token_id).nonzero().flatten().tolist()
        assert ends == [len(row) - 1]
    texts = sample_responses(model, tokenizer, prompts, seed=3, batch_size=4)
    assert [response_text(tokenizer, row) for row in ids] == texts
    short = sample_responses(model, tokenizer, prompts, seed=4, max_new_tokens=40)
    assert short != [text[:40] for text in texts]


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


@pytest.mark.parametrize(("operations", "fillers"), [(1, 0), (10, 8)])
def test_warm_up_uses_its_operations_and_fillers_everywhere(operations, fillers, monkeypatch):
    from openrlhf_shear.arithmetic import policy as tiny_policy

    seen, measured = [], []

    def recorded(tokenizer, prompts, responses, encode=tiny_policy.encode_batch):
        seen.extend(zip(prompts, responses, strict=True))
        return encode(tokenizer, prompts, responses)

    def sampled(model, tokenizer, problems, seed, max_new_tokens):
        measured.append(({len(problem.operations) for problem in problems}, max_new_tokens))
        return tiny_policy.Accuracy(0.0, 0.0, len(problems))

    monkeypatch.setattr(tiny_policy, "encode_batch", recorded)
    monkeypatch.setattr(tiny_policy, "sampled_accuracy", sampled)
    monkeypatch.setattr(tiny_policy, "MAYBE_RIGHT", 100.0)
    settings = WarmUpSettings(**{**TINY, "max_steps": 4}, evaluate_every=4, operations=operations, fillers=fillers)
    result = warm_up(settings)
    assert len(result.tokenizer) == result.model.config.vocab_size == 3 + len(alphabet(operations))
    assert len(seen) == 8 and all(prompt.count(LETTERS[operations - 1]) == 1 for prompt, _ in seen)
    assert any(char in response for _, response in seen for char in "~.,_") == (fillers > 0)
    # Once to decide when to stop, once at the end.
    assert measured == [({operations}, max_response_tokens(operations, fillers))] * 2


def test_a_warm_up_longer_than_its_problems_meets_them_again(monkeypatch):
    from openrlhf_shear.arithmetic import policy as tiny_policy

    monkeypatch.setattr(tiny_policy, "MAYBE_RIGHT", 100.0)
    monkeypatch.setattr(tiny_policy, "sampled_accuracy", lambda *_: tiny_policy.Accuracy(1.0, 0.0, 2))
    monkeypatch.setattr("openrlhf_shear.arithmetic.problems._FRUITLESS_DRAWS", 20_000)
    settings = WarmUpSettings(**{**TINY, "max_steps": 15_000}, evaluate_every=4, operations=1)
    assert warm_up(settings).steps == 4


def test_bad_settings_are_errors_that_name_the_value():
    for operations in (0, 13):
        with pytest.raises(ValueError, match=f"operations must be between 1 and 12: got {operations}"):
            WarmUpSettings(operations=operations)
        with pytest.raises(ValueError, match="operations must be"):
            build_tokenizer(operations)
    for fillers in (-1, 9):
        with pytest.raises(ValueError, match=f"fillers must be between 0 and 8: got {fillers}"):
            WarmUpSettings(fillers=fillers)


def test_the_folder_says_how_it_was_made(tmp_path, monkeypatch, capsys):
    from openrlhf_shear.arithmetic import policy as tiny_policy

    def quick(settings):
        return warm_up(WarmUpSettings(**TINY, operations=settings.operations, fillers=settings.fillers))

    monkeypatch.setattr(tiny_policy, "warm_up", quick)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    for flags in ([], ["--operations", "2", "--fillers", "0"]):
        with pytest.raises(SystemExit, match="stayed under"):
            warm_up_arithmetic.main(["--out", str(tmp_path), *flags])
        command = (tmp_path / "README.md").read_text().partition("warm_up_arithmetic ")[2].partition("\n")[0]
        assert command == " ".join(["--out DIR --seed 0 --target-accuracy 0.4 --threads 1", *flags])
    with pytest.raises(SystemExit, match="2"):
        warm_up_arithmetic.main(["--out", str(tmp_path), "--operations", "13"])
    assert "operations must be between 1 and 12: got 13" in capsys.readouterr().err
