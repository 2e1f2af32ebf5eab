"""The built-in arithmetic task, its policy and the light rewards."""

import hashlib
import json
import random
import re

import pytest

from openrlhf_shear.arithmetic.problems import (
    ALPHABET,
    FILLERS,
    LETTERS,
    MAX_RESPONSE_TOKENS,
    POLICY_DIR,
    STEPS,
    Check,
    alphabet,
    check,
    different_problems,
    make_problems,
    max_response_tokens,
    parse_problem,
    split_of,
    write_dataset,
    write_solution,
)
from openrlhf_shear.cli import make_arithmetic

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


# ---- the task ----


def test_the_documented_example_holds():
    problem = parse_problem(PROMPT)
    assert problem.prompt == PROMPT and problem.answer == "56"
    assert problem.values == (37, 82, 74, 62, 70, 10, 79, 56)
    assert check(PROMPT, SOLUTION) == Check(correct=True, first_error=None)


def test_gold_solutions_are_right_and_60_to_150_tokens_long():
    rng = random.Random(0)
    lengths, orders, fillers = [], set(), set()
    for seed in range(20):
        for problem in make_problems(50, seed):
            solution = write_solution(problem, rng)
            assert check(problem, solution) == check(problem.prompt, solution) == Check(True, None)
            assert set(problem.prompt + solution) <= set(ALPHABET)
            lengths.append(len(solution))
            orders |= {(step[1] == "-", step[1:3].isdigit()) for _, step in steps_of(solution)}
            fillers |= {len(run) for run in re.findall(rf"[{re.escape(FILLERS)}]*(?=[a-g])", solution)}
    assert min(lengths) >= 60 and max(lengths) <= 150
    assert 70 <= sum(lengths) / len(lengths) <= 85
    assert fillers == {0, 1, 2} and len(orders) == 3


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
    for problem in make_problems(150, seed=5):
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
            assert check(problem, slipped) == Check(correct=False, first_error=at)


def test_a_miscopied_operand_under_a_right_result_is_counted_and_is_no_error():
    miscopied = SOLUTION.replace("62+08", "62+09").replace("7x82", "7x12")
    assert check(PROMPT, miscopied) == Check(True, None, miscopied=2)
    assert check(PROMPT, miscopied.replace("=79", "=78")) == Check(True, SOLUTION.index("79;") + 1, miscopied=2)
    # When the result is wrong too, the error begins at the operand; a sign or a missing digit is never a miscopy.
    assert check(PROMPT, SOLUTION.replace("62+08=70", "62+09=71")) == Check(True, SOLUTION.index("08=") + 1)
    assert check(PROMPT, SOLUTION.replace("62+08", "62-08")) == Check(True, SOLUTION.index("+08="))
    assert check(PROMPT, SOLUTION.replace("62+08", "62+8")) == Check(True, SOLUTION.index("08="))
    assert check(PROMPT, SOLUTION[: SOLUTION.index("08=")] + "09") == Check(False, SOLUTION.index("08=") + 1)


def test_errors_in_the_answer_the_end_and_the_order_of_steps():
    assert not check(PROMPT, SOLUTION).lucky
    assert check(PROMPT, SOLUTION[:-1] + "7") == Check(False, len(SOLUTION) - 1)
    assert check(PROMPT, SOLUTION + "6") == Check(False, len(SOLUTION))
    assert check(PROMPT, SOLUTION[:30]) == Check(False, 30)
    assert check(PROMPT, "#56") == Check(True, 0)
    assert check(PROMPT, "56") == Check(False, 0)
    assert check(PROMPT, "b" + SOLUTION[1:]) == Check(True, 0)
    # Two slips that cancel: 82 -> 83, then 83 x 7 "=" 74.
    cancelled = SOLUTION.replace("=82", "=83").replace("7x82", "7x83")
    assert check(PROMPT, cancelled) == Check(True, SOLUTION.index("82") + 1) and check(PROMPT, cancelled).lucky


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
    texts = [
        "",
        "#",
        "=",
        "<unk><pad>",
        "\x00\ud800é∑",
        "٣٧",
        "9" * 100_000,
        "~" * 100_000,
        SOLUTION * 50,
        SOLUTION[::-1],
    ]
    texts += ["".join(rng.choices(ALPHABET, k=rng.randrange(120))) for _ in range(500)]
    for text in texts:
        found = check(PROMPT, text)
        assert not found.correct or text.endswith("#56")
        assert found.first_error is not None and 0 <= found.first_error <= len(text)


def test_a_text_without_a_problem_is_an_error_that_says_so():
    for text in (
        "",
        "What is 2+2?",
        PROMPT.replace("g+77", ""),
        PROMPT.replace("x3", "x4"),
        PROMPT.replace("37a", "a"),
    ):
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
    heldout = {row["prompt"] for row in rows["heldout"]}
    assert not heldout & {row["prompt"] for row in rows["train"]}
    # By construction, not by chance: had the generator met a held-out problem while training, it would have dropped it.
    assert {split_of(prompt) for prompt in heldout} == {"heldout"}
    assert {split_of(row["prompt"]) for row in rows["train"]} == {"train"}


def test_make_arithmetic_writes_the_folder_and_is_idempotent(tmp_path, capsys):
    def contents():
        make_arithmetic.main(["--out", str(tmp_path / "a"), "--train", "20", "--heldout", "5", "--seed", "7"])
        return {str(f.relative_to(tmp_path)): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}

    first = contents()
    assert contents() == first
    assert {"a/train.jsonl", "a/heldout.jsonl", "a/policy/config.json", "a/policy/model.safetensors"} <= set(first)
    assert first["a/train.jsonl"].count(b"\n") == 20 and first["a/heldout.jsonl"].count(b"\n") == 5
    assert "train.jsonl: 20 problems" in capsys.readouterr().out


# ---- other numbers of operations and fillers ----


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


@pytest.mark.parametrize("operations", [1, 2, 7, 10, 12])
def test_any_number_of_operations_is_solved_checked_and_its_slip_found(operations):
    rng = random.Random(operations)
    for problem in make_problems(30, seed=5, operations=operations):
        assert len(problem.operations) == operations
        assert int(problem.answer) == follow_from(problem.prompt, -1, problem.start)[1]
        for fillers in (0, 5):
            solution = write_solution(problem, rng, fillers)
            assert check(problem, solution) == Check(True, None)
            assert len(steps_of(solution)) == operations
            assert set(problem.prompt + solution) <= set(alphabet(operations))
            assert len(solution) < max_response_tokens(operations, fillers)
            at = rng.choice(steps_of(solution))[0]
            at = solution.index("=", at) + 2  # the ones of the result
            slipped = solution[:at] + str((int(solution[at]) + 5) % 10) + solution[at + 1 :]
            assert check(problem, slipped).first_error == at


def test_fillers_are_at_most_as_many_as_asked():
    rng = random.Random(0)
    for most in (0, 1, 4):
        runs = set()
        for problem in make_problems(60, seed=8):
            solution = write_solution(problem, rng, fillers=most)
            runs |= {len(run) for run in re.findall(rf"[{re.escape(FILLERS)}]*(?=[a-g])", solution)}
        assert runs == set(range(most + 1))


def test_the_token_budget_is_the_task_s_own_for_the_task_and_grows_with_it():
    assert max_response_tokens() == max_response_tokens(7, 2) == MAX_RESPONSE_TOKENS == 150
    budgets = [[max_response_tokens(n, fillers) for n in range(1, 13)] for fillers in range(9)]
    assert all(row == sorted(set(row)) for row in budgets)
    assert all(column == tuple(sorted(set(column))) for column in zip(*budgets, strict=True))


def test_few_operations_have_few_problems_and_too_many_is_an_error(monkeypatch):
    both = {problem.prompt for split in ("train", "heldout") for problem in make_problems(1000, 0, split, operations=1)}
    assert len(both) == 2000
    with pytest.raises(ValueError, match="20101 different train problems with operations=1"):
        make_problems(different_problems(1) + 1, 0, operations=1)
    # The held-out split has about a sixteenth of them: the loop gives up.
    monkeypatch.setattr("openrlhf_shear.arithmetic.problems._FRUITLESS_DRAWS", 20_000)
    with pytest.raises(ValueError, match="2000 different heldout problems with operations=1"):
        make_problems(2000, 0, "heldout", operations=1)


def test_numbers_outside_the_range_are_errors_that_say_so():
    problem = make_problems(1, 0)[0]
    for operations in (-1, 0, 13):
        for function in (alphabet, max_response_tokens, different_problems):
            with pytest.raises(ValueError, match=f"operations must be between 1 and 12: got {operations}"):
                function(operations)
        with pytest.raises(ValueError, match="operations must be"):
            make_problems(0, 0, operations=operations)
    with pytest.raises(ValueError, match="fillers must not be negative: got -1"):
        write_solution(problem, random.Random(0), fillers=-1)
    with pytest.raises(ValueError, match="fillers must not be negative"):
        max_response_tokens(7, -1)


# ---- the shipped policy ----


@pytest.fixture(scope="module")
def policy():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(POLICY_DIR)
    model = transformers.AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
    return model.eval(), tokenizer


def test_tokenizer_makes_one_token_a_character_and_decodes_exactly(policy):
    model, tokenizer = policy
    rng = random.Random(0)
    for problem in make_problems(50, seed=11):
        text = problem.prompt + write_solution(problem, rng)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(ids) == len(text) and tokenizer.unk_token_id not in ids
        assert tokenizer(text)["input_ids"] == ids
        assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=False) == text + "<eos>"
        assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text
    for garbage in ("", "====", "#" * 50, "=;#~.,_-+x" * 5, "0" * 100, "a-a-a"):
        assert tokenizer.decode(tokenizer(garbage, add_special_tokens=False)["input_ids"]) == garbage
    assert len(tokenizer) == model.config.vocab_size
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3


def test_shipped_policy_is_small_bfloat16_and_documented(policy):
    model, tokenizer = policy
    assert 0.5e6 < model.num_parameters() < 1.2e6
    assert sum(f.stat().st_size for f in POLICY_DIR.iterdir()) < 3e6
    assert model.config.dtype is not None and model.config.model_type == "qwen2"
    assert json.loads((POLICY_DIR / "config.json").read_text())["dtype"] == "bfloat16"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert "warm_up_arithmetic" in (POLICY_DIR / "README.md").read_text()


def test_shipped_policy_is_right_about_as_often_as_its_readme_says(policy):
    from openrlhf_shear.arithmetic.sampling import sampled_accuracy

    accuracy = sampled_accuracy(*policy, make_problems(64, 21, "heldout"), seed=0)
    assert 0.2 <= accuracy.correct <= 0.65
    claimed = float(re.search(r"\*\*([0-9.]+)% right", (POLICY_DIR / "README.md").read_text())[1]) / 100
    # Four standard errors of 64 draws.
    assert abs(accuracy.correct - claimed) < 4 * (claimed * (1 - claimed) / 64) ** 0.5


def test_warm_up_trains_on_response_tokens_only_and_is_reproducible():
    torch = pytest.importorskip("torch")
    from openrlhf_shear.arithmetic.policy import IGNORED, WarmUpSettings, build_tokenizer, encode_batch, warm_up

    tokenizer = build_tokenizer()
    input_ids, labels = encode_batch(tokenizer, [PROMPT, PROMPT], [SOLUTION, "a37"])
    assert input_ids.shape == labels.shape == (2, len(PROMPT) + len(SOLUTION) + 1)
    for row, response in zip(range(2), (SOLUTION, "a37"), strict=True):
        kept = labels[row][labels[row] != IGNORED]
        assert tokenizer.decode(kept) == response + "<eos>"
        assert (labels[row] != IGNORED).nonzero()[0].item() == len(PROMPT)

    settings = WarmUpSettings(seed=5, max_steps=3, batch_size=4, evaluation_problems=4, final_problems=4)
    with torch.random.fork_rng(devices=[]):
        first = warm_up(settings).model.state_dict()
        torch.rand(7)  # the global random state must not matter
        second = warm_up(settings).model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ValueError, match="target_accuracy"):
        WarmUpSettings(target_accuracy=1.5)


# ---- the rewards ----


def test_letters_number_the_steps():
    assert [step[0] for _, step in steps_of(SOLUTION)] == list(LETTERS[:STEPS])
