"""The word problems of the lab: each written step is checked, and the first error is at the token that made it."""

import random
import tomllib
from pathlib import Path

import pytest

from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.rewards.last_number import final_number
from openrlhf_shear.tasks.word_problems.problems import WordProblem, make_problems, word_problem
from openrlhf_shear.tasks.word_problems.solutions import check, values

BOXES = WordProblem("?", "4 * 3 = 12 apples. Then 12 + 5 = 17.", "a*b + c", (("a", 4), ("b", 3), ("c", 5)))
GIVEN = WordProblem("?", "40 - 7 = 33. Then 33 + 5 = 38.", "have - lost + c", (("have", 40), ("lost", 7), ("c", 5)))
PACKS = WordProblem("?", "3 + 5 = 8 packs, which cost 4 * 8 = 32 dollars.", "a*(b + c)", (("a", 4), ("b", 3), ("c", 5)))


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (BOXES, {4, 3, 5, 12, 17}),
        # A sum of some terms: 40 - 7, 40 + 5, 5 - 7, and each alone.
        (GIVEN, {40, -7, 7, 5, 33, 45, -2, 38, -1}),
        (PACKS, {4, 3, 5, 8, 32, 12, 20}),  # also 4 * 3 and 4 * 5, person by person
    ],
)
def test_the_values_of_a_problem_s_parts(problem, expected):
    assert values(problem) == expected


PROBLEMS = {"BOXES": BOXES, "GIVEN": GIVEN, "PACKS": PACKS}
RESPONSES = tomllib.loads((Path(__file__).parents[2] / "data/word_problem_responses.toml").read_text())


@pytest.mark.parametrize(("problem", "response"), RESPONSES["right"])
def test_right_responses_have_no_error(problem, response):
    result = check(PROBLEMS[problem], response)
    assert result.correct and result.error is None and not result.lucky


@pytest.mark.parametrize(("problem", "response", "rest"), RESPONSES["wrong"])
def test_the_first_error_is_where_the_step_goes_wrong(problem, response, rest):
    result = check(PROBLEMS[problem], response)
    assert not result.correct
    if not rest:
        assert result.error == len(response)
    elif response.endswith(rest):
        assert response[result.error :] == rest
    else:
        assert response[result.error :].startswith(rest)


def test_a_right_answer_after_a_wrong_step_is_lucky():
    result = check(BOXES, "4 + 3 = 7. So the answer is\n#### 17")
    assert result.lucky and result.error == 2


def test_written_solutions_are_right_and_their_digits_matter():
    for problem in make_problems(200, 3):
        assert check(problem, problem.row["answer"]).error is None, problem
        assert final_number(problem.row["answer"]) == problem.answer
        names = {name: value for name, value in problem.numbers}
        assert eval(problem.expression, {}, names) == problem.answer  # independent of sympy and of the solution's text
        wrong = problem.solution.replace(f"= {problem.answer}", f"= {problem.answer + 1}")
        at = check(problem, wrong).error
        assert wrong[at:].startswith(str(problem.answer + 1))


def test_splits_share_no_problem_and_seeds_repeat():
    train, held = make_problems(300, 0), make_problems(300, 5, "heldout")
    assert train == make_problems(300, 0) != make_problems(300, 1)
    assert not {p.question for p in train} & {p.question for p in held}
    assert len({p.question for p in train}) == 300
    with pytest.raises(ValueError, match="split must be one of"):
        make_problems(1, 0, "test")


def test_drawn_problems_are_those_of_earlier_versions():
    """`make run-smollm2` trains on these."""
    assert word_problem(random.Random(0)).row == {
        "question": "A pack of apples costs 6 dollars. Grace buys 9 packs and Jonas buys 8 packs. How many dollars do "
        "they spend together?",
        "answer": "Together they buy 9 + 8 = 17 packs, which cost 6 * 17 = 102 dollars.\n#### 102",
    }


class Letters:
    """One token a character, and an end that is not shown."""

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return "".join(chr(i) for i in ids if i)


def test_errors_are_tokens():
    task = task_of(LabSettings(task="word_problems"))
    wrong = "4 + 3 = 7. Then 7 + 5 = 12."
    result = task.check(Letters(), BOXES, [*map(ord, wrong), 0])
    assert (result.correct, result.first_error) == (False, wrong.index("+"))
    cut = task.check(Letters(), BOXES, [*map(ord, "4 * ")])
    assert (cut.correct, cut.first_error) == (False, 0), "its only number is no answer"
    assert task.check(Letters(), BOXES, [*map(ord, "So")]).first_error == 2, "nothing was answered: one beyond the end"


def test_there_is_no_shipped_policy():
    with pytest.raises(ValueError, match=r"lab\.start: word problems have no shipped policy; use --start"):
        task_of(LabSettings(task="word_problems")).shipped()
