"""Reasons and failures: a type inside, and the same texts as ever in files, metrics and answers of servers."""

import json
import pickle
import re
from pathlib import Path

import numpy
import pytest
import torch
from cases import table

from openrlhf_shear.rewards.server import answer
from openrlhf_shear.rewards.verdict import Failure, Outcome, Reason, Verdict, of_numbers, of_texts, read_reward
from openrlhf_shear.sampling.records import Completion
from openrlhf_shear.train.carriers import Accounts

DOCS = Path(__file__).parents[3] / "docs" / "rewards.md"
TEXTS = {  # of failures with a text after their own
    "raised ValueError": (Failure.RAISED, "ValueError"),
    "grader raised JailError": (Failure.GRADER_RAISED, "JailError"),
    "reward server answered 503": (Failure.SERVER_ANSWERED, "503"),
    "reward server failed with ClientError": (Failure.SERVER_RAISED, "ClientError"),
    "the engine raised KeyError": (Failure.ENGINE_RAISED, "KeyError"),
}
COMPLETION = Completion("sums", "1", 0, "", 1, False)
FOREIGN = ("our GPU is busy", "raisedValueError", "timeout after 5 s", "jail died again", "Timeout", "")


def kept(verdict: Verdict) -> dict:
    """What a file of completions has of a verdict."""
    return json.loads(json.dumps(Completion("sums", "1", 0, "", 1, False, verdict).to_json()))["verdict"]


def test_every_reason_and_failure_is_read_as_it_is_written():
    for reason in Reason:
        verdict = Verdict(False, reason)
        assert kept(verdict)["reason"] == verdict.why == reason.value and kept(verdict)["failure"] is None
        assert of_texts(**kept(verdict)) == verdict
    for failure in Failure:
        verdict = Verdict(None, failure=failure, detail="why")
        assert kept(verdict)["failure"] == verdict.why == failure.value and kept(verdict)["reason"] is None
        assert read_reward(json.loads(json.dumps(answer([verdict])))) == verdict
        assert Completion.from_json({**vars(COMPLETION), "verdict": kept(verdict)}).verdict.failure is failure
    for text, (failure, which) in TEXTS.items():
        verdict = Verdict(None, failure=failure, which=which)
        assert verdict.why == text and of_texts(None, failure=text) == verdict == of_texts(**kept(verdict))
        assert read_reward(answer([verdict])) == verdict == pickle.loads(pickle.dumps(verdict))


@pytest.mark.parametrize("text", FOREIGN)
def test_a_reason_that_is_unknown_here_keeps_its_text(text):
    """From a user's server, or from a file of another version."""
    told = read_reward({"rewards": None, "failed": [{"index": 0, "reason": text, "detail": "d"}]})
    assert (told.failure, told.why, told.reward, told.detail) == (Failure.OTHER, text or "other", None, "d")
    row = {"correct": None, "reason": None, "failure": text, "answer": None, "lenient": None}
    read = Completion.from_json({**vars(COMPLETION), "verdict": row})
    assert read.failed and read.verdict.failure is Failure.OTHER and kept(read.verdict)["failure"] == (text or "other")
    wrong = of_texts(**row | {"correct": False, "reason": text, "failure": None})
    assert (wrong.reason, wrong.why, wrong.reward) == (Reason.OTHER, text or "other", 0.0)
    assert of_texts(**kept(wrong)).why == wrong.why


def test_a_text_is_no_reason_inside():
    for wrong in ({"reason": "no such reason"}, {"failure": "raised ValueError"}):
        with pytest.raises(ValueError, match="is not a valid"):
            Verdict(None, **wrong)
    assert Verdict(True).why is Verdict(None).why is None
    assert read_reward(answer([Verdict(None)])).failure is Failure.NO_REWARD


def test_the_answer_to_several_queries_names_each_failure():
    verdicts = [Verdict(True), of_texts(None, failure="raised KeyError", detail="'a'"), of_texts(None, failure="busy")]
    assert answer(verdicts)["failed"] == [
        {"index": 1, "reason": "raised KeyError", "detail": "'a'"},
        {"index": 2, "reason": "busy", "detail": ""},
    ]


def test_the_accounts_have_plain_texts_for_metrics_and_checkpoints():
    accounts = Accounts(dispatched=3)
    for text in ("raised ValueError", "reward server timed out", "busy"):
        accounts.failed[of_texts(None, failure=text).why] += 1
    names = {"raised_ValueError", "reward_server_timed_out", "busy"}
    assert {f"ledger/failed_{name}" for name in names} < accounts.metrics(0).keys()
    assert {type(name) for name in accounts.state(0)["failed"]} == {str}, "a checkpoint must load without this package"


def test_only_a_response_that_is_there_is_worth_another_grade():
    lost = {Failure.NO_ROOM, Failure.ENGINE_DIED, Failure.NO_ENGINE, Failure.ENGINE_RAISED, Failure.OTHER}
    assert {failure for failure in Failure if not failure.again} == lost


def test_an_outcome_that_is_not_passed_is_a_reason():
    assert {Outcome(reason) for reason in Reason if reason in {*Outcome}} == {*Outcome} - {
        *(Outcome.PASSED, Outcome.NOT_RUN)
    }


def test_the_page_names_failures_as_they_are_counted():
    page = DOCS.read_text().partition("**During training**")[2].partition("## The accounts")[0]
    named = {word for line in page.splitlines() for word in re.findall(r"`([^`]+)`", line.partition(" | ")[0])}
    named -= {word for word in named if word.startswith("--")} | {"math"}
    starts = ("", "reward server ", "reward server answered ")  # a cell need not repeat them
    unknown = {
        word for word in named if all(of_texts(None, failure=start + word).failure is Failure.OTHER for start in starts)
    }
    assert len(named) > 20 and not unknown, unknown


def test_rewards_in_every_form_openrlhf_takes():
    for output, expected in (
        ({"rewards": [0.5], "scores": [1.0], "extra_logs": {"a": [2]}}, of_numbers(0.5, 1.0, {"a": 2.0})),
        ({"rewards": True, "scores": None, "extra_logs": None}, of_numbers(1.0, 1.0)),
        ({"rewards": [[0.5]]}, of_numbers(0.5, 0.5)),
        ({"rewards": torch.tensor([0.25]), "scores": numpy.float32(1)}, of_numbers(0.25, 1.0)),
    ):
        assert read_reward(output) == expected


def test_what_is_no_reward_is_a_failure_and_no_zero():
    for failure, *outputs in table("rewards", "test_what_is_no_reward_is_a_failure_and_no_zero"):
        for output in outputs:
            assert read_reward(output).failure == failure
            assert (read_reward(output).reward, read_reward(output).score, read_reward(output).correct) == (None,) * 3


def test_a_verdict_has_the_numbers_of_its_grader():
    assert [(v.reward, v.score) for v in (Verdict(True), Verdict(False, "timeout"))] == [(1.0, 1.0), (0.0, 0.0)]
    below, lucky = of_numbers(0.9, 0.9), of_numbers(0.5, 1.0)
    assert (below.correct, below.reason, below.reward, below.score) == (False, "wrong", 0.9, 0.9)
    assert (lucky.correct, lucky.reason) == (True, None)


def test_absurd_numbers_are_kept_and_questioned():
    for output, questionable in table("rewards", "test_absurd_numbers_are_kept_and_questioned"):
        verdict = read_reward(output)
        assert (verdict.failure, verdict.reward) == (None, float(output["rewards"]))
        assert verdict.is_questionable is questionable
    assert not Verdict(True).is_questionable and not Verdict(None, failure="timeout").is_questionable
    assert read_reward({"rewards": 10**400}).failure == "not finite", "too large for a float"
