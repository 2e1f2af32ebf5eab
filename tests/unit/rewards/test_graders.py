"""The table of graders, and multiple choice: a grader that is its file and an entry, and that every room knows."""

import argparse
import json
from contextlib import closing

import pytest
from cases import table

from openrlhf_shear.cli import sampling_flags, serve_reward, train_ppo_ray
from openrlhf_shear.evaluation.run import results
from openrlhf_shear.rewards.choice import CHOICE, chosen
from openrlhf_shear.rewards.grader import Sample
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.pool import RewardPool
from openrlhf_shear.rewards.settings import GradingConfig, RewardSettings
from openrlhf_shear.sampling.benchmarks import custom, load_questions
from openrlhf_shear.sampling.plan import grade
from openrlhf_shear.sampling.records import Completion, Question

RESPONSES = table("rewards", "RESPONSES") | {"\\boxed{" * 50_000: None, "A " * 200_000: None}


@pytest.mark.parametrize("response", RESPONSES, ids=lambda response: response[:30])
def test_the_letter_of_a_response(response):
    letter = RESPONSES[response]
    assert chosen(response) == letter
    limits = RewardSettings("choice").limits
    for gold in ("C", "(C)"):
        verdict = CHOICE.grade(Sample(response, "", gold), limits, None)
        reason = "no_answer" if letter is None else None if letter == "C" else "wrong"
        assert (verdict.correct, verdict.reason, verdict.answer) == (letter == "C", reason, letter)


def test_a_label_without_a_letter_is_refused_before_training_and_fails_its_rollout():
    for label in ("Paris", "K", 2, ["A", "B"], "A or B"):
        assert "is no letter from A to J" in CHOICE.label_problem(label)
        with closing(RewardPool(RewardSettings("choice", cores=1))) as pool:
            (verdict,) = pool.grade_all([(r"\boxed{A}", "", label)])
        assert verdict.why == "grader raised ValueError" and "no letter" in verdict.detail
    assert [CHOICE.label_problem(label) for label in ("A", "(J)", "b", "B. Paris")] == [None] * 4


def test_the_suite_asks_grades_and_scores_a_file_of_choices(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"id": name, "prompt": f"{name}?", "label": label} for name, label in (("x", "(A)"), ("y", "B"))]
    path.write_text("\n".join(map(json.dumps, rows)))
    benchmark = custom(path, "choice", "prompt", "label", 2)
    questions = {(question.benchmark, question.id): question for question in load_questions(benchmark)}
    assert questions["custom-mine", "x"].messages[0] == {"role": "system", "content": CHOICE.system}
    said = {"x": (r"\boxed{A}", r"\boxed{A}"), "y": ("no idea", r"\boxed{C}")}
    completions = [
        Completion("custom-mine", name, sample, text, 5, False)
        for name, texts in said.items()
        for sample, text in enumerate(texts)
    ]
    tasks = {"custom-mine": "choice"}
    graded = grade(questions, completions, tasks, GradingConfig(cores=1), progress=False)
    row = results(questions, graded, tasks, {"custom-mine": 2})["benchmarks"]["custom-mine"]
    assert (row["avg@2"], row["maj@2"], row["reasons"]) == (0.5, 0.5, {"no_answer": 1, "wrong": 1})
    assert "lenient_avg@2" not in row
    path.write_text(json.dumps(rows[0] | {"label": "Paris"}))
    with pytest.raises(ValueError, match="its label is no letter from A to J"):
        load_questions(benchmark)


def test_every_command_names_every_grader(capsys):
    for command in (serve_reward.main, train_ppo_ray.main):
        with pytest.raises(SystemExit):
            command(["--help"])
        shown = capsys.readouterr().out
        assert [name for name in GRADERS if name not in shown] == []
    assert " ".join(CHOICE.about.split()[:3]) in " ".join(shown.split())
    parser = sampling_flags.argparse.ArgumentParser()
    sampling_flags.add_own_file(parser)
    assert "choice" in parser.format_help()


def test_an_evaluation_warns_of_a_reward_file_that_fails_on_the_label(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "def reward_func(queries, prompts, labels): return {'rewards': 1 / (queries[0] != prompts[0] + '7')}"
    )
    question = Question("mine", "1", [{"role": "user", "content": "3 + 4?"}], "7")
    sampling_flags._try_graders(argparse.Namespace(timeout=20, allow_unsandboxed=False), {str(file)}, question)
    assert "[Warning] mine.py gives no score to the label '7' as response: raised ZeroDiv" in capsys.readouterr().err
