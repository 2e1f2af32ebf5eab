"""What the simulators say about prefixes: stories by hand, against the enumeration of all ways to go on."""

import random
from functools import cache

import pytest
import torch

from openrlhf_shear.lab.settings import TASKS, LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.tasks.arithmetic.policy import build_tokenizer as characters
from openrlhf_shear.tasks.arithmetic.problems import make_problems, parse_problem
from openrlhf_shear.tasks.arithmetic.solutions import check as check_chain
from openrlhf_shear.tasks.arithmetic.solutions import write_solution
from openrlhf_shear.tasks.arithmetic.task import situations as of_chain
from openrlhf_shear.tasks.bookkeeping.entries import Q, check, walk, write_entries
from openrlhf_shear.tasks.bookkeeping.policy import build_tokenizer as words_alone
from openrlhf_shear.tasks.bookkeeping.stories import StoryProblem, Transfer
from openrlhf_shear.tasks.bookkeeping.stories import make_problems as make_stories
from openrlhf_shear.tasks.bookkeeping.task import situations
from openrlhf_shear.tasks.situation import LOST, Situation

ACCOUNTS = (("ana", 15), ("ben", 14), ("cleo", 16))
CANCELS = StoryProblem(
    ACCOUNTS, (Transfer("may", "ana", "lends", 2, "ben"), Transfer("june", "ben", "lends", 2, "ana"))
)
HALF = StoryProblem(ACCOUNTS, (Transfer("may", "ana", "lends", 1, "ben"), Transfer("june", "ana", "hands", 2, "ben")))
ROW_BACK = StoryProblem(
    ACCOUNTS, (Transfer("may", "ana", "lends", 1, "ben"), Transfer("june", "ben", "collects", 2, "ana"))
)
UNDOES = StoryProblem(ACCOUNTS, (Transfer("may", "ana", "lends", 1, "ben"), Transfer("june", "ben", "hands", 2, "ana")))
PLAIN = StoryProblem(ACCOUNTS, (Transfer("may", "ana", "gives", 1, "ben"), Transfer("june", "ana", "lends", 2, "cleo")))


def chance(story):
    """Function: a prefix without a slip -> the chance of a right answer, over all ways to go on as the books do."""

    @cache
    def of(words):
        forks = walk(story)
        fork = next(forks)
        for word in words:
            try:
                fork = forks.send(word)
            except StopIteration:
                return float(check(story, words).correct)
        ways = {word: 1 / len(fork.right) for word in fork.right}
        if fork.misconception:
            ways = {fork.right[0]: 1 - 2 * Q, fork.right[1]: Q, fork.misconception: Q}
        return sum(p * of((*words, word)) for word, p in ways.items())

    return of


@pytest.mark.parametrize("story", [CANCELS, HALF, ROW_BACK, UNDOES, PLAIN])
def test_situations_are_those_of_the_enumeration(story):
    """Over many written responses: a settled value is that of every way to go on, and equal keys have equal chances."""
    of, seen = chance(story), {}
    for seed in range(40):
        words = tuple(write_entries(story, random.Random(seed), 0.4).split())
        found = situations(story, words)
        assert len(found) == len(words) + 1
        for at, situation in enumerate(found):
            truth = of(words[:at])
            settled = not 1e-9 < truth < 1 - 1e-9
            assert situation.value == (pytest.approx(truth) if settled else None)
            assert seen.setdefault(situation.key, truth) == pytest.approx(truth)
    assert len(seen) >= 3


WRONG_TWICE = (
    "may ana lends 2 to ben so ana 15 gains 2 17 , ben 14 loses 2 12 : ana 17 ben 12 cleo 16 . "
    "june ben lends 2 to ana so ben 12 gains 2 14 , ana 17 loses 2 15 : ana 15 ben 14 cleo 16 ."
)
WRONG = "may ana lends 1 to ben so ana 15 gains 1 16 , ben 14 loses 1 13 : ana 16 ben 13 cleo 16 ."


def last(story, text):
    return situations(story, text.split())[-1]


def test_an_error_can_be_undone_by_another():
    words = WRONG_TWICE.split()
    found = check(CANCELS, words)
    assert found.correct and found.lucky and words[found.first_error] == "gains"
    values = [situation.value for situation in situations(CANCELS, words)]
    second = 26 + words[26:].index("gains")
    assert values[: second + 1] == [None] * (second + 1) and set(values[second + 1 :]) == {1.0}
    assert last(HALF, WRONG).value == 0.0, "another error of the same direction takes nothing back"
    assert last(UNDOES, WRONG).value is None, "a row's error in the other direction does"


def test_a_slip_loses_the_thread_and_extra_words_too():
    right = write_entries(CANCELS, random.Random(0), 0).split()
    slipped = [*right[:9], "30", *right[10:]]
    assert right[9] != "30"
    found = situations(CANCELS, slipped)
    assert found[:10] == situations(CANCELS, right)[:10] and found[10:] == [LOST] * (len(right) - 9)
    assert situations(CANCELS, [*right, "may"])[-2:] == [Situation((2, (0, 0, 0)), 1.0), LOST]


OUT_OF_WORDS = "may ana lends 2 to ben so ana 29 gains 2 31"


def test_a_balance_without_a_word_loses_the_thread():
    story = StoryProblem((("ana", 29), ("ben", 14)), (Transfer("may", "ana", "lends", 2, "ben"),))
    found = situations(story, OUT_OF_WORDS.split())
    assert found[9].value is None and found[10:] == [Situation((1, (4, -4)), 0.0), LOST, LOST]


def test_real_stories_are_open_until_their_last_fork_or_an_error():
    for story in make_stories(20, 4):
        words = write_entries(story, random.Random(1), 0).split()
        values = [situation.value for situation in situations(story, words)]
        forks = [i for i, fork in enumerate(right_forks(story, words)) if fork.misconception]
        last = max(forks, default=-1)
        assert values == [None] * (last + 1) + [1.0] * (len(words) - last)


def right_forks(story, words):
    forks = walk(story)
    fork = next(forks)
    for word in words:
        yield fork
        try:
            fork = forks.send(word)
        except StopIteration:
            return


CHAIN = "37a+45bx7c-12d+08ex3f-31g+77="


def chain(text):
    return [situation.key for situation in of_chain(parse_problem(CHAIN), text)]


def test_a_chain_is_at_the_value_of_its_last_step():
    keys = chain("~a37+45=82;.")
    assert keys == [(0, 37)] * 9 + [(0, 37, "8"), (1, 82), (1, 82), (1, 82)]
    assert chain("a45+37=82;") == keys[1:-1], "the order of operands decides nothing"


def test_a_wrong_value_goes_on_by_itself():
    keys = chain("a37+45=83;bx7x83")
    assert keys[8:12] == [(0, 37, "8"), (1, 83), (1, 83), (1, 83)]
    assert chain("a37+45=83;b7x83=81;")[-1] == chain("a37+45=83;b83x7=81;")[-1] == (2, 81)


def test_miscopied_operands_lose_the_thread_until_the_result():
    keys = chain("a36+45=82;b")
    assert keys[:3] == [(0, 37)] * 3 and keys[3:9] == [None] * 6 and keys[9:] == [(1, 82)] * 3


@pytest.mark.parametrize(
    "text", ["a37+45=8;b", "b82x7=74;", "a37+45=82;~;", "a37+45=82;#82", "\N{REPLACEMENT CHARACTER}a37+45"]
)
def test_what_is_no_step_loses_the_thread_for_good(text):
    assert chain(text)[-1] is None and chain(text + "b82x7=74;")[-1] is None


def test_right_solutions_end_at_their_answer_and_share_their_keys():
    for problem in make_problems(30, 3):
        texts = [write_solution(problem, random.Random(seed)) for seed in range(4)]
        ends = [of_chain(problem, text)[-1] for text in texts]
        assert ends == [Situation((7, problem.values[-1]))] * 4 and check_chain(problem, texts[0]).correct
        steps = [[s.key for s in of_chain(problem, text) if s.key and len(s.key) == 2] for text in texts]
        assert all(list(dict.fromkeys(each)) == list(enumerate(problem.values)) for each in steps)
        assert of_chain(problem, texts[0] + "1")[-1] == LOST


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_a_situation_before_each_token_but_a_final_eos(name):
    task = task_of(LabSettings(task=name))
    tokenizer = characters() if name == "arithmetic" else words_alone(task.form)
    for problem in task.problems(5, 3):
        text = problem.prompt + task.written(problem, random.Random(2))
        ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False))
        response = ids[len(tokenizer.encode(problem.prompt, add_special_tokens=False)) :]
        found = task.situations(tokenizer, problem, response)
        assert len(found) == len(response) + 1 and found[0].key is not None
        ended = torch.cat([response, torch.tensor([tokenizer.eos_token_id])])
        assert task.situations(tokenizer, problem, ended) == found
        unknown = torch.cat([torch.tensor([tokenizer.pad_token_id]), response])
        assert task.situations(tokenizer, problem, unknown)[1:] == [LOST] * (len(response) + 1)
        assert task.check(tokenizer, problem, ended).correct or name != "arithmetic"
