"""An evaluation's folder and results: after a killed run, and recomputed by an independent script."""

import json
import math
import random
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.evaluation.run import print_table, results, write_results
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.rewards.verdict import of_texts
from openrlhf_shear.sampling.plan import Plan, complete
from openrlhf_shear.sampling.records import Completion, Question, Verdict
from openrlhf_shear.sampling.sampler import Sampling
from openrlhf_shear.sampling.store import Store

TASKS = {"sums": "math", "programs": "code", "one": "math"}
KS = {"sums": 5, "programs": 4, "one": 1}
SETTINGS = {"model": "org/model", "seed": 1, "temperature": 0.1, "k": {"sums": 5}}


def question(benchmark="sums", identity="1"):
    return Question(benchmark, identity, [{"role": "user", "content": "1 \u2212 1?\u2028"}], "0", 0.5)


def completion(benchmark="sums", identity="1", sample=0, response="0", verdict=None):
    return Completion(benchmark, identity, sample, response, 7, False, verdict)


QUESTIONS = [question(*key) for key in (("sums", "9"), ("sums", "10"), ("programs", "10"), ("programs", "a"))]
QUESTIONS[0] = replace(QUESTIONS[0], label={"bound": math.nan})  # a NaN is the same in a resume


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "out")
    store.start(SETTINGS, QUESTIONS)
    return store


def sampled(store):
    """The samples that a resume need not draw again."""
    return [made.sample for made in store.samples() if not made.failed]


def drawn(seed):
    """Questions and completions of three benchmarks: many kinds of verdicts, some completions missing."""
    rng = random.Random(seed)
    questions = [question(benchmark, f"{at}") for benchmark in TASKS for at in range(6)]
    completions = []
    for asked in questions:
        skill = rng.random()
        for sample in range(KS[asked.benchmark]):
            answer = rng.choice(["1", "2", "3", None])
            correct = rng.random() < skill
            reason = None if correct else rng.choice(["wrong", "timeout", "no_answer"])
            lenient = (correct or rng.random() < 0.2) if TASKS[asked.benchmark] == "math" else None
            verdict = Verdict(correct, reason, None, answer if TASKS[asked.benchmark] == "math" else None, lenient)
            if asked.id == "0" or rng.random() < 0.1:
                verdict = rng.choice([None, *(of_texts(None, failure=why) for why in (None, "died", "[red] x"))])
            if rng.random() < 0.95:
                made = completion(asked.benchmark, asked.id, sample, "\ud800 r", verdict)
                completions.append(replace(made, tokens=rng.randint(1, 999), truncated=rng.random() < 0.2))
    return questions, completions


def test_what_is_written_is_read(store):
    with store.log() as append:
        append(completion(response="two\nlines \u2028 and half a pair \ud83d"))
        assert len(store.samples()) == 1  # at once, for readers of a running evaluation
        append(completion(sample=1, verdict=Verdict(True, answer="0", lenient=True)))
    assert store.samples()[0].response == "two\nlines \u2028 and half a pair \ud83d"
    assert store.samples()[1].verdict == Verdict(True, answer="0", lenient=True)
    assert repr(list(store.questions().values())) == repr(QUESTIONS) and next(iter(store.questions())) == ("sums", "9")
    assert list(store.settings().items()) == list(SETTINGS.items())  # tasks keep the order of the results
    assert sampled(store) == [0, 1]


def test_wherever_the_last_line_is_torn(store):
    path = store.folder / "samples.jsonl"
    with store.log() as append:
        append(completion(sample=0))
        first = path.stat().st_size
        append(completion(sample=1, response="\u00e9"))
    whole = path.read_bytes()
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert sampled(store) == [0], end
        with store.log() as append:
            append(completion(sample=2))
        assert [c.sample for c in store.samples()] == [0, 2], end
    path.write_bytes(whole[:3])
    with store.log() as append:
        append(completion(sample=4))
    assert [c.sample for c in store.samples()] == [4]
    path.write_bytes(whole[:first] + whole[first : first + 9] + b"\n" + whole[:first])  # a line that is whole
    with pytest.raises(ValueError, match=r"samples\.jsonl is damaged in line 2"):
        store.samples()


def test_a_later_duplicate_is_ignored_but_for_one_that_failed(store):
    died = of_texts(None, failure="the engine died")
    with store.log() as append:
        for sample, response, verdict in ((0, "a", None), (0, "b", None), (1, "", died), (2, "", died), (1, "c", None)):
            append(completion(sample=sample, response=response, verdict=verdict))
    assert [(c.sample, c.response) for c in store.samples()] == [(0, "a"), (1, "c"), (2, "")]
    assert sampled(store) == [0, 1]


def test_one_process_samples_at_a_time(store):
    script = (
        "import sys; from openrlhf_shear.sampling.store import Store\n"
        "with Store(sys.argv[1]).alone(): print('in', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(store.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        assert other.stdout.read(2) == b"in"
        plan = Plan("another model", QUESTIONS, TASKS, {"sums": 5, "programs": 1}, Sampling())
        with pytest.raises(ValueError, match="another process samples into"):
            complete(plan, store, None, GradingConfig())
        assert store.settings() == SETTINGS, "nothing of the other run changes"
    finally:
        other.kill()
        other.communicate()
    with store.alone():  # a killed process holds no lock
        pass


def test_a_verdict_stays_with_the_response_that_it_judged(tmp_path, needs_jail, capsys):
    """samples.jsonl was deleted to sample anew, and the run that did so was killed before it graded."""
    asked = Question("sums", "1", [], "4")
    plan = Plan("m", [asked], {"sums": "math"}, {"sums": 1}, Sampling())

    def score(response: str) -> list[bool]:
        with store.log() as append:
            append(completion(response=response))
        return [c.verdict.correct for c in complete(plan, store, None, GradingConfig(answer_format="last", cores=1))]

    store = Store(tmp_path)
    store.start(plan.settings(), [asked])
    assert score("It is 4") == [True]
    (tmp_path / "samples.jsonl").unlink()
    assert score("It is 5") == [False]
    assert "1 completions are there already, none to be sampled" in capsys.readouterr().out


def test_an_edited_reward_file_grades_again(tmp_path):
    file, asked = tmp_path / "mine.py", Question("sums", "1", [], "4")
    plan = Plan("m", [asked], {"sums": str(file)}, {"sums": 1}, Sampling())
    store = Store(tmp_path / "store")
    store.start(plan.settings(), [asked])
    with store.log() as append:
        append(completion(response="It is 4"))

    def correct() -> list[bool]:
        return [c.verdict.correct for c in complete(plan, store, None, GradingConfig(cores=1), progress=False)]

    file.write_text("def reward_func(queries, prompts, labels): return {'rewards': 1.0}\n")
    assert correct() == correct() == [True]
    file.write_text("def reward_func(queries, prompts, labels): return {'rewards': 0.0}\n")
    assert correct() == [False]


def test_a_resume_asks_for_the_same(store):
    store.start({**SETTINGS, "seed": 9}, QUESTIONS)  # nothing is sampled yet
    store.start(SETTINGS, QUESTIONS)
    with store.log() as append:
        append(completion())
    store.start(dict(reversed(SETTINGS.items())), QUESTIONS)
    with pytest.raises(ValueError) as error:
        store.start({**SETTINGS, "seed": 2, "k": {"sums": 8}, "top_p": 1.0}, QUESTIONS)
    said = str(error.value)
    assert "seed was 1 and is 2" in said and "k was {'sums': 5} and is {'sums': 8}" in said
    assert "top_p was nothing and is 1.0" in said and "model" not in said.replace(str(store.folder), "")
    assert "another --output, or delete this folder" in said
    with pytest.raises(ValueError, match="seed was 1 and is nothing"):
        store.start({name: value for name, value in SETTINGS.items() if name != "seed"}, QUESTIONS)
    with pytest.raises(ValueError, match="holds other questions"):
        store.start(SETTINGS, [replace(QUESTIONS[0], label="1"), *QUESTIONS[1:]])
    assert store.settings() == SETTINGS and len(store.questions()) == len(QUESTIONS)


def test_a_start_that_was_cut_short(store):
    (store.folder / "settings.json").unlink()  # it is written last
    store.start(SETTINGS, QUESTIONS)
    with store.log() as append:
        append(completion())
    (store.folder / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"completions but no settings\.json"):
        store.start(SETTINGS, QUESTIONS)


def test_generations_are_in_the_order_of_the_questions(store):
    mine = [completion(asked.benchmark, asked.id, sample) for asked in QUESTIONS for sample in range(11)]
    store.write_generations(random.Random(0).sample(mine, len(mine)))
    assert store.generations() == mine  # sums before programs, 9 before 10, sample 2 before 10


def test_a_file_is_there_as_it_was_or_as_it_is_to_be(tmp_path):
    path = tmp_path / "file.json"
    write_text(path, "at first")
    with open(path) as reader:
        write_text(path, "before")
        assert reader.read() == "at first"  # another file took its place
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["file.json"]


SCRIPT = Path(__file__).parents[3] / "benchmarks" / "recompute_results.py"


@pytest.mark.parametrize("seed", range(3))
def test_results_computed_a_second_time(tmp_path, seed):
    """By the script in benchmarks/, which shares no code with them."""
    script = runpy.run_path(str(SCRIPT))
    questions, completions = drawn(seed)
    store = Store(tmp_path)
    store.start(SETTINGS, questions)
    store.write_generations(completions)
    write_results(results(store.questions(), store.generations(), TASKS, KS), tmp_path / "results.json")
    written = json.loads((tmp_path / "results.json").read_text())
    assert list(written["benchmarks"]) == list(TASKS)
    for benchmark, problems in script["read"](tmp_path).items():
        row, wanted = written["benchmarks"][benchmark], script["scores"](problems, KS[benchmark])
        assert row.pop("task") == TASKS[benchmark] and row.keys() == wanted.keys()
        assert {name: value for name, value in wanted.items() if not script["same"](value, row[name])} == {}
        assert row["left_out_problems"] >= 1 and row["failed"]  # the case is there
    mine = [written["benchmarks"][name][f"avg@{KS[name]}"] for name in ("sums", "one")]
    code = written["benchmarks"]["programs"]["avg@4"]
    assert written["average"] == {"math": pytest.approx(sum(mine) / 2), "code": pytest.approx(code)}


def test_the_same_completions_in_any_order_give_the_same_bytes(tmp_path):
    questions, completions = drawn(3)
    written = set()
    for at in range(5):
        random.Random(at).shuffle(completions)
        scores = results({(q.benchmark, q.id): q for q in questions}, completions, TASKS, KS)
        write_results(scores, tmp_path / "results.json")
        written.add((tmp_path / "results.json").read_bytes())
    assert len(written) == 1


def test_no_average_over_some_of_the_benchmarks():
    """A benchmark without a graded completion has no score, so its task has no average, and neither is a 0."""
    questions = {("sums", "1"): question(), ("one", "1"): question("one")}
    right = Verdict(True, answer="0", lenient=True)
    tasks = {"sums": "math", "one": "math"}
    found = results(questions, [completion(verdict=right)], tasks, KS)
    row = found["benchmarks"]["one"]
    assert (row["avg@1"], row["stderr"], row["response_tokens_mean"], row["missing"]) == (None, None, None, 1)
    assert found["average"] == {"math": None}
    both = [completion(verdict=right), completion("one", verdict=replace(right, correct=False, reason="wrong"))]
    assert results(questions, both, tasks, KS)["average"]["math"] == 0.5


def test_the_table(capsys):
    questions = {("sums", str(at)): question(identity=str(at)) for at in range(3)}
    wrong, right = Verdict(False, "timeout", answer="3", lenient=True), Verdict(True, answer="0", lenient=True)
    made = [completion(identity="0", sample=s, verdict=right) for s in range(5)]
    made += [completion(identity="1", sample=s, verdict=wrong) for s in range(4)]
    made += [completion(identity="2", verdict=of_texts(None, failure="[red] engine"))]
    scores = results(questions, [replace(made[0], truncated=True), *made[1:]], {"sums": "math"}, KS)
    print_table(scores | {"max_new_tokens": 320})
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    rows = [line.strip("│ ").split("│") for line in said.splitlines() if "│ sums" in line]
    # one problem right, one wrong with four samples (so it is not in pass@5), one left out
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["sums", "50.0 ± 50.0", "5", "3", "320", "11.1%", "0.0%", "1"],
        ["sums", "100.0", "50.0", "100.0", "7", "4"],
    ]
    assert [line.split("│")[2].strip() for line in said.splitlines() if "│ average" in line] == ["50.0"]
    assert "sums: 1 completions failed: [red] engine" in said and "sums: 5 completions are missing" in said
    assert "sums: 1 problems have too few graded completions for pass@5" in said
    assert "sums: 1 problems have no graded completion and are left out" in said


def test_a_score_of_nothing_but_the_limit_says_so(capsys):
    """AIME24 0.0 of 3 problems, all truncated."""
    questions = {("aime24", str(at)): question("aime24", str(at)) for at in range(3)}
    made = [completion("aime24", str(at), verdict=Verdict(False, "no_answer")) for at in range(3)]
    scores = results(questions, [replace(c, truncated=True) for c in made], {"aime24": "math"}, {"aime24": 1})
    print_table(scores | {"max_new_tokens": 320})
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if "│ aime24" in line).strip("│ ").split("│")
    assert [cell.strip() for cell in row[1:7]] == ["0.0 ± 0.0", "1", "3 of 30", "320", "100.0%", "100.0%"]
    assert "aime24: 100.0% of the completions were cut off at 320 tokens\n" in said
