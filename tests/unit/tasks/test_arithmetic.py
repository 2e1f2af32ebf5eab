"""The built-in arithmetic task: problems, solutions, and where a response goes wrong."""

import hashlib
import json
import random
import re

import pytest

from openrlhf_shear.cli import make_arithmetic
from openrlhf_shear.tasks.arithmetic.problems import (
    ALPHABET,
    FILLERS,
    alphabet,
    make_problems,
    parse_problem,
    split_of,
    write_dataset,
)
from openrlhf_shear.tasks.arithmetic.solutions import (
    MAX_RESPONSE_TOKENS,
    SolutionCheck,
    check,
    max_response_tokens,
    write_solution,
)

PROMPT = "37a+45bx7c-12d+08ex3f-31g+77="
SOLUTION = "a37+45=82;~b7x82=74;.,c-12+74=62;d62+08=70;~e70x3=10;f-31+10=79;_g79+77=56;#56"


def steps_of(response):
    """(index of the step's letter, its text up to the semicolon), by a regular expression of the test's own."""
    return [(m.start(), m[0]) for m in re.finditer(r"[a-l][^;]*", response)]


def follow_from(prompt, step, value):
    """The text after a step that ended on `value`, computed rightly from there, by an evaluator of the test's own."""
    text = ""
    for letter, sign, b in re.findall(r"([a-l])([+x-])(\d+)", prompt)[step + 1 :]:
        new = {"+": value + int(b), "-": value - int(b), "x": value * int(b)}[sign] % 100
        text += f"{letter}{value:02d}{sign}{b}={new:02d};"
        value = new
    return f"{text}#{value:02d}", value


def test_the_documented_example_holds():
    problem = parse_problem(PROMPT)
    assert (problem.prompt, problem.answer) == (PROMPT, "56") and problem.values == (37, 82, 74, 62, 70, 10, 79, 56)
    assert check(PROMPT, SOLUTION) == SolutionCheck(correct=True, first_error=None)


def test_gold_solutions_are_right_and_60_to_150_tokens_long():
    rng = random.Random(0)
    lengths, orders = [], set()
    for problem in make_problems(300, 0):
        solution = write_solution(problem, rng)
        assert check(problem, solution) == check(problem.prompt, solution) == SolutionCheck(True, None)
        assert set(problem.prompt + solution) <= set(ALPHABET)
        lengths.append(len(solution))
        orders |= {(step[1] == "-", step[1:3].isdigit()) for _, step in steps_of(solution)}
    assert min(lengths) >= 60 and max(lengths) <= 150 and len(orders) == 3
    assert 70 <= sum(lengths) / len(lengths) <= 85


def test_at_most_two_fillers_stand_before_a_step():
    solutions = [write_solution(problem, random.Random(i)) for i, problem in enumerate(make_problems(60, 8))]
    runs = {len(run) for text in solutions for run in re.findall(rf"[{re.escape(FILLERS)}]*(?=[a-g])", text)}
    assert runs == {0, 1, 2}


def test_problems_round_trip_and_depend_only_on_the_seed():
    problems = make_problems(200, seed=3)
    assert [parse_problem(f"Compute.\n{p.prompt}\n") for p in problems] == problems
    assert make_problems(200, seed=3) == problems
    assert make_problems(200, seed=4) != problems
    assert len({p.prompt for p in problems}) == 200
    # A second evaluator agrees about the answer.
    assert all(int(p.answer) == follow_from(p.prompt, -1, p.start)[1] for p in problems)


def test_a_slip_is_found_where_it_is_and_always_propagates():
    rng = random.Random(1)
    for problem in make_problems(60, seed=5):
        solution = write_solution(problem, rng)
        for k, (start, step) in enumerate(steps_of(solution)):
            digit = rng.choice((1, 2))  # tens or ones of the result
            at = start + step.index("=") + digit
            right = int(solution[start + step.index("=") + 1 :][:2])
            wrong = (right + rng.randrange(1, 10) * (10 if digit == 1 else 1)) % 100
            if digit == 2 and wrong // 10 != right // 10:
                at -= 1  # the change carried into the tens
            tail, end = follow_from(problem.prompt, k, wrong)
            slipped = solution[: start + step.index("=") + 1] + f"{wrong:02d};" + tail
            assert end != int(problem.answer)
            assert check(problem, slipped) == SolutionCheck(correct=False, first_error=at)


def test_a_miscopied_operand_under_a_right_result_is_counted_and_is_no_error():
    miscopied = SOLUTION.replace("62+08", "62+09").replace("7x82", "7x12")
    assert check(PROMPT, miscopied) == SolutionCheck(True, None, miscopied=2)
    assert check(PROMPT, miscopied.replace("=79", "=78")) == SolutionCheck(True, SOLUTION.index("79;") + 1, miscopied=2)
    # When the result is wrong too, the error begins at the operand; a sign or a missing digit is never a miscopy.
    assert check(PROMPT, SOLUTION.replace("62+08=70", "62+09=71")) == SolutionCheck(True, SOLUTION.index("08=") + 1)
    assert check(PROMPT, SOLUTION.replace("62+08", "62-08")) == SolutionCheck(True, SOLUTION.index("+08="))
    assert check(PROMPT, SOLUTION.replace("62+08", "62+8")) == SolutionCheck(True, SOLUTION.index("08="))
    assert check(PROMPT, SOLUTION[: SOLUTION.index("08=")] + "09") == SolutionCheck(False, SOLUTION.index("08=") + 1)


def test_errors_in_the_answer_the_end_and_the_order_of_steps():
    assert not check(PROMPT, SOLUTION).lucky
    assert check(PROMPT, SOLUTION[:-1] + "7") == SolutionCheck(False, len(SOLUTION) - 1)
    assert check(PROMPT, SOLUTION + "6") == SolutionCheck(False, len(SOLUTION))
    assert check(PROMPT, SOLUTION[:30]) == SolutionCheck(False, 30)
    assert check(PROMPT, "#56") == SolutionCheck(True, 0)
    assert check(PROMPT, "56") == SolutionCheck(False, 0)
    assert check(PROMPT, "b" + SOLUTION[1:]) == SolutionCheck(True, 0)
    # Two slips that cancel: 82 -> 83, then 83 x 7 "=" 74.
    cancelled = SOLUTION.replace("=82", "=83").replace("7x82", "7x83")
    assert check(PROMPT, cancelled) == SolutionCheck(True, SOLUTION.index("82") + 1) and check(PROMPT, cancelled).lucky


def test_one_changed_character_is_harmless_only_in_a_filler_or_an_operand():
    rng = random.Random(2)
    operands = {start + m.start() for start, s in steps_of(SOLUTION) for m in re.finditer(r"\d", s.partition("=")[0])}
    for _ in range(1000):
        at, char = rng.randrange(len(SOLUTION)), rng.choice(ALPHABET)
        found = check(PROMPT, SOLUTION[:at] + char + SOLUTION[at + 1 :])
        same_kind = {char, SOLUTION[at]} <= set(FILLERS) or (at in operands and char.isdigit())
        assert (found.first_error is None) == (char == SOLUTION[at] or same_kind)
        assert found.miscopied == (at in operands and char.isdigit() and char != SOLUTION[at])
        assert found.first_error is None or found.first_error >= at


def test_no_response_raises():
    rng = random.Random(3)
    texts = ["", "#", "=", "<unk><pad>", "\x00\ud800é∑", "٣٧", "9" * 100_000, "~" * 100_000]
    texts += [SOLUTION * 50, SOLUTION[::-1]]
    texts += ["".join(rng.choices(ALPHABET, k=rng.randrange(120))) for _ in range(500)]
    for text in texts:
        found = check(PROMPT, text)
        assert not found.correct or text.endswith("#56")
        assert found.first_error is not None and 0 <= found.first_error <= len(text)


def test_a_text_without_a_problem_is_an_error_that_says_so():
    broken = [PROMPT.replace(*change) for change in (("g+77", ""), ("x3", "x4"), ("37a", "a"))]
    for text in ("", "What is 2+2?", *broken):
        with pytest.raises(ValueError, match="no arithmetic problem"):
            check(text, SOLUTION)
    with pytest.raises(ValueError, match="split must be"):
        make_problems(1, 0, split="test")


def test_heldout_problems_are_never_training_problems(tmp_path):
    rows = {}
    for split in ("train", "heldout"):
        path = write_dataset(tmp_path / f"{split}.jsonl", 3000, seed=0, split=split)
        rows[split] = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(rows[split]) == 3000
        assert all(set(row) == {"prompt", "answer", "datasource"} for row in rows[split])
        assert all(parse_problem(row["prompt"]).answer == row["answer"] for row in rows[split])
    # By construction, not by chance: had the generator met a held-out problem while training, it would have dropped it.
    assert all({split_of(row["prompt"]) for row in rows[split]} == {split} for split in rows)


def test_make_arithmetic_writes_the_folder_and_is_idempotent(tmp_path, capsys):
    def contents():
        make_arithmetic.main(["--out", str(tmp_path / "a"), "--train", "20", "--heldout", "5", "--seed", "7"])
        return {str(f.relative_to(tmp_path)): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}

    first = contents()
    assert contents() == first
    assert {"a/train.jsonl", "a/heldout.jsonl", "a/policy/config.json", "a/policy/model.safetensors"} <= set(first)
    assert first["a/train.jsonl"].count(b"\n") == 20 and first["a/heldout.jsonl"].count(b"\n") == 5
    assert "train.jsonl: 20 problems" in capsys.readouterr().out


def test_the_default_problems_and_solutions_stay_the_same():
    rng, text = random.Random(4), ""
    for split in ("train", "heldout"):
        for problem in make_problems(20, 3, split):
            text += problem.prompt + write_solution(problem, rng) + "\n"
    # From the code that knew seven operations and two fillers only.
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "3eb976408c6adca722b7e9aa87691ced8fe05960aea18f575217c59bd0f2c493"
    )
    assert alphabet() == alphabet(7) == ALPHABET == "0123456789+-x=;#~.,_abcdefg"


@pytest.mark.parametrize("operations", [2, 7, 10, 12])
def test_any_number_of_operations_is_solved_checked_and_its_slip_found(operations):
    rng = random.Random(operations)
    for problem in make_problems(30, seed=5, operations=operations):
        assert len(problem.operations) == operations
        assert int(problem.answer) == follow_from(problem.prompt, -1, problem.start)[1]
        solution = write_solution(problem, rng)
        assert check(problem, solution) == SolutionCheck(True, None)
        assert len(steps_of(solution)) == operations
        assert set(problem.prompt + solution) <= set(alphabet(operations))
        assert len(solution) < max_response_tokens(operations) <= MAX_RESPONSE_TOKENS * max(operations / 7, 1)
        at = rng.choice(steps_of(solution))[0]
        at = solution.index("=", at) + 2  # the ones of the result
        slipped = solution[:at] + str((int(solution[at]) + 5) % 10) + solution[at + 1 :]
        assert check(problem, slipped).first_error == at
