"""Responses that attack the rewards of others: texts that take long to read, and strings for maths.

Attacks of programs are in `test_warm_jails.py`, `test_code_checkers.py` and `test_code_asserts.py`, attacks of files in
`test_function_workers.py`, and those of servers in `test_reward_client.py` and `test_reward_answers.py`.
"""

import time

import pytest
from cases import table

from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.rewards.code.text import code_block, readable
from openrlhf_shear.rewards.last_number import final_number
from openrlhf_shear.rewards.maths import grade_math
from openrlhf_shear.rewards.maths.answers import ANSWER_FORMATS, final_answer
from openrlhf_shear.rewards.responses import answer_of

SECONDS, HONEST_SECONDS = 3.0, 20.0  # limits of a grade
# Wrong responses to a question whose answer is x^2-1.
OF_MATHS = table("rewards", "OF_MATHS") | {
    "deep brackets": rf"\boxed{{{'(' * 900}x{')' * 900}}}",
    "deep fractions": r"\boxed{" + r"\frac{1}{" * 150 + "x" + "}" * 151,
    "boxes in boxes": r"\boxed{" * 500 + "x" + "}" * 500,
}

# Units of texts. A text of one unit, repeated, takes minutes to read if a search starts again at each position.
OF_TEXTS = table("rewards", "OF_TEXTS")


@pytest.mark.usefixtures("needs_jail")
def test_an_answer_that_attacks_is_wrong_and_the_next_grade_is_right():
    for name, response in OF_MATHS.items():
        assert grade_math(response, "x^2-1", timeout=SECONDS).correct is False, name
        assert grade_math(r"\boxed{-1+x^2}", "x^2-1", timeout=HONEST_SECONDS).correct, name


@pytest.mark.parametrize("name", OF_TEXTS)
def test_everything_that_reads_a_text_before_a_limit_reads_it_in_linear_time(name):
    """A second or two; a slow search would take hours, and be ended by the time limit of tests."""
    unit, began = OF_TEXTS[name], time.process_time()
    text = unit * (100_000 // len(unit))
    for response in (text, f"'''\n{text}", f"```python\n{text}", rf"\boxed{{{text}"):
        readable((code_block(response) or "") + "\u00a0")
        for answer_format in ANSWER_FORMATS:
            final_answer(response, (answer_format,))
        answer_of(response, ""), final_number(response), hidden(response)
    assert time.process_time() - began < 60, "of processor time: some forty times what the slowest takes"
