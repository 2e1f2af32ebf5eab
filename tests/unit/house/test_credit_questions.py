"""The planned questions' differences: tuned rates, which runs are paired, and each row of the decision tables."""

import json
import lzma
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import credit_questions
import numpy as np
import pytest
from credit_questions import (
    JUDGED,
    QUESTIONS,
    SEEDS,
    SETTINGS,
    TEXT,
    TRIALS,
    _shown,
    answer_to,
    first_answer,
    second_answer,
)
from lab_cases import MADE, write_run

from openrlhf_shear.lab.policy import fingerprint, start_policy
from openrlhf_shear.lab.runs import jobs
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.report.estimates import paired

ROOT = Path(__file__).parents[3]
TUNING = range(920, 923)


def write(folder, question, rule, rate, evaluations):
    """Write runs by seed, with `evaluations` after steps 5 and 10."""
    settings = replace(question.settings, learning_rate=rate)
    start = start_policy(settings)
    for job in jobs(settings, parse_rules(rule), evaluations, start, fingerprint(start), folder):
        write_run(job, evaluations=evaluations[job.seed], final=evaluations[job.seed][-1], made=MADE)


def tune(folder, question, rule, scores):
    """Write the tuning's runs, with a score for each rate."""
    for rate, score in scores.items():
        write(folder, question, rule, rate, dict.fromkeys(TUNING, (score, score)))


def test_each_rule_is_compared_at_its_best_rate(tmp_path):
    """The baseline's best is an end of the range, so that its range has grown; runs at other rates do not count."""
    question = QUESTIONS[2]
    rule = question.rule
    tune(tmp_path, question, rule, {1e-4: 0.2, 2e-4: 0.5, 4e-4: 0.3})
    tune(tmp_path, question, question.baseline, {1e-4: 0.2, 2e-4: 0.3, 4e-4: 0.4})
    with pytest.raises(ValueError, match="the tuning lacks 3 runs"):
        answer_to(question, tmp_path)
    tune(tmp_path, question, question.baseline, {8e-4: 0.1})
    rng = np.random.default_rng(0)
    mine, its = ({seed: tuple(rng.random(2)) for seed in SEEDS} for _ in range(2))
    write(tmp_path, question, rule, 2e-4, mine)
    write(tmp_path, question, rule, 4e-4, dict.fromkeys(SEEDS, (1.0, 1.0)))
    write(tmp_path, question, question.baseline, 4e-4, its)
    found = answer_to(question, tmp_path)
    row = found["difference"]
    assert (row["rates"], row["seeds"]) == ((2e-4, 4e-4), 24)
    for measure, of in (("evaluated", np.mean), ("final", lambda pair: pair[1]), ("best", max)):
        differences = [of(mine[seed]) - of(its[seed]) for seed in SEEDS]
        assert row[measure]["mean"] == pytest.approx(np.mean(differences))
        half = 2.0687 * np.std(differences, ddof=1) / np.sqrt(24)  # t of 23 degrees of freedom
        assert row[measure]["high"] - row[measure]["mean"] == pytest.approx(half, rel=1e-4)
    assert row["steps"]["mean"] == 0, "every run of `write_run` has the same steps"
    won = np.mean([np.mean(a) > np.mean(b) for a in mine.values() for b in its.values()])
    assert row["improvement"]["value"] == pytest.approx(won)
    middle = sorted(np.mean(mine[seed]) - np.mean(its[seed]) for seed in SEEDS)[6:18]
    assert row["iqm"]["value"] == pytest.approx(np.mean(middle))
    assert found["conclusion"] == second_answer(row["evaluated"]["low"], row["evaluated"]["high"])


def test_a_question_with_missing_seeds_is_interim(tmp_path, monkeypatch):
    question = QUESTIONS[1]
    for rule in (question.baseline, question.rule):
        tune(tmp_path, question, rule, {1e-4: 0.2, 2e-4: 0.5, 4e-4: 0.3})
    write(tmp_path, question, "uniform", 2e-4, {200: (0.1, 0.2), 201: (0.2, 0.2)})
    write(tmp_path, question, "shear", 2e-4, {200: (0.3, 0.2), 201: (0.3, 0.2), 202: (0.9, 0.9)})
    found = answer_to(question, tmp_path)
    assert found["conclusion"] == "interim: 5 of 48 runs" and found["difference"] is None, "nobody looks yet"


def test_a_folder_without_tuned_questions_overwrites_no_answer(tmp_path, monkeypatch, capsys):
    earlier = tmp_path / "kept.json"
    earlier.write_text("an answer")
    for folder, said in ((tmp_path, "no runs of the lab in"), (tmp_path / "lab", "nothing is written")):
        monkeypatch.setattr(sys, "argv", ["credit_questions.py", "--runs", str(folder), "--output", str(earlier)])
        with pytest.raises(SystemExit) as stopped:
            credit_questions.main()
        assert said in f"{stopped.value}{capsys.readouterr().err}" and earlier.read_text() == "an answer"
        (tmp_path / "lab/runs").mkdir(parents=True, exist_ok=True)


def test_a_question_whose_runs_are_not_there_keeps_its_answer(tmp_path, monkeypatch, capsys):
    def answer_of(question, folder):
        if question is QUESTIONS[2]:
            raise ValueError("the tuning lacks 6 runs")
        return {"difference": None, "conclusion": "interim"}

    earlier = tmp_path / "kept.json"
    earlier.write_text(json.dumps({"questions": {"2": "an answer"}}))
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(credit_questions, "answer_to", answer_of)
    line = ["credit_questions.py", "--runs", str(tmp_path), "--output", str(earlier)]
    monkeypatch.setattr(sys, "argv", line)
    credit_questions.main()
    found = json.loads(earlier.read_text())["questions"]
    assert found == {"1": {"difference": None, "conclusion": "interim"}, "2": "an answer"}
    assert "the tuning lacks 6 runs (ARMS=q2 " in capsys.readouterr().out


def test_the_conclusions_are_those_of_the_decision_tables():
    page = (ROOT / "docs/credit-questions.md").read_text()
    gains = "SHEAR gains here, by as much as the interval says; the first comparison's conclusion is overturned"
    for answer, low, high, said in (
        (first_answer, 0.2, 3, gains),
        (first_answer, 0.2, 0.8, gains),
        (first_answer, -2, -0.1, "SHEAR loses here, by as much as the interval says"),
        (first_answer, -2, 0.9, "SHEAR is worth less than a point here"),
        (first_answer, -2, 1.1, "undecided"),
        (second_answer, 0.1, 0.9, "hidden states add something that words do not, on this task"),
        (second_answer, -0.9, 0.9, "words suffice, on this task"),
        (second_answer, -3, -0.1, "words are better, on this task"),
        (second_answer, -0.9, 1.1, "undecided"),
        (second_answer, -1.1, 0.9, "undecided"),
    ):
        assert answer(low / 100, high / 100) == said and said in page


def test_the_page_has_the_kept_answer():
    earlier = json.loads((ROOT / "benchmarks/results/credit_questions.json").read_text())["questions"]
    page = (ROOT / "docs/credit-questions.md").read_text()
    for found in earlier.values():
        row = _shown(found["difference"])
        assert all(row[name] in page for name in ("evaluated", "final", "best", "steps", "iqm", "improvement"))
        assert found["conclusion"].split(",")[0] in page.replace("Words", "words")


def test_what_the_page_says_of_single_seeds_and_ties():
    page = (ROOT / "docs/credit-questions.md").read_text()
    kept = json.loads((ROOT / "benchmarks/results/credit_questions.json").read_text())["questions"]
    by_seed = [*kept["1"]["difference"]["by_seed"].values()]
    without = [paired(by_seed[:i] + by_seed[i + 1 :]).high for i in range(len(by_seed))]
    assert paired(by_seed).high < 0.01
    assert (
        f"without any\none of {sum(high > 0.01 for high in without)} of the {len(by_seed)} seeds it lies above 1"
        in page
    )
    with lzma.open(ROOT / "benchmarks/results/credit_questions_runs.jsonl.xz", "rt") as lines:
        runs = [run for run in map(json.loads, lines) if run["settings"].get("steps") == 20 and run["seed"] < 900]
    best = defaultdict(list)
    for run in runs:
        best[run["seed"]].append(max(run["evaluations"]))
    ties = [len({*pair}) == 1 for pair in best.values()]
    assert f"{sum(ties)} of the {len(ties)} best evaluations are ties" in page


def test_the_plan_and_the_script_that_trains_name_the_same_settings():
    script = (ROOT / "examples/scripts/credit_bench.sh").read_text()
    for flag, value in SETTINGS.items():
        assert f"--{flag.replace('_', '-')} {value} " in script
    assert f"--seeds {len(SEEDS)} --first-seed {SEEDS[0]} " in script
    for name in ("learning_rates", "first_tuning_seed", "widen_rates"):
        assert f"--{name.replace('_', '-')} {getattr(TRIALS, name)} " in script
    assert f"TEXT={TEXT}\n" in script and f"JUDGED={JUDGED}\n" in script
    for question in QUESTIONS.values():
        assert f"question {question.steps} {question.task} " in script
        for variant in parse_rules(f"{question.baseline},{question.rule}"):
            variant.rule(question.settings)
