r"""The places of the final answer and of the first error; tables refuse unreadable files."""

import random

import pyarrow
import pyarrow.parquet
import pytest
from cases import cases
from diagnosis_tables import rollout
from transformers import AutoTokenizer

from openrlhf_shear.diagnosis.prefixes import Prefix, read_prefixes, write_prefixes
from openrlhf_shear.rollouts.columns import answer_start, first_error_token, token_at, token_texts
from openrlhf_shear.rollouts.record import Heatmap, TableError, read_rollouts, write_rollouts
from openrlhf_shear.tasks.arithmetic import arithmetic
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems
from openrlhf_shear.tasks.arithmetic.solutions import check, write_solution


@pytest.mark.parametrize(*cases("rollouts", "test_the_final_answer_begins_where_it_can_be_read_off"))
def test_the_final_answer_begins_where_it_can_be_read_off(response, answer):
    """Characters as tokens: the text from the token on is the answer."""
    start = answer_start(list(response))
    assert (None if start is None else response[start:]) == answer


def test_an_answer_inside_a_token_begins_with_that_token():
    assert answer_start(["so", " \\box", "ed{4}"]) == 1
    assert answer_start(["so it", " is \\boxed", "{4}"]) == 1


def test_a_character_is_in_one_token():
    assert [token_at(["ab", "", "c"], i) for i in range(4)] == [0, 0, 2, None]


def test_the_first_error_is_the_character_where_texts_part():
    """Against changing one digit of a right response of the built-in task, whose tokens are characters."""
    tokenizer, rng = AutoTokenizer.from_pretrained(POLICY_DIR), random.Random(0)
    for problem in make_problems(20, seed=5):
        text = write_solution(problem, rng)
        tokens = token_texts(tokenizer, [*tokenizer(text)["input_ids"], tokenizer.eos_token_id])
        assert tokens == [*text, "<eos>"]
        assert first_error_token(problem.prompt, tokens, arithmetic.first_error) is None
        at = text.index("=") + 1  # of the first step's result
        wrong = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        assert (
            first_error_token(f"Please: {problem.prompt}", [*wrong, "<eos>"], arithmetic.first_error)
            == at
            == check(problem, wrong).first_error
        )


def test_a_response_that_stops_early_errs_at_its_end_of_text():
    problem = "37a+45bx7c-12d+08ex3f-31g+77="
    assert first_error_token(problem, [*"a37+45=82;", "<eos>"], arithmetic.first_error) == 10
    assert first_error_token(problem, [*"a37+45=82;"], arithmetic.first_error) is None  # cut off: nothing is wrong yet
    assert first_error_token("What is 37 + 45?", [*"83"], arithmetic.first_error) is None


def test_rollouts_come_back_as_they_were(tmp_path):
    shown = {"span_starts": [0], "nearest_sample": [-1], "nearest_span": [-1], "heatmap_spans": [0]}
    shown |= {"span_distances": [float("inf")], "heatmaps": [Heatmap(1, [0.5])], "answer_start": 1, "first_error": 0}
    full = rollout(tokens=["a", "b\n"], weights=[0.5, 2.0], advantage=0.5, token_advantages=[0.25, 1.0], **shown)
    rows = [full, rollout(sample=1, correct=None)]
    path = write_rollouts(tmp_path / "new" / "r.parquet", rows, {"rule": "shear", "window": 4})
    assert read_rollouts(path) == (rows, {"rule": "shear", "window": 4})
    assert list(path.parent.iterdir()) == [path]


def test_prefixes_come_back_sorted_with_their_accuracy(tmp_path):
    rows = [Prefix("b", 0, True, 8, 20, 0.5, 0.6, 4, 1), Prefix("a", 1, False, 4, 20, 0.5, 0.6, 4, 3)]
    frame, settings = read_prefixes(write_prefixes(tmp_path / "p.parquet", rows, {"window": 4}))
    assert frame["accuracy"].tolist() == [0.75, 0.25] and frame["problem"].tolist() == ["a", "b"]
    assert settings == {"window": 4}


def test_a_table_that_cannot_be_used_is_one_clear_line(tmp_path):
    path = tmp_path / "p.parquet"
    for make, message in (
        (lambda: None, "does not exist; use the path of a prefixes table"),
        (lambda: path.write_text("no parquet"), "is no parquet file that can be read"),
        (lambda: pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), path), "is not a prefixes table of openrlhf_s"),
        (lambda: write_rollouts(path, [rollout()], {}), "is not a prefixes table of openrlhf_shear"),
    ):
        make()
        with pytest.raises(TableError, match=message):
            read_prefixes(path)


def test_a_table_of_another_version_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("openrlhf_shear.rollouts.record.VERSION", 2)
        path = write_rollouts(tmp_path / "r.parquet", [rollout()], {})
    with pytest.raises(TableError, match="has version 2 of the rollouts table, this openrlhf_shear reads version 1"):
        read_rollouts(path)
