"""The paraphrased form of bookkeeping: a story by hand in every template, a brute-force reader, and its statistics."""

import itertools
import random
import tomllib
from collections import Counter
from math import log
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.tasks.arithmetic.policy import load_policy
from openrlhf_shear.tasks.arithmetic.sampling import sample_ids
from openrlhf_shear.tasks.bookkeeping.entries import EntryCheck, Q, check, write_entries
from openrlhf_shear.tasks.bookkeeping.forms import FORMS, PARAPHRASED, PLAIN
from openrlhf_shear.tasks.bookkeeping.policy import build_model, build_tokenizer, take_over
from openrlhf_shear.tasks.bookkeeping.stories import (
    ACCOUNTS,
    DIRECTION,
    GIVING,
    MISCONCEPTIONS,
    ROW,
    StoryProblem,
    Transfer,
    make_problems,
)
from openrlhf_shear.tasks.bookkeeping.task import POLICY_DIR

BOOKS = (("ana", 20), ("ben", 17), ("cleo", 22))
LENDS = StoryProblem(BOOKS, (Transfer("may", "ana", "lends", 3, "ben"),))  # misconception: who gains
COLLECTS = StoryProblem(BOOKS, (Transfer("june", "cleo", "collects", 2, "ana"),))  # misconception: whose account

HAND = tomllib.loads((Path(__file__).parents[2] / "data/paraphrased_entries.toml").read_text())


def parted(first, second):
    """The index at which two texts first differ."""
    pairs = zip(first.split(), second.split(), strict=True)
    return next(i for i, (x, y) in enumerate(pairs) if x != y)


def told(name):
    """The hand-made entries of a template: of LENDS right, twin and wrong; of COLLECTS ("row") the same."""
    right, twin, wrong, row, row_wrong = HAND[name].values()
    at = right.split().index(twin.split()[0])
    sums = " ".join(right.split()[at : at + len(twin.split())])
    spot, words = parted(row, row_wrong), row.split()
    row_twin = " ".join([*words[:spot], "other", *words[spot + 1 :]])
    books = "ana 17 ben 20 cleo 22"
    collects = right.replace("may ana lends 3 to ben", "june cleo collects 2 from ana")
    return {
        "right": right,
        "twin": right.replace(sums, twin),
        "wrong": right.replace(sums, wrong).replace(books, "ana 23 ben 14 cleo 22"),
        "row": collects.replace(sums, row).replace(books, "ana 18 ben 17 cleo 24"),
        "row twin": collects.replace(sums, row_twin).replace(books, "ana 18 ben 17 cleo 24"),
        "row wrong": collects.replace(sums, row_wrong).replace(books, "ana 20 ben 17 cleo 22"),
    }


def checked(problem, text):
    return check(problem, text.split(), PARAPHRASED)


def test_there_are_eight_templates_and_each_has_a_story_by_hand():
    assert len(HAND) == len(PARAPHRASED.templates) >= 8
    assert set(HAND) == {template.parts[0] for template in PARAPHRASED.templates}
    assert (MISCONCEPTIONS["lends"], MISCONCEPTIONS["collects"]) == (DIRECTION, ROW)


@pytest.mark.parametrize("name", HAND)
def test_right_stories_have_no_error_and_twins_are_found(name):
    by_hand = told(name)
    assert checked(LENDS, by_hand["right"]) == checked(COLLECTS, by_hand["row"]) == EntryCheck(True, None)
    assert checked(LENDS, by_hand["twin"]) == checked(COLLECTS, by_hand["row twin"]) == EntryCheck(True, None)


@pytest.mark.parametrize("name", HAND)
def test_a_misconception_is_found_at_its_word(name):
    by_hand = told(name)
    spot = parted(by_hand["right"], by_hand["wrong"])
    assert checked(LENDS, by_hand["wrong"]) == EntryCheck(False, spot, True)
    spot = parted(by_hand["row"], by_hand["row wrong"])
    assert checked(COLLECTS, by_hand["row wrong"]) == EntryCheck(False, spot, True)
    assert by_hand["row wrong"].split()[spot] == "cleo"


@pytest.mark.parametrize("name", HAND)
def test_a_slip_at_any_word_is_found_there(name):
    words = told(name)["right"].split()
    for i in range(len(words)):
        found = check(LENDS, [*words[:i], "zoe", *words[i + 1 :]], PARAPHRASED)
        assert (found.first_error, found.misconceived) == (i, False)
    assert checked(LENDS, " ".join(words[:-1])).first_error == len(words) - 1
    assert checked(LENDS, " ".join([*words, "may"])).first_error == len(words)


def entries_of(transfer, books):
    """All right entries of a transfer, as lists of words; `books` are the true balances before it."""
    asides = PARAPHRASED.phrases["{aside}"]
    gives = transfer.verb in GIVING
    after = dict(books)
    after[transfer.subject] += -transfer.amount if gives else transfer.amount
    after[transfer.other] -= -transfer.amount if gives else transfer.amount
    kind = MISCONCEPTIONS.get(transfer.verb)
    for template in PARAPHRASED.templates:
        down, up = template.loses, template.gains
        for twin, row in [(0, False)] + [(1, False)] * (kind == DIRECTION) + [(0, True)] * (kind == ROW):
            said = {
                "{transfer}": " ".join(transfer.words),
                "{a}": transfer.subject,
                "{b}": "other" if row else transfer.other,
                "{a0}": str(books[transfer.subject]),
                "{b0}": str(books[transfer.other]),
                "{a1}": str(after[transfer.subject]),
                "{b1}": str(after[transfer.other]),
                "{as}": (down if gives else up)[twin],
                "{bs}": (up if gives else down)[twin],
                "{n}": str(transfer.amount),
                "{balances}": " ".join(f"{name} {after[name]}" for name in books) + " .",
            }
            text = template.text
            for slot, words in said.items():
                text = text.replace(slot, words)
            for first, second in itertools.product(asides, asides):
                yield text.replace("{aside}", first, 1).replace("{aside}", second, 1).split()
    books.update(after)


def first_wrong_word(problem, words):
    """The first word that no right response has, by comparison with all right entries; None without one."""
    books, at = dict(problem.balances), 0
    for transfer in problem.transfers:
        rest, best = words[at : at + 43], 0
        for entry in entries_of(transfer, books):
            same = next((i for i, (x, y) in enumerate(zip(entry, rest, strict=False)) if x != y), len(rest))
            best = max(best, same)
        if best < 43:
            return at + best
        at += 43
    return None if len(words) == at else at


def test_a_brute_force_reader_agrees():
    """Written responses, and responses with a random wrong word, a missing end, or one word too many."""
    rng, kinds = random.Random(4), Counter()
    words_of_the_task = [*PARAPHRASED.words, "ana", "ben", "other", *map(str, range(31))]
    for i, problem in enumerate(make_problems(16, 5, transfers=PARAPHRASED.transfers)):
        words = write_entries(problem, rng, Q, PARAPHRASED).split()
        spot = rng.randrange(len(words))
        if i % 4 == 1:
            words[spot] = rng.choice(words_of_the_task)
        elif i % 4 == 2:
            del words[spot:]
        elif i % 8 == 3:
            words.append("entry")
        found = check(problem, words, PARAPHRASED)
        assert found.first_error == first_wrong_word(problem, words)
        kinds[found.first_error is None, found.misconceived] += 1
    assert len(kinds) == 3, "right, misconceived and slips"


def entries_written(problems, rng):
    """(template, both asides, verb, whether misconceived) of the entries up to the first misconception."""
    for problem in problems:
        words = write_entries(problem, rng, Q, PARAPHRASED).split()
        error = check(problem, words, PARAPHRASED).first_error
        for at, transfer in zip(range(0, len(words), 43), problem.transfers, strict=True):
            entry = words[at : at + 43]
            asides = [word for word in entry if word in {p.split()[0] for p in PARAPHRASED.phrases["{aside}"]}]
            yield entry[0], *asides, transfer.verb, error is not None and at <= error < at + 43
            if error is not None and at <= error < at + 43:
                break


def test_templates_and_phrases_tell_nothing_of_the_truth():
    problems = make_problems(1500, 9, transfers=PARAPHRASED.transfers)
    seen = [row for row in entries_written(problems, random.Random(8)) if row[3] in MISCONCEPTIONS]
    assert len(seen) > 1500
    for choice, ways in ((0, 8), (1, 16), (2, 16)):
        counts = Counter((row[choice], row[4]) for row in seen)
        names = sorted({name for name, _ in counts})
        table = [[counts[name, wrong] for wrong in (False, True)] for name in names]
        assert len(names) == ways
        # Seeds are fixed. Of fair draws, a share of 0.001 would fail each of these tests.
        assert chi2_contingency(table).pvalue > 0.001
        assert chisquare([sum(row) for row in table]).pvalue > 0.001


def test_the_first_word_tells_a_template_and_a_phrase():
    firsts = [template.parts[0] for template in PARAPHRASED.templates]
    firsts += [phrase.split()[0] for phrase in PARAPHRASED.phrases["{aside}"]]
    assert len(set(firsts)) == 24
    sides = [word for template in PARAPHRASED.templates for word in template.sides]
    assert len(set(sides)) == 4 * 8 and len(set(PARAPHRASED.words)) == len(PARAPHRASED.words)


@pytest.mark.parametrize(("form", "ways"), [("plain", 2 * 2), ("paraphrased", 8 * 16 * 16)])
def test_the_entropy_of_the_choices_is_that_of_counting(form, ways):
    assert FORMS[form].choice_nats == pytest.approx(log(ways) / FORMS[form].entry_tokens, rel=1e-12)
    assert FORMS[form].story_tokens(ACCOUNTS, FORMS[form].transfers) < 512


def test_a_policy_of_the_plain_form_is_taken_over():
    start, known = load_policy(POLICY_DIR)
    tokenizer = build_tokenizer(PARAPHRASED)
    model = build_model(tokenizer, 0)
    take_over(model, tokenizer, start, known, PARAPHRASED)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    ids = torch.tensor([tokenizer.encode(make_problems(1, 0)[0].prompt)])
    with torch.no_grad():
        ours, theirs = (each.eval()(input_ids=ids).logits[..., : len(known)] for each in (model, start))
    # Products of another size may be summed in another order; logits are up to 30.
    assert torch.allclose(ours, theirs, atol=1e-4, rtol=0)
    again = build_model(known, 1)
    take_over(again, known, start, known, PLAIN)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in start.state_dict().items())


def test_the_lab_has_both_forms():
    task, plain = (task_of(LabSettings(task=name)) for name in ("bookkeeping-paraphrased", "bookkeeping"))
    assert (task.budget, plain.budget) == (259, 257)
    assert (task.place, plain.place) == ("bookkeeping-paraphrased", "bookkeeping")
    asked = task.problems(2, 0, "heldout")
    assert {len(problem.transfers) for problem in asked} == {6}
    tokenizer = build_tokenizer(PARAPHRASED)
    text = write_entries(asked[0], random.Random(0), 0, PARAPHRASED)
    ids = torch.tensor([*tokenizer.encode(text), tokenizer.eos_token_id])
    assert task.check(tokenizer, asked[0], ids).correct
    assert task.check(tokenizer, asked[0], ids).first_error is None


def test_the_shipped_policy_is_of_this_form():
    """Of 16 sampled responses, most are stories in its words: an entry that is none would be an error at its start."""
    task = task_of(LabSettings(task="bookkeeping-paraphrased"))
    model, tokenizer = load_policy(task.shipped())
    assert tokenizer.get_vocab() == build_tokenizer(PARAPHRASED).get_vocab()
    asked = task.problems(16, 0, "heldout")
    ids = sample_ids(model, tokenizer, [problem.prompt for problem in asked], 0, max_new_tokens=task.budget)
    checks = [task.check(tokenizer, problem, row) for problem, row in zip(asked, ids, strict=True)]
    assert 0 < sum(check.correct for check in checks) < 16
    assert sum(check.first_error is None or check.first_error > 43 for check in checks) > 8
