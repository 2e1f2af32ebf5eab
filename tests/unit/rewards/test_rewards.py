"""Rewards of the built-in tasks: right on their tasks, and never raising on a model's text."""

from decimal import Decimal

import pytest
from cases import table

from openrlhf_shear.rewards import last_number
from openrlhf_shear.rewards.responses import response_of
from openrlhf_shear.tasks.arithmetic import arithmetic as arithmetic_reward

PROMPT = "37a+45bx7c-12d+08ex3f-31g+77="
SOLUTION = "a37+45=82;~b7x82=74;.,c-12+74=62;d62+08=70;~e70x3=10;f-31+10=79;_g79+77=56;#56"


def test_arithmetic_reward_of_one_query_is_floats():
    wrong = SOLUTION.replace("=82", "=81")
    cases = {
        SOLUTION + "<eos>": (1.0, 0.0, -1.0, 0.0),
        SOLUTION + "<eos><pad><pad>": (1.0, 0.0, -1.0, 0.0),
        SOLUTION: (1.0, 0.0, -1.0, 0.0),
        SOLUTION.replace("7x82", "7x81"): (1.0, 0.0, -1.0, 1.0),
        wrong + "<eos>": (1.0, 1.0, 8.0, 0.0),
        SOLUTION[:-1] + "0<eos>": (0.0, 0.0, len(SOLUTION) - 1.0, 0.0),
        "<unk>#56<eos>": (1.0, 1.0, 0.0, 0.0),
        "": (0.0, 0.0, 0.0, 0.0),
    }
    for response, (reward, lucky, first_error, miscopied) in cases.items():
        out = arithmetic_reward.reward_func([PROMPT + response], [PROMPT], ["56"])
        assert out == {
            "rewards": reward,
            "scores": reward,
            "extra_logs": {"lucky": lucky, "first_error": first_error, "miscopied": miscopied},
        }
        assert all(type(v) is float for v in (out["rewards"], out["scores"], *out["extra_logs"].values()))


def test_arithmetic_reward_refuses_data_of_another_task():
    with pytest.raises(ValueError, match="no arithmetic problem"):
        arithmetic_reward.reward_func(["What is 2+2? 4"], ["What is 2+2?"], ["4"])
    with pytest.raises(ValueError, match="must be its answer '56'"):
        arithmetic_reward.reward_func([PROMPT], [PROMPT], ["57"])


def test_final_number():
    for text, number in table("rewards", "test_final_number"):
        assert last_number.final_number(text) == Decimal(number), text
    for text in ("", "none", "1e5", "12.5e3", "v2", "#### \n", "\\boxed{\\frac{1}{2}}", "#### 1 or 2", "٣٧"):
        assert last_number.final_number(text) is None, text


def test_last_number_reward_against_gsm8k_labels():
    label = "He sold 48/2 = <<48/2=24>>24 clips in May, 1,048 in all.\n#### 1,048"

    def reward(response, label=label, prompt="Natalia sold 48 clips. How many? "):
        out = last_number.reward_func([prompt + response], [prompt], [label])
        assert type(out["rewards"]) is float and out["rewards"] == out["scores"]
        return out["rewards"], out["extra_logs"]["answer_found"]

    assert reward("The answer is \\boxed{1048}.<|im_end|>") == (1.0, 1.0)
    assert reward("The answer is 1,048.00 clips") == (1.0, 1.0)
    assert reward("1,048, no, 24") == (0.0, 1.0)
    assert reward("no idea") == (0.0, 0.0)  # and not the 48 of the prompt
    assert reward("-2.50", label="#### -2.5") == (1.0, 1.0)
    assert reward("0.1", label="0.10000000000000001") == (0.0, 1.0)  # exact, not floats
    assert reward("1" * 5000 + "2", label="1" * 5000 + "3") == (0.0, 1.0)
    with pytest.raises(ValueError, match="the label holds no number"):
        last_number.reward_func(["a 1"], ["a"], ["yes"])
    for label in ("1/2", "(1, 2)", "7 of 8"):
        with pytest.raises(ValueError, match="the label holds several numbers"):
            last_number.reward_func(["a 2"], ["a"], [label])


def test_the_response_is_what_follows_the_prompt():
    prompt = "Q: there are 5 and 7 of them in the box. A:"
    assert response_of(prompt + " 12" + prompt + " 3", prompt) == " 12" + prompt + " 3"
    assert response_of("<bos>" + prompt + " 12", prompt) == " 12"
    assert response_of(prompt[5:] + " 12", prompt) == " 12"  # truncated from the left
    assert response_of("something else", prompt) == "something else"
    assert response_of("12", "") == "12"
