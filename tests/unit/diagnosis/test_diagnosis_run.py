"""A whole diagnosis with a stand-in for the cluster: the path, resumes and refusals."""

import json
import math
import random
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_lines import refusal
from transformers import AutoTokenizer

from openrlhf_shear.cli import diagnose as cli
from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit.heatmaps import shear_evidence
from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.diagnosis.prefixes import positions, prefix_questions, read_prefixes
from openrlhf_shear.diagnosis.run import PREFIXES, ROLLOUTS, Diagnosis, DiagnosisError, diagnose
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.rewards.verdict import Failure, Verdict
from openrlhf_shear.rollouts.record import read_rollouts, write_rollouts
from openrlhf_shear.sampling import plan as grading
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.records import Question
from openrlhf_shear.sampling.sampler import Output, Sampling
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems
from openrlhf_shear.tasks.arithmetic.solutions import write_solution
from openrlhf_shear.transport import span_starts

pytestmark = pytest.mark.usefixtures("needs_jail")
ROOT = Path(__file__).parents[3]
REWARD = str(ROOT / "openrlhf_shear" / "tasks" / "arithmetic" / "arithmetic.py")
PROBLEMS = make_problems(3, seed=1)
TOKENIZER = AutoTokenizer.from_pretrained(POLICY_DIR)
CONFIG = ShearConfig(window=16, stride=8)
QUICK = GradingConfig(cores=2, timeout=60.0)


def diagnosis(**changes) -> Diagnosis:
    questions = [
        Question("arithmetic", f"p{i}", [{"role": "user", "content": problem.prompt}], problem.answer)
        for i, problem in enumerate(PROBLEMS)
    ]
    plan = Plan(
        "a model",
        questions,
        {"arithmetic": REWARD},
        {"arithmetic": 3},
        Sampling(1.0, 1.0, 150, 5),
        PromptFormat(chat=False),
    )
    return Diagnosis(**{"problems": replace(plan, token_ids=True), "completions": 2, "config": CONFIG, "heatmaps": 1,
                        **changes})  # fmt: skip


def solution(problem, seed: str, wrong: bool = False) -> str:
    text = write_solution(problem, random.Random(seed))
    return text[:-1] + str((int(text[-1]) + 1) % 10) if wrong else text


class Cluster:
    """Rollout 2 of a problem is wrong, and all of p2's are right; a completion is right if its prefix is short."""

    def __init__(self, fails=(), failure=Failure.ENGINE_DIED):
        self.fails, self.failure, self.started, self.asked, self.read = fails, failure, 0, [], []

    @contextmanager
    def sampler(self, plan):
        self.started += 1

        def sample(wanted):
            for request in wanted:
                question = request.question
                self.asked.append((question.id, request.sample))
                if (question.id, request.sample) in self.fails:
                    yield request, Verdict(None, failure=self.failure)
                    continue
                problem = PROBLEMS[int(question.id[1])]
                wrong = request.sample == 2 and question.id != "p2"
                if question.prefix:
                    wrong = len(question.prefix) > 30
                text = solution(problem, f"{question.id}{request.sample}", wrong)
                yield request, Output(text, len(text) + 1, False, [*TOKENIZER(text)["input_ids"], 1])

        yield sample

    def measure(self, model, groups, config, search, heatmaps, controls):
        for number, group in enumerate(groups):
            self.read.append(group.name)
            states = [torch.nn.functional.one_hot(torch.tensor(r.token_ids), 64).float() for r in group.rollouts]
            result, evidence = shear_evidence(states, group.correct, config, search, number < heatmaps, controls)
            yield group, result.weights, evidence


def run(asked, folder, cluster=None):
    return diagnose(asked, folder, cluster or Cluster(), TOKENIZER, QUICK)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, needs_jail):
    """The folder of a diagnosis; not to be written into."""
    folder, cluster = tmp_path_factory.mktemp("diagnosis"), Cluster()
    run(diagnosis(), folder, cluster)
    assert cluster.started == 1
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture
def undrawn(monkeypatch):
    """No pictures: the tests of test_diagnosis_figures.py look at them."""
    monkeypatch.setattr("openrlhf_shear.report.findings.render", lambda picture, kind: b"")


def test_tables_hold_the_sampled_and_measured_values(finished):
    rollouts, settings = read_rollouts(finished / ROLLOUTS)
    assert settings["model"] == "a model" and settings["window"] == 16 and settings["completions"] == 2
    assert [(r.group, r.sample, r.correct) for r in rollouts] == [
        (f"p{i}", sample, sample != 2 or i == 2) for i in range(3) for sample in range(3)
    ]
    assert all(r.prompt == PROBLEMS[int(r.group[1])].prompt and r.tokens[-1] == "<eos>" for r in rollouts)
    assert [r.weights is None for r in rollouts] == [False] * 6 + [True] * 3  # p2 is not mixed
    assert [r.heatmaps != [] for r in rollouts[:6]] == [True, True, False, False, False, False]
    assert [round(r.advantage, 4) for r in rollouts[:3]] == [0.5774, 0.5774, -1.1547]  # (r - mean) / std
    assert all(r.first_error == r.tokens.index("#") + 2 for r in rollouts if not r.correct)
    for r in rollouts[:6]:
        other = [s for s in rollouts if s.group == r.group and s.correct != r.correct]
        assert set(r.nearest_sample) <= {s.sample for s in other}
        assert min(r.span_distances) > 0 and len(r.weights) == len(r.tokens)

    prefixes, _ = read_prefixes(finished / PREFIXES)
    by_rollout = {(r.group, r.sample): r for r in rollouts}
    assert set(prefixes["problem"]) == {"p0", "p1"}
    for row in prefixes.itertuples():
        r = by_rollout[row.problem, row.sample]
        assert row.position <= r.tokens.index("#") and row.correct == r.correct
        assert (row.completions, row.successes) == (2, 0 if row.position > 30 else 2)
        assert row.distance == pytest.approx(r.span_distances[r.span_starts.index(row.position - 16)])
        assert row.omega == pytest.approx(r.weights[row.position - 1])
    counted = prefixes.groupby(["problem", "sample"]).size()
    assert all(n == len(range(16, by_rollout[key].tokens.index("#") + 1, 8)) for key, n in counted.items())


def test_it_resumes_where_it_was_interrupted(finished, folder, monkeypatch):
    kept = (folder / "completions" / "samples.jsonl").read_text().splitlines(keepends=True)
    (folder / "completions" / "samples.jsonl").write_text("".join(kept[:-3]))
    (folder / "measured" / "group00001.parquet").unlink()
    cluster = Cluster()
    paths = run(diagnosis(), folder, cluster)
    assert len(cluster.asked) == 3 and cluster.read == ["p1"]
    for path in paths:
        assert path.read_bytes() == (finished / path.name).read_bytes()
    monkeypatch.setattr(grading, "RewardPool", None)  # nothing can be graded again
    cluster = Cluster()
    run(diagnosis(), folder, cluster)
    assert (cluster.started, cluster.read) == (0, [])


def test_another_distance_is_measured_again_and_other_prefixes_are_another_diagnosis(folder):
    file, cluster = folder / "measured" / "group00001.parquet", Cluster()
    rollouts, settings = read_rollouts(file)
    write_rollouts(file, [replace(r, sample=r.sample + 1) for r in rollouts], settings)  # of another sample
    run(diagnosis(), folder, cluster)
    assert cluster.read == ["p1"]
    cluster = Cluster()
    run(diagnosis(config=replace(CONFIG, distance="chamfer")), folder, cluster)
    assert (cluster.started, cluster.read) == (0, ["p0", "p1"])
    with pytest.raises(ValueError, match="holds another evaluation: stride was 8 and is 4"):
        run(diagnosis(config=ShearConfig(window=16, stride=4)), folder)
    for knob in ({"max_spans": 3}, {"tail": "every"}):
        with pytest.raises(ValueError, match=f"holds another evaluation: .*{next(iter(knob))}"):
            run(diagnosis(config=ShearConfig(window=16, stride=8, **knob)), folder)


LOST = [("p0/0/16", 0), ("p0/0/24", 0), ("p0/0/24", 1)]


@pytest.mark.parametrize(("fails", "said"), [([("p1", 2)], "1 rollouts"), (LOST, "3 completions")])
def test_requests_lost_with_an_engine_are_repeated_before_later_ones(tmp_path, fails, said):
    with pytest.raises(RuntimeError, match=rf"{said} could not be sampled, \{{'its engine died': {said[0]}\}}"):
        run(diagnosis(), tmp_path, Cluster(fails))
    assert not (tmp_path / PREFIXES).exists()
    cluster = Cluster()
    run(diagnosis(), tmp_path, cluster)
    assert sorted(cluster.asked[: len(fails)]) == fails
    assert all("/" in question for question, _ in cluster.asked[len(fails) :]) and (len(cluster.asked) > 3) == (
        fails != LOST
    )


def test_a_rollout_that_failed_is_not_tried_again_once_its_prefixes_are_completed(tmp_path):
    """Another outcome would change the prefixes, and cost all completions."""
    run(diagnosis(), tmp_path, Cluster([("p0", 1)], failure=Failure.ENGINE_RAISED))
    cluster = Cluster()
    run(diagnosis(), tmp_path, cluster)
    assert cluster.asked == []


def test_completions_that_cannot_be_had_leave_their_prefix_with_fewer(tmp_path):
    cluster = Cluster(LOST, failure=Failure.ENGINE_RAISED)
    prefixes, _ = read_prefixes(run(diagnosis(), tmp_path, cluster)[1])
    rows = prefixes[(prefixes["problem"] == "p0") & (prefixes["sample"] == 0)]
    assert rows["position"].tolist()[:3] == [16, 24, 32] and rows["completions"].tolist()[:3] == [1, 0, 2]
    assert rows["accuracy"].isna().tolist()[:3] == [False, True, False]


def test_nothing_to_diagnose_is_one_clear_line(tmp_path):
    with pytest.raises(DiagnosisError, match="the window has 200 tokens, and the longest response before its end"):
        run(diagnosis(config=ShearConfig(window=200, stride=8)), tmp_path)
    asked = diagnosis()
    asked = replace(asked, problems=replace(asked.problems, questions=asked.problems.questions[2:]))
    with pytest.raises(DiagnosisError, match="no group is mixed: 3 of 3 rollouts of a model are correct, and none"):
        run(asked, tmp_path / "unmixed")


@pytest.mark.parametrize("knobs", [{}, {"tail": "every"}, {"max_spans": 6}])
@pytest.mark.parametrize(("tokens", "answer"), [(3, None), (4, None), (5, None), (23, None), (23, 9), (23, 4), (23, 3)])
def test_the_window_of_a_prefix_is_a_whole_span_before_the_answer(tokens, answer, knobs):
    config = ShearConfig(window=4, stride=3, **knobs)
    starts = span_starts(tokens, config).tolist()
    whole = [s + 4 for s in starts if s + 4 < tokens and (answer is None or s + 4 <= answer)]
    assert list(positions(tokens, answer, config)) == whole
    assert [starts[j] + 4 for j in range(len(whole))] == whole


def test_a_prefix_is_asked_as_its_problem_with_the_first_tokens(finished):
    rollouts, _ = read_rollouts(finished / ROLLOUTS)
    (question, *_) = asked = prefix_questions({"p0": diagnosis().problems.questions[0]}, rollouts[:1], CONFIG)
    assert question.id == "p0/0/16" and question.prefix == rollouts[0].token_ids[:16]
    assert (question.messages, question.label) == (diagnosis().problems.questions[0].messages, PROBLEMS[0].answer)
    assert len({q.id for q in asked}) == len(asked) > 3


def test_controls_are_measured_where_they_are_asked_for_and_once(folder, undrawn, capsys):
    cluster = Cluster()
    run(diagnosis(controls=True), folder, cluster)
    assert (cluster.started, cluster.read) == (0, ["p0", "p1"])
    rollouts, settings = read_rollouts(folder / ROLLOUTS)
    assert settings["controls"] and all(r.largest_norm == pytest.approx(1) for r in rollouts[:6])  # one-hot states
    assert [len(r.permuted_distances) == len(r.span_starts) for r in rollouts[:6]] == [True] * 6
    assert [math.isinf(r.same_distances[0]) for r in rollouts[:6]] == [False, False, True] * 2  # the only wrong one
    prefixes, _ = read_prefixes(folder / PREFIXES)
    by_rollout = {(r.group, r.sample): r for r in rollouts}
    for row in prefixes.itertuples():
        r = by_rollout[row.problem, row.sample]
        span = r.span_starts.index(row.position - 16)
        both = row.same_distance, row.permuted_distance
        assert both == pytest.approx((r.same_distances[span], r.permuted_distances[span]))
    cluster = Cluster()
    run(diagnosis(controls=True), folder, cluster)
    assert cluster.read == []
    cli.main(["--analyse", str(folder), "--resamples", "5"])
    assert "Controls: the same numbers of other distances" in (folder / "results.md").read_text()
    assert json.loads((folder / "results.json").read_text())["analyses"]["noise"]["largest_norm"] == pytest.approx(1)


def test_engines_leave_room_for_a_continuation_of_the_longest_prefix(tmp_path):
    plans = []

    class Planned(Cluster):
        def sampler(self, plan):
            plans.append(plan)
            return super().sampler(plan)

    run(diagnosis(), tmp_path, Planned())
    assert [plan.longest_prefix for plan in plans] == [150]


def test_the_text_control_of_single_tokens_is_that_of_the_stand_in_s_states(folder, undrawn, capsys, monkeypatch):
    """The stand-in's hidden states are one-hot vectors of single tokens, and so are 1-grams."""
    run(diagnosis(controls=True), folder, Cluster())
    cli.main(["--analyse", str(folder), "--resamples", "5", "--ngram", "1"])
    found = json.loads((folder / "results.json").read_text())
    states = {row["what"]: row for row in found["numbers"]}
    assert len(found["text_numbers"]) > 50
    for row in found["text_numbers"]:  # float32 distances of the same vectors, on other axes
        if row["value"] is not None:
            assert row["value"] == pytest.approx(states[row["what"]]["value"], abs=1e-5), row["what"]
    assert {row["what"][:5] for row in found["text_numbers"]} >= {"Noise", "First", "Aggre", "Contr", "Local"}
    assert "States or text? Hidden states minus 1-grams" in capsys.readouterr().out
    monkeypatch.setattr("openrlhf_shear.diagnosis.text.shear_weights", None)  # nothing can be measured again
    cli.main(["--analyse", str(folder), "--resamples", "5", "--ngram", "1"])
    assert json.loads((folder / "results.json").read_text()) == found


def test_a_negative_ngram_is_refused(folder, capsys):
    told = refusal(capsys, ["--analyse", folder, "--ngram", "-1"], cli.main)
    assert "--ngram must be at least 0: got -1" in told


def test_analyse_reads_the_tables_again(folder, capsys):
    cli.main(["--analyse", str(folder), "--resamples", "20"])
    found = json.loads((folder / "results.json").read_text())
    assert found["problems"] == 2 and "too few" in capsys.readouterr().out
