"""The word problems of the lab: each written step is checked, and the first error is at the token that made it."""

import random

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


RIGHT = [
    (BOXES, BOXES.solution),
    (BOXES, "#### 17"),
    (BOXES, "3 * 4 = 12, so 5 + 12 = 17"),
    (BOXES, "4 boxes \u00d7 3 apples each = 12 apples. Adding 5 apples + 12 apples = 17 apples.\n#### 17"),
    (BOXES, "4 x 3 + 5 = 17"),
    (BOXES, "$4 * $3 = $12. $12 + $5 = $17"),
    (GIVEN, "40 + 5 = 45, 45 - 7 = 38"),
    (GIVEN, "5 - 7 = -2. -2 + 40 = 38"),
    (GIVEN, "40 + -7 + 5 = 38"),
    (GIVEN, "-40 - 7 + 5 = 38"),
    (BOXES, "(4 boxes) * 3 + 5 = 17"),
    (GIVEN, "40 \u2212 7 = 33. 33 + 5 = 38."),
    (PACKS, "The first pays 4 * 3 = 12, the second 4 * 5 = 20, together 12 + 20 = 32."),
    (BOXES, "04 * 3 = 012 apples, and 12 + 05 = 17"),
    (PACKS, "4 * (3 + 5) = 32"),  # brackets are not read: nothing is found wrong, and the answer is right
]


@pytest.mark.parametrize(("problem", "response"), RIGHT)
def test_right_responses_have_no_error(problem, response):
    result = check(problem, response)
    assert result.correct and result.error is None and not result.lucky


WRONG = [
    # problem, response, the text from the first error on
    (BOXES, "4 * 3 = 13. Then 13 + 5 = 18.", "13. Then"),
    (BOXES, "4 + 3 = 7. Then 7 + 5 = 12.", "+ 3 = 7"),
    (BOXES, "4 * 3 = 12. Then 12 - 5 = 7.", "- 5 = 7"),
    (BOXES, "4 * 3 = 12. Then 12 + 5 = 18.", "18."),
    (BOXES, "There are 12 apples.\n#### 12", "12"),
    (BOXES, "4 * 3 = 12\n#### 12", "12"),
    (GIVEN, "40 + 7 = 47. Then 47 + 5 = 52.", "+ 7 = 47"),
    (PACKS, "4 * 3 = 12, so 12 + 5 = 17", "+ 5 = 17"),
    (BOXES, "They spend $.50", ".50"),
    (BOXES, "04 * 03 = 13", "13"),
    (BOXES, "I do not know.", ""),
    (BOXES, "I think...5", "5"),
    (BOXES, "It is\n#### ,5", "5"),
    (GIVEN, "5 - 7 = -8. Then 40 - 3 = 37.", "8. Then"),
]


@pytest.mark.parametrize(("problem", "response", "rest"), WRONG)
def test_the_first_error_is_where_the_step_goes_wrong(problem, response, rest):
    result = check(problem, response)
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
