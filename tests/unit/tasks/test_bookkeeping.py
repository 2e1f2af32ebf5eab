"""The bookkeeping task: stories by hand whose first errors are known, written responses, and the lab's inputs."""

import random
from collections import Counter

import pytest
import torch
from cases import cases, table

from openrlhf_shear.lab.policy import Policy
from openrlhf_shear.lab.rollouts import graded
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.tasks.arithmetic.policy import load_policy, save
from openrlhf_shear.tasks.arithmetic.sampling import sample_ids
from openrlhf_shear.tasks.bookkeeping import warm_up
from openrlhf_shear.tasks.bookkeeping.entries import EntryCheck, Q, check, response_words, walk, write_entries
from openrlhf_shear.tasks.bookkeeping.forms import FORMS
from openrlhf_shear.tasks.bookkeeping.policy import SIZES, build_model, build_tokenizer
from openrlhf_shear.tasks.bookkeeping.stories import (
    DIRECTION,
    MISCONCEPTIONS,
    ROW,
    TAKING,
    TRANSFERS,
    VERBS,
    StoryProblem,
    Transfer,
    make_problems,
)
from openrlhf_shear.tasks.bookkeeping.task import BookkeepingTask
from openrlhf_shear.tasks.bookkeeping.warm_up import WarmUpSettings

STORY = StoryProblem(
    (("ana", 20), ("ben", 17), ("cleo", 22)),
    (Transfer("may", "ana", "lends", 3, "ben"), Transfer("june", "cleo", "collects", 2, "ana")),
)
FIRST = "may ana lends 3 to ben so ana 20 loses 3 17 , ben 17 gains 3 20 : ana 17 ben 20 cleo 22 ."
SECOND = "june cleo collects 2 from ana then cleo 22 gains 2 24 and ana 17 loses 2 15 : ana 15 ben 20 cleo 24 ."
RIGHT = f"{FIRST} {SECOND}"


def checked(text, story=STORY):
    return check(story, text.split())


def at(text, words):
    """The index of the last of `words` where they first stand in `text`."""
    return len(text[: text.index(words) + len(words)].split()) - 1


def test_the_story_has_the_misconceptions_of_these_tests():
    assert (MISCONCEPTIONS["lends"], MISCONCEPTIONS["collects"]) == (DIRECTION, ROW)
    assert STORY.prompt == "ana 20 ben 17 cleo 22 . may ana lends 3 to ben . june cleo collects 2 from ana ."
    assert STORY.states[-1] == {"ana": 15, "ben": 20, "cleo": 24}


@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("so ana", "then ana"), ("17 , ben", "17 and ben"), ("24 and ana", "24 , ana")]
)
def test_what_may_differ_is_right(old, new):
    assert checked(RIGHT.replace(old, new)) == EntryCheck(True, None)


@pytest.mark.parametrize(*cases("tasks", "test_a_twin_is_right_and_found"))
def test_a_twin_is_right_and_found(old, new, twin):
    text = RIGHT.replace(old, new)
    assert twin in text and checked(text) == EntryCheck(True, None)


WRONG_WAY = RIGHT.replace("ana 20 loses 3 17 , ben 17 gains 3 20", "ana 20 gains 3 23 , ben 17 loses 3 14")
WRONG_WAY = WRONG_WAY.replace("ana 17 ben 20", "ana 23 ben 14").replace("ana 17 loses 2 15", "ana 23 loses 2 21")
WRONG_WAY = WRONG_WAY.replace("ana 15 ben 20", "ana 21 ben 14")
WRONG_ROW = RIGHT.replace("ana 17 loses 2 15 : ana 15 ben 20 cleo 24", "cleo 24 loses 2 22 : ana 17 ben 20 cleo 22")


@pytest.mark.parametrize(
    ("text", "error", "misconceived"),
    [
        (WRONG_WAY, at(RIGHT, "so ana 20 loses"), True),
        (WRONG_ROW, at(RIGHT, "24 and ana"), True),  # the collector's own account twice
        (RIGHT.replace(": ana 17", ": ana 18"), at(RIGHT, ": ana 17"), False),
        (RIGHT.replace("3 17 ,", "3 18 ,"), at(RIGHT, "3 17"), False),
        (RIGHT.replace("so ana 20", "so ana 21"), at(RIGHT, "so ana 20"), False),
        (RIGHT.replace("lends 3", "lends 4"), at(RIGHT, "lends 3"), False),
        (RIGHT.replace("ben 17 gains", "ben 17 picks"), at(RIGHT, ", ben 17 gains"), False),  # picks goes with drops
        (RIGHT.replace(", ben 17", ", cleo 17"), at(RIGHT, ", ben"), False),  # lends has no other misconception
        (RIGHT.replace("so ana 20 loses", "so ana 20 drops"), at(RIGHT, ", ben 17 gains"), False),
        (SECOND, 0, False),
        (FIRST, len(FIRST.split()), False),
        (FIRST[:-2], len(FIRST.split()) - 1, False),
        (RIGHT + " may", len(RIGHT.split()), False),
        ("", 0, False),
        ("<pad> " + RIGHT, 0, False),
    ],
)
def test_the_first_error_is_the_first_word_that_no_right_response_has(text, error, misconceived):
    found = checked(text)
    assert (found.first_error, found.misconceived) == (error, misconceived)
    assert found.correct == text.endswith(RIGHT.split(":")[-1])


def test_what_follows_from_a_misconception_is_as_written():
    """Both hand-made wrong responses are ones that are written, with the probability of their choices."""
    drawn = Counter(write_entries(STORY, random.Random(seed), 0.4) for seed in range(3000))
    assert {WRONG_WAY, WRONG_ROW, RIGHT} <= drawn.keys()


def test_misconceptions_and_twins_are_equally_likely():
    counts, rng = Counter(), random.Random(0)
    for problem in make_problems(400, 0):
        forks = walk(problem)
        fork = next(forks)
        while fork is not None:
            word = fork.draw(rng, Q)
            if fork.misconception:
                counts["misconception" if word == fork.misconception else fork.right.index(word)] += 1
            try:
                fork = forks.send(word)
            except StopIteration:
                fork = None
            except Exception as error:  # a balance without a word: no response is written
                assert type(error).__name__ == "OutOfWords"
                break
    n = sum(counts.values())
    assert n > 1000
    for kind in ("misconception", 1):
        assert counts[kind] / n == pytest.approx(Q, abs=4 * (Q * (1 - Q) / n) ** 0.5)


@pytest.mark.parametrize("form", FORMS.values())
def test_written_responses_are_right_up_to_their_first_misconception(form):
    rng = random.Random(0)
    for q in (0.0, Q):
        for problem in make_problems(100, 1, transfers=form.transfers):
            words = write_entries(problem, rng, q, form).split()
            found = check(problem, words, form)
            assert len(words) == form.budget - 1
            assert found.misconceived == (found.first_error is not None) and (q or found.correct)
            assert found.correct or found.misconceived


def test_an_independent_reader_agrees():
    """Outcomes by another reading of the text: what each entry's own words do to the accounts, summed up."""
    rng = random.Random(3)
    for problem in make_problems(60, 2):
        words = write_entries(problem, rng, Q).split()
        books = dict(problem.balances)
        names = list(books)
        for i, transfer in enumerate(problem.transfers):
            entry = words[i * 32 : (i + 1) * 32]
            first, old, verb, change, new, _, second = entry[7:14]
            if second == "other":
                second = transfer.other if first == transfer.subject else transfer.subject
            amount = int(change) * (1 if verb in ("gains", "picks") else -1)
            assert (int(old), int(new)) == (books[first], books[first] + amount)
            books[first] += amount
            books[second] -= amount
            assert entry[19:31] == [word for name in names for word in (name, str(books[name]))]
        truth = dict(problem.balances)
        for transfer in problem.transfers:
            amount = transfer.amount if transfer.verb in TAKING else -transfer.amount
            truth[transfer.subject] += amount
            truth[transfer.other] -= amount
        assert check(problem, words).correct == (books == truth)


def test_problems_are_the_same_for_the_same_seed_and_splits_share_none():
    train, heldout = make_problems(300, 7), make_problems(100, 7, "heldout")
    assert train == make_problems(300, 7) != make_problems(300, 8)
    assert not {p.prompt for p in train} & {p.prompt for p in heldout}
    assert {len(p.prompt.split()) for p in train} == {69}
    assert {t.verb for p in train for t in p.transfers} == set(VERBS)
    with pytest.raises(ValueError, match="split must be one of train, heldout: got 'test'"):
        make_problems(1, 0, "test")
    with pytest.raises(ValueError, match="transfers must be between 1 and 12: got 13"):
        make_problems(1, 0, transfers=13)


@pytest.mark.parametrize("form", FORMS.values())
def test_a_word_is_a_token(form):
    tokenizer = build_tokenizer(form)
    problem = make_problems(1, 0, transfers=form.transfers)[0]
    response = write_entries(problem, random.Random(0), form=form)
    ids = tokenizer.encode(response)
    assert len(ids) == len(response.split()) and tokenizer.decode(ids) == response
    assert tokenizer.unk_token_id not in [*ids, *tokenizer.encode(problem.prompt)]
    assert build_tokenizer().get_vocab().items() <= tokenizer.get_vocab().items(), "old words keep their tokens"
    ended = torch.tensor([*ids, tokenizer.eos_token_id])
    assert response_words(tokenizer, torch.tensor(ids)) == response_words(tokenizer, ended) == response.split()


@pytest.mark.parametrize(("size", "millions"), [("small", 1.9), ("large", 5.2)])
def test_policies_have_their_sizes(size, millions):
    assert build_model(build_tokenizer(), 0, size).num_parameters() == pytest.approx(millions * 1e6, rel=0.03)


def test_settings_that_cannot_be_are_refused():
    for changes, said in table("tasks", "test_settings_that_cannot_be_are_refused"):
        with pytest.raises(ValueError, match=said):
            WarmUpSettings(**changes)


def test_the_lab_is_given_outcomes_and_first_errors():
    task, tokenizer = task_of(LabSettings(task="bookkeeping")), build_tokenizer()
    texts = (RIGHT, WRONG_WAY)
    ended = [torch.tensor([*tokenizer.encode(text), tokenizer.eos_token_id]) for text in texts]
    rollouts = graded(task, tokenizer, [STORY] * 2, ended, 2)
    assert rollouts.correct == (True, False) and rollouts.first_errors == (None, at(RIGHT, "so ana 20 loses"))
    assert rollouts.mixed == 1.0
    error = rollouts.sequences[1, 1:][rollouts.mask[1]][rollouts.first_errors[1]]
    assert tokenizer.decode(error) == "gains"
    assert task.budget == TRANSFERS * 32 + 1


def test_a_warm_up_grows_its_stories_and_measures_its_policy(monkeypatch):
    seen = []

    def step(model, tokenizer, optimizer, task, problems, rng):
        seen.append([len(problem.transfers) for problem in problems])
        return 0.0

    checks = [
        EntryCheck(True, None),
        EntryCheck(False, 3, True),
        EntryCheck(False, 4, False),
        EntryCheck(True, 9, False),
    ]
    monkeypatch.setattr(warm_up, "train_step", step)
    monkeypatch.setattr(warm_up, "sampled_checks", lambda *of: checks)
    said, settings = [], WarmUpSettings(target_accuracy=0.5, batch_size=2, max_steps=400, decay_steps=50)
    result = warm_up.warm_up(settings, said.append)
    assert (result.reached_target, result.accuracy.correct, result.accuracy.lucky) == (True, 0.5, 0.5)
    assert result.slips == pytest.approx(2 / 3) and str(result.model.dtype) == "torch.bfloat16"
    longest = [max(lengths) for lengths in seen]
    assert longest[0] == 1 and max(longest) == TRANSFERS and all(len(set(lengths)) == 1 for lengths in seen)
    assert {len(lengths) for lengths in seen if lengths[0] == TRANSFERS} == {2}
    assert {len(lengths) for lengths in seen if lengths[0] == 1} == {2 * 326 // 53}, "as many tokens"
    assert "67% of the errors are slips" in said[-1]


@pytest.mark.parametrize("form", FORMS.values())
def test_a_warm_up_step_learns_from_responses(form):
    tokenizer = build_tokenizer(form)
    model = build_model(tokenizer, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    problems = make_problems(4, 0, transfers=1)
    task = BookkeepingTask(form)
    losses = [warm_up.train_step(model, tokenizer, optimizer, task, problems, random.Random(0)) for _ in range(4)]
    assert losses[-1] < losses[0] < 7


def tiny(tokenizer, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "tiny", (1, 32))
        return build_model(tokenizer, seed, "tiny")


def test_the_shipped_policy_is_of_this_task():
    task = task_of(LabSettings(task="bookkeeping"))
    model, tokenizer = load_policy(task.shipped())
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    assert model.num_parameters() == build_model(tokenizer, 0).num_parameters()
    asked = task.problems(4, 0, "heldout")
    (response,) = sample_ids(model, tokenizer, [asked[0].prompt], 0, max_new_tokens=32)
    assert task.check(tokenizer, asked[0], response).first_error == 32, "a right entry, and no more"


@pytest.fixture
def policy(tmp_path):
    tokenizer = build_tokenizer()
    save(tiny(tokenizer, 0), tokenizer, tmp_path / "policy")
    return Policy(tmp_path / "policy", LabSettings(task="bookkeeping", precision="float32"))


def test_the_lab_reads_the_ledger_with_fused_attention_and_samples_without(policy, tmp_path, monkeypatch):
    attention = []
    sequences = torch.randint(3, len(policy.tokenizer), (2, 300))
    mask = torch.ones(2, 299, dtype=torch.bool)
    hook = policy.model.lm_head.register_forward_hook(
        lambda *_: attention.append(policy.model.config._attn_implementation)
    )
    fused = policy.read(sequences, mask)
    sample_ids(policy.model, policy.tokenizer, [STORY.prompt], 0, max_new_tokens=1)
    hook.remove()
    assert attention == ["sdpa", "eager"]
    settings = LabSettings(task="bookkeeping", precision="float32")
    monkeypatch.setattr(type(task_of(settings)), "long_responses", False)
    eager = Policy(tmp_path / "policy", settings).read(sequences, mask)
    # Float32 sums of at most 300 products in another order, log-probabilities around -5.
    assert torch.allclose(fused.log_probs, eager.log_probs, atol=1e-5, rtol=0)
