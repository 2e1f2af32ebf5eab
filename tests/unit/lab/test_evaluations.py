"""Evaluations during training, their temperature, and the learning rate that they choose for each rule."""

from collections import Counter
from dataclasses import replace
from math import log

import pytest
import torch
from cases import cases, table
from command_lines import refusal
from lab_cases import SETTINGS

from openrlhf_shear.cli import lab as command
from openrlhf_shear.lab import runs, trainer
from openrlhf_shear.lab.policy import Policy
from openrlhf_shear.lab.rollouts import sample
from openrlhf_shear.lab.runs import best_rates, jobs, tuned
from openrlhf_shear.lab.settings import LabSettings, Trials, parse_rates
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.lab.worth import LabRun, worths
from openrlhf_shear.tasks.arithmetic.policy import load_policy
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems
from openrlhf_shear.tasks.arithmetic.sampling import continue_ids, sample_ids

(UNIFORM,) = parse_rules("uniform")
EVALUATED = replace(SETTINGS, steps=3, eval_every=2, eval_temperature=0.1, eval_samples=2)


def test_evaluations_change_nothing_of_the_training_and_use_their_temperature(monkeypatch):
    asked = []

    def recorded(policy, problems, group_size, settings, seed, temperature=1.0):
        asked.append((len(problems), group_size, temperature))
        return sample(policy, problems, group_size, settings, seed, temperature)

    monkeypatch.setattr(trainer, "sample", recorded)
    run = trainer.train(EVALUATED, UNIFORM, 3, POLICY_DIR)
    plain = trainer.train(replace(EVALUATED, eval_every=0, eval_temperature=1.0), UNIFORM, 3, POLICY_DIR)
    step, evaluation = (2, 4, 1.0), (4, 2, 0.1)
    assert asked == [step, step, evaluation, step, evaluation, step, step, step, (4, 2, 1.0)]
    assert (len(run.evaluations), plain.evaluations, plain.evaluated) == (1, (), None)
    assert run.evaluated == run.evaluations[0] and 8 * run.final in range(9)
    timed = ("seconds", "credit_seconds")
    kept = [{k: v for k, v in each.metrics.items() if k not in timed} for each in (run, plain)]
    assert kept[0] == kept[1] and run.accuracy == plain.accuracy


def test_the_last_evaluation_is_the_final_accuracy(monkeypatch):
    calls = Counter()
    monkeypatch.setattr(trainer, "sample", lambda *of: calls.update([of[2]]) or sample(*of))
    run = trainer.train(replace(EVALUATED, eval_every=1, steps=2), UNIFORM, 3, POLICY_DIR)
    assert len(run.evaluations) == 2 and run.final == run.evaluations[-1]
    assert calls == {4: 2, 2: 2}, "it is not sampled twice"


@pytest.mark.parametrize(*cases("lab", "test_settings_that_mean_nothing_are_refused"))
def test_settings_that_mean_nothing_are_refused(changes, told):
    with pytest.raises(ValueError, match=told):
        LabSettings(**changes)


def test_evaluations_are_compared_where_both_runs_have_them():
    def run(rule, seed, *evaluations):
        return LabRun(rule, seed, (0.5,), 0.5, {}, 1.0, evaluations=evaluations)

    runs = [run("a", 0, 0.5, 0.7), run("a", 1, 0.4, 0.4), run("uniform", 0, 0.2, 0.2), run("uniform", 1, 0.3, 0.1)]
    first, baseline = worths(runs)
    assert first.evaluated.mean == pytest.approx(0.5) and baseline.evaluated.mean == pytest.approx(0.2)
    assert first.against["baseline"].evaluated.mean == pytest.approx((0.4 + 0.2) / 2)
    mixed = worths([*runs[:3], run("uniform", 1)])
    assert "evaluated" not in mixed[0].against["baseline"] and mixed[1].evaluated is None
    with pytest.raises(ValueError, match="accuracies must be finite"):
        run("a", 0, float("nan"))


# ── Temperature and continuations ──


def test_a_temperature_divides_the_logits():
    """Shares of first tokens, against the softmax in float64; 1,000 draws are off by 5 standard errors at most."""
    policy, prompt = Policy(POLICY_DIR, SETTINGS), make_problems(1, 5)[0].prompt
    ids = torch.tensor([policy.tokenizer.encode(prompt, add_special_tokens=False)])
    with torch.no_grad():
        logits = policy.model(input_ids=ids).logits[0, -1].double()
    for temperature in (1.0, 0.5):
        drawn = sample_ids(policy.model, policy.tokenizer, [prompt] * 1000, 1, 500, 1, temperature)
        counts = torch.bincount(torch.cat(drawn), minlength=len(logits)).double() / 1000
        expected = (logits / temperature).exp() / (logits / temperature).exp().sum()
        error = (expected * (1 - expected) / 1000).sqrt()
        assert ((counts - expected).abs() <= 5 * error + 1 / 1000).all()


def test_rows_are_continued_by_their_own_room():
    model, tokenizer = load_policy(POLICY_DIR)
    prompt = tokenizer.encode(make_problems(1, 6)[0].prompt)
    first = sample_ids(model, tokenizer, [tokenizer.decode(prompt)] * 3, 7, max_new_tokens=30)
    rows = [prompt, [*prompt, *first[1][:5].tolist()], [*prompt, *first[2][:20].tolist()]]
    found = continue_ids(model, tokenizer, rows, [30, 1, 9], 7)
    assert [len(ids) for ids in found] == [30, 1, 9]
    again = continue_ids(model, tokenizer, rows, [30, 1, 9], 7)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    whole = continue_ids(model, tokenizer, [prompt], [150], 7)[0]
    assert whole[-1] == tokenizer.eos_token_id or len(whole) == 150


# ── The tuned learning rate ──


def scored(job, score, evaluations=()):
    return LabRun(job.variant.name, job.seed, (score,), 0.0, {}, 1.0, evaluations=evaluations)


def test_each_rule_has_the_rate_of_its_best_mean(tmp_path):
    variants = parse_rules("uniform,shear")
    at = [replace(SETTINGS, learning_rate=rate) for rate in (1e-4, 2e-4)]
    wanted = [job for each in at for job in jobs(each, variants, [900, 901], tmp_path, "start", tmp_path)]
    assert len(wanted) == len({job.path for job in wanted}) == 8
    scores = {("uniform", 1e-4): (0.4, 0.6), ("uniform", 2e-4): (0.9, 0.0)}
    scores |= {("shear", 1e-4): (0.3, 0.1), ("shear", 2e-4): (0.2, 0.3)}
    runs = [scored(job, scores[job.variant.name, job.settings.learning_rate][job.seed - 900]) for job in wanted]
    assert best_rates(wanted, runs) == {"uniform": 1e-4, "shear": 2e-4}
    at_the_end = [scored(job, 0.5, (job.settings.learning_rate,)) for job in wanted]
    assert best_rates(wanted, at_the_end) == {"uniform": 2e-4, "shear": 2e-4}
    assert best_rates(wanted, [scored(job, 0.5) for job in wanted]) == {"uniform": 1e-4, "shear": 1e-4}, "a tie"


def test_rules_are_judged_each_at_its_rate_seed_by_seed(tmp_path):
    variants, rates = parse_rules("uniform,shear"), {"uniform": 1e-4, "shear": 2e-4}
    wanted = jobs(SETTINGS, variants, [0, 1], tmp_path, "start", tmp_path, rates)
    assert [(job.seed, job.variant.name, job.settings.learning_rate) for job in wanted] == [
        (seed, name, rates[name]) for seed in (0, 1) for name in ("uniform", "shear")
    ]
    (plain,) = jobs(SETTINGS, variants[:1], [0], tmp_path, "start", tmp_path)
    assert wanted[0].path == plain.path, "a run at the default rate is not trained again"


def test_a_run_that_diverges_has_no_right_answer_from_then_on():
    run = trainer.train(replace(EVALUATED, eval_every=1, steps=3, learning_rate=1e30), UNIFORM, 3, POLICY_DIR)
    (step,) = run.metrics["diverged"]
    assert (
        len(run.accuracy) == len(run.evaluations) == 3 and run.final == run.evaluations[-1] == run.accuracy[-1] == 0.0
    )
    assert run.accuracy[0] > 0 and step <= 2


@pytest.mark.parametrize("text", ["", "a", "1e-4,", "0", "-1", "inf", "nan", "1e-4,0.0001"])
def test_rates_are_different_positive_numbers(text):
    with pytest.raises(ValueError, match=r"--learning-rates must be different positive numbers: got .*; use e\.g\."):
        parse_rates(text)


def test_a_seed_that_judges_cannot_tune(tmp_path, capsys):
    line = ["--rules", "uniform", "--output", str(tmp_path), "--seeds", "2", "--learning-rates", "1e-4,2e-4"]
    for more, told in table("lab", "test_a_seed_that_judges_cannot_tune"):
        assert told in refusal(capsys, [*line, *more], command.main)
    for more in (["--tuning-seeds", "2"], ["--widen-rates", "4"], ["--first-tuning-seed", "950"]):
        told = refusal(capsys, [*line[:-2], *more], command.main)
        assert f"{more[0]} needs --learning-rates, the rates to try" in told
    assert not list(tmp_path.iterdir()), "nothing was sampled"


TUNING = {"tuning_seeds": 2, "seeds": 0, "workers": 1}


@pytest.mark.parametrize(*cases("lab", "test_a_range_grows_until_its_best_rate_is_no_end"))
def test_a_range_grows_until_its_best_rate_is_no_end(tmp_path, monkeypatch, widen, best, tried):
    """The best rates are 8e-4 and 2.5e-5; each rule's range grows apart."""
    peak, seen = {"uniform": 8e-4, "shear": 2.5e-5}, {"uniform": set(), "shear": set()}

    def trained(wanted, workers):
        for job in wanted:
            seen[job.variant.name].add(job.settings.learning_rate)
        return [scored(job, 1 / (1 + abs(log(job.settings.learning_rate / peak[job.variant.name])))) for job in wanted]

    monkeypatch.setattr(runs, "run_all", trained)
    trials = Trials(**TUNING | {"learning_rates": "1e-4,2e-4,4e-4", "widen_rates": widen, "seeds": 1})
    found = tuned(trials, SETTINGS, parse_rules("uniform,shear"), tmp_path, "start", tmp_path, train=True)
    assert found == pytest.approx(best)
    assert {name: sorted(rates) for name, rates in seen.items()} == {n: pytest.approx(r) for n, r in tried.items()}


def test_the_tuning_of_a_call_that_trains_nothing_must_be_there(tmp_path):
    line = SETTINGS, [UNIFORM], tmp_path, "start", tmp_path
    with pytest.raises(ValueError, match="the tuning lacks 2 runs, and this command trains nothing"):
        tuned(Trials(**TUNING, learning_rates="1e-4"), *line, train=False)
    assert tuned(Trials(seeds=0), *line, train=False) == {"uniform": SETTINGS.learning_rate}
