"""A response cut into steps, on policies' tokens of several kinds."""

import functools
import math
import re
from pathlib import Path
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from cases import cases
from hypothesis import given, settings
from hypothesis.strategies import booleans, lists, sampled_from
from openrlhf.trainer.ppo_utils.experience import Experience
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from openrlhf_shear.config import PrmConfig
from openrlhf_shear.credit.checks import checked_credits
from openrlhf_shear.credit.prm.steps import Steps, StepSplitter
from openrlhf_shear.credit.rule import RolloutGroup
from openrlhf_shear.credit.rules.prm_reshape import PrmReshapeRule
from openrlhf_shear.credit.rules.pure import PureRule
from openrlhf_shear.train.experience.prm import StepScorer

ROOT = Path(__file__).parents[3]
EOS = "<eos>"
QWEN_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"


@functools.cache
def policy_tokenizer(words: str, corpus: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE; without a corpus one token a byte."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(words), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = 300 if corpus else 0
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([corpus] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


def policies() -> tuple[PreTrainedTokenizerFast, ...]:
    """Blank lines are tokens; one token a byte; blank lines are inside tokens."""
    blanks = policy_tokenizer(QWEN_WORDS, "So x is one.\n\nThen two\n\nAnd so on.\n\n\n")
    return blanks, policy_tokenizer(QWEN_WORDS, ""), policy_tokenizer(r"\s+", "So\n\n  then\n\n  x\n\n\n y")


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def split(tokenizer, text: str, *separator: str) -> Steps:
    return StepSplitter(tokenizer, *separator).split(ids_of(tokenizer, text))


def parts(ids: list[int], ends: tuple[int, ...]) -> list[list[int]]:
    starts = (0, *(end + 1 for end in ends))
    return [ids[start : end + 1] for start, end in zip(starts, ends, strict=False)]


@pytest.mark.parametrize(*cases("credit", "test_steps_end_with_their_blank_line"))
def test_steps_end_with_their_blank_line(text, texts, ends):
    assert split(policies()[1], text) == Steps(tuple(texts), tuple(ends))


def test_a_step_ends_with_the_token_that_holds_the_last_line_break():
    blanks, in_bytes, inside = policies()
    for tokenizer, text, tokens in (
        (blanks, f"So x.\n\nThen\n\n\nAnd{EOS}", [["So", " x", ".\n\n"], ["Then", "\n\n", "\n"], ["And", EOS]]),
        (in_bytes, "x\n\ny", [["x", "\n", "\n"], ["y"]]),
        (inside, "x\n\n  So", [["x", "\n\n  "], ["So"]]),
    ):
        ids, ends = ids_of(tokenizer, text), split(tokenizer, text).ends
        pieces = [[tokenizer.decode([token]) for token in part] for part in parts(ids, ends)]
        assert pieces == tokens


def test_separators_of_the_user():
    policy = AutoTokenizer.from_pretrained(ROOT / "openrlhf_shear" / "tasks" / "arithmetic" / "shipped_policy")
    assert split(policy, f"1+2=3;3+4=7;;7{EOS}", ";") == Steps(("1+2=3;", "3+4=7;;", "7"), (5, 12, 14))
    assert split(policy, "12.3.4;", ".") == Steps(("12.", "3.", "4;"), (2, 4, 6))
    assert split(policy, "1+2=3;7").texts == ("1+2=3;7",)
    assert split(policies()[1], "a -> b --> c", "->").ends == (3, 9, 11)


@settings(max_examples=80)
@given(
    words=lists(sampled_from(["\n", "\n\n", "\n\n\n", " ", "  ", ".", "So", "x = 1", "then", "é", "日本", "🙂"])),
    ended=booleans(),
)
def test_steps_partition_any_response_into_the_texts_between_blank_lines(words, ended):
    text = "".join(words)
    expected = tuple(piece.strip() for piece in re.split(r"\n{2,}", text) if piece.strip())
    for tokenizer in policies():
        ids = ids_of(tokenizer, text) + [tokenizer.eos_token_id] * ended
        steps = StepSplitter(tokenizer).split(ids)
        assert steps.texts == expected
        assert list(steps.ends) == sorted(set(steps.ends)) and len(steps.ends) == len(expected)
        assert not expected or steps.ends[-1] == len(ids) - 1
        decoded = [tokenizer.decode(part, skip_special_tokens=True) for part in parts(ids, steps.ends)]
        assert tuple(piece.strip() for piece in decoded) == expected


@pytest.mark.parametrize("text", [f"a\n\nb{EOS}", "x\n\nb\n\nc"])
def test_every_step_has_text_even_where_tokens_hold_text_behind_a_blank_line(text):
    tokenizer = policy_tokenizer("nowhere", "a\n\nb")
    assert any(re.search("ĊĊb|Ċb", token) for token in tokenizer.get_vocab())
    assert all(split(tokenizer, text).texts)


def test_steps_from_the_first_nan_on_count_as_not_scored():
    """One of two rollouts has a NaN at its second step; PURE and prm_reshape go on without it."""
    tokenizer = policies()[0]
    ids = ids_of(tokenizer, "So x is one.\n\nThen two\n\nAnd so on.")
    samples = Experience(
        sequences=torch.tensor([ids, ids]), action_mask=torch.ones(2, len(ids)), prompts=["1 + 1?", "1 + 1?"]
    )
    model = SimpleNamespace(score=lambda problems, steps: [[0.5, math.nan, 0.25], [0.5, 0.75, 0.25]])
    scorer = StepScorer(model, PrmConfig(), tokenizer, {})
    (scores,) = scorer([samples])
    assert [rollout.scores.tolist() for rollout in scores] == [[0.5], [0.5, 0.75, 0.25]]
    metrics = scorer.metrics
    counts = [metrics[f"prm/{name}"] for name in ("nonfinite_rollouts", "truncated_steps", "steps_per_rollout")]
    assert counts == [1, 0, 3] and metrics["prm/score_min"] == 0.25
    group = RolloutGroup(0, (1.0, 0.0), (True, False), (len(ids), len(ids)), prm_scores=scores)
    for rule in (PureRule(), PrmReshapeRule()):
        checked_credits(rule, [group])  # which refuses NaN
