"""An evaluation from beginning to end with a stand-in for the engines: whole path, failures, resume, regrading."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmark_rows import DATA, needs_data

from openrlhf_shear.cli import evaluate as cli
from openrlhf_shear.data.files import open_rows
from openrlhf_shear.evaluation.run import evaluate, regrade
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.rewards.verdict import Failure, Verdict
from openrlhf_shear.sampling.benchmarks import BENCHMARKS, load_questions, source
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.records import Question
from openrlhf_shear.sampling.sampler import Output, Sampling, requests, seed_of
from openrlhf_shear.sampling.store import Store

pytestmark = pytest.mark.usefixtures("needs_jail")
QUICK = GradingConfig(cores=2, timeout=20.0)


def plan(*answers: str, k: int = 2) -> Plan:
    """A question for each answer, which is its label, too."""
    questions = [
        Question("sums", str(i), [{"role": "user", "content": f"problem {i}"}], answer)
        for i, answer in enumerate(answers)
    ]
    return Plan("a model", questions, {"sums": "math"}, {"sums": k}, Sampling(seed=3))


class Engines:
    """Engines that answer with `answer(request)`, last request first, and count starts and requests."""

    def __init__(self, answer):
        self.answer, self.started, self.asked = answer, 0, []

    @contextmanager
    def __call__(self):
        self.started += 1

        def sample(wanted):
            for request in reversed(wanted):
                self.asked.append((request.question.id, request.sample, request.seed))
                answer = self.answer(request)
                yield request, answer if isinstance(answer, Verdict) else Output(answer, 7, False)

        yield sample


def run(plan: Plan, folder: Path, engines: Engines, grading: GradingConfig = QUICK) -> dict:
    """The results of an evaluation in a folder."""
    return evaluate(plan, Store(folder), engines, grading, progress=False)


def test_other_settings_of_the_grading_are_those_of_all_verdicts(tmp_path):
    """Two engine failures are sampled again, with another answer format: all four verdicts are by the new one."""

    def answer(failing):
        return lambda request: (
            Verdict(None, failure=Failure.ENGINE_DIED)
            if failing and request.sample
            else f"The answer is {request.question.label}."
        )

    tags = GradingConfig(cores=2, timeout=20.0, answer_format="tags")
    row = run(plan("1", "2"), tmp_path, Engines(answer(failing=True)), tags)["benchmarks"]["sums"]
    assert row["avg@2"] is None or row["avg@2"] == 0
    row = run(plan("1", "2"), tmp_path, Engines(answer(failing=False)))["benchmarks"]["sums"]
    assert row["avg@2"] == 1


def boxed(request) -> str:
    return rf"So it is \boxed{{{request.question.label}}}."


def half_right(request) -> str:
    return boxed(request) if request.sample == 0 else r"\boxed{-1}"


def test_scores_and_files(tmp_path):
    found = run(plan("1", "2", "3"), tmp_path, Engines(half_right))
    row = found["benchmarks"]["sums"]
    assert (row["avg@2"], row["pass@2"], row["completions"], row["response_tokens_mean"]) == (0.5, 1.0, 6, 7.0)
    assert json.loads((tmp_path / "results.json").read_text()) == found
    lines = [json.loads(line) for line in (tmp_path / "generations.jsonl").read_text().splitlines()]
    assert [(line["question"], line["sample"]) for line in lines] == [(str(i), s) for i in range(3) for s in (0, 1)]
    assert [line["verdict"]["correct"] for line in lines] == [True, False] * 3


def test_a_script_without_our_code_finds_the_same_numbers(tmp_path):
    def some(request):
        if (request.question.id, request.sample) == ("2", 1):
            return Verdict(None, failure=Failure.ENGINE_DIED)
        return boxed(request) if request.sample % 3 == int(request.question.id) % 2 else "no box"

    run(plan("1", "2", "3", "4", k=5), tmp_path, Engines(some))
    script = Path(__file__).parents[3] / "benchmarks" / "recompute_results.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0 and "numbers agree" in done.stdout, done.stdout
    written = (tmp_path / "results.json").read_text()
    (tmp_path / "results.json").write_text(written.replace('"graded": 19', '"graded": 20'))
    assert subprocess.run([sys.executable, script, tmp_path], capture_output=True).returncode == 1


def test_what_was_interrupted_goes_on_and_gives_the_same_files(tmp_path):
    run(plan("1", "2", "3"), tmp_path / "whole", Engines(half_right))

    def dies(request):
        if len(first.asked) == 4:
            raise KeyboardInterrupt
        return half_right(request)

    first, second, third = Engines(dies), Engines(half_right), Engines(half_right)
    with pytest.raises(KeyboardInterrupt):
        run(plan("1", "2", "3"), tmp_path / "parts", first)
    run(plan("1", "2", "3"), tmp_path / "parts", second)
    assert len(second.asked) == 3 and not set(second.asked) & set(first.asked[:3])
    for name in ("results.json", "generations.jsonl", "questions.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    run(plan("1", "2", "3"), tmp_path / "parts", third)
    assert third.started == 0, "no engine starts where nothing is to be sampled"


def test_a_failed_completion_is_no_zero_and_is_tried_again(tmp_path):
    failing = Engines(
        lambda r: Verdict(None, failure=Failure.ENGINE_DIED) if (r.question.id, r.sample) == ("1", 0) else boxed(r)
    )
    found = run(plan("1", "2"), tmp_path, failing)["benchmarks"]["sums"]
    assert found["avg@2"] == 1.0 and found["failed"] == {"its engine died": 1} and found["graded"] == 3
    again = Engines(boxed)
    found = run(plan("1", "2"), tmp_path, again)["benchmarks"]["sums"]
    assert [ask[:2] for ask in again.asked] == [("1", 0)] and found["failed"] == {} and found["graded"] == 4


def test_another_evaluation_does_not_go_on_in_the_folder(tmp_path):
    run(plan("1"), tmp_path, Engines(boxed))
    other = Plan(**{**vars(plan("1")), "sampling": Sampling(temperature=1.0, seed=3)})
    with pytest.raises(ValueError, match=r"temperature was 0.1 and is 1.0.*another --output"):
        run(other, tmp_path, Engines(boxed))


def test_regrading_needs_no_model(tmp_path):
    run(plan("1", "2"), tmp_path, Engines(half_right))
    lines = (tmp_path / "generations.jsonl").read_text().replace('"correct": false', '"correct": true')
    (tmp_path / "generations.jsonl").write_text(lines)
    assert regrade(Store(tmp_path), QUICK, progress=False)["benchmarks"]["sums"]["avg@2"] == 0.5
    # a later run sampled what had failed, and was killed before it graded
    rows = [json.loads(line) for line in (tmp_path / "generations.jsonl").read_text().splitlines()]
    rows[1] |= {"response": "", "verdict": rows[1]["verdict"] | {"correct": None, "failure": "its engine died"}}
    (tmp_path / "generations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = regrade(Store(tmp_path), QUICK, progress=False)["benchmarks"]["sums"]
    assert row["failed"] == {} and row["graded"] == 4 and row["avg@2"] == 0.5
    with pytest.raises(ValueError, match="--regrade must be the folder of an evaluation"):
        regrade(Store(tmp_path / "nowhere"), QUICK, progress=False)


def test_seeds_belong_to_completions():
    first, second = requests(plan("1").questions, {"sums": 2}, 3)
    assert (first.seed, second.seed) == (seed_of(3, "sums", "0", 0), seed_of(3, "sums", "0", 1))
    seeds = {seed_of(s, b, q, i) for s in (0, 1) for b in ("a", "b") for q in ("0", "1") for i in (0, 1)}
    assert len(seeds) == 16 and all(0 <= seed < 2**31 for seed in seeds)


@needs_data
@pytest.mark.parametrize("name", [n for n in BENCHMARKS if n not in ("aime25", "amc23", "livecodebench")])
def test_gold_answers_and_canonical_solutions_score_one_through_the_whole_path(tmp_path, name):
    benchmark, number = BENCHMARKS[name], 20 if BENCHMARKS[name].task == "math" else 5
    rows = {row.get("task_id"): row for row in open_rows(source(benchmark, DATA)).rows}

    def gold(request):
        question = request.question
        if benchmark.task == "math":
            return boxed(request)
        row = next(row for key, row in rows.items() if str(key) == question.id)
        code = row.get("code") or row["prompt"] + row["canonical_solution"]
        return f"Here it is:\n```python\n{code}\n```\n"

    questions = load_questions(benchmark, DATA, number)
    mine = Plan("gold", questions, {name: benchmark.task}, {name: 1}, Sampling())
    row = evaluate(mine, Store(tmp_path), Engines(gold), GradingConfig(cores=2, timeout=60.0), progress=False)
    assert row["benchmarks"][name]["avg@1"] == 1.0, row


STARTED = "openrlhf_shear.train.sampling.engine_sampler.started_engines"


@pytest.mark.usefixtures("job")
def test_the_command_prints_its_table_and_fails_where_verdicts_are_missing(monkeypatch, capsys):
    words = "--model model --output out --benchmarks prompts.jsonl --prompt-key question --label-key answer --k 2"
    line = words.split()
    lost = Engines(lambda r: Verdict(None, failure=Failure.ENGINE_DIED) if r.sample else boxed(r))
    monkeypatch.setattr(STARTED, lambda plan, engines, connect: lost())
    with pytest.raises(SystemExit, match="1 completions have no verdict and count nowhere"):
        cli.main(line)
    monkeypatch.setattr(STARTED, lambda plan, engines, connect: Engines(boxed)())
    cli.main(line)
    assert "100.0" in capsys.readouterr().out
    cli.main(["--regrade", "out"])
    assert "100.0" in capsys.readouterr().out
