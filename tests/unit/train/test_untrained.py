"""A run that trained on nothing is no success, and its filter is questioned long before."""

import math
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.train.checkpoints.fingerprint import Fingerprint
from openrlhf_shear.train.checkpoints.folders import NotOursError, NotSavedError
from openrlhf_shear.train.run import trainer
from openrlhf_shear.train.run.books import Books
from openrlhf_shear.train.sampling import samples
from openrlhf_shear.train.sampling.accounts import Accounts
from openrlhf_shear.train.sampling.batches import Batch
from openrlhf_shear.train.screen.outcome import RefusedError, RewardsLostError
from openrlhf_shear.train.start import attempts

MET = {"timing/ppo_train": 1.0}


class Story:
    """Records whether the run was announced as finished, with a model."""

    whole = None

    def ended(self, states, moved, whole, learned):
        self.whole = whole


def a_run(monkeypatch, batches: list[Batch], kept: dict | None = None):
    """A `ShearTrainer` that has everything but models and engines; each batch with rollouts is an optimizer step."""
    ledger, left = Accounts(), list(batches)
    if kept:
        ledger = Accounts.resumed(kept["ledger"], 0)

    def taken():
        batch = left.pop(0) if left else None
        if batch is not None:
            ledger.add(batch.counts)
        return batch

    made = object.__new__(trainer.ShearTrainer)
    made.args = SimpleNamespace(
        eval=SimpleNamespace(before_train=False, steps=10),
        algo=SimpleNamespace(dynamic_filtering_enable=True, dynamic_filtering_range=(0.0, 1.0)),
        ckpt=SimpleNamespace(save_steps=float("inf")),
        reward=SimpleNamespace(max_failed=0.5, max_failed_steps=3),
        train=SimpleNamespace(max_skipped_steps=3),
    )
    nothing = lambda *given, **how: None  # noqa: E731
    made._batches = SimpleNamespace(
        next=taken,
        close=nothing,
        accounts=ledger,
        metrics=lambda: ledger.metrics(0),
        state=lambda: {"total_consumed_prompts": 4 * (len(batches) - len(left))},
    )
    made._books, made._story = Books(made.args, made._batches), Story()
    made._tracking, made._prm_loads, made.eval_dataloader = SimpleNamespace(close=nothing), [], None
    made.kl_ctl = SimpleNamespace(value=0.0)
    made._fingerprint = Fingerprint({})
    made._resume = lambda: setattr(made, "_states", kept or {"global_step": 0}) or made._states
    made.save_logs_and_checkpoints = nothing

    def train_step(rollouts, step):
        ledger.trained += len(rollouts)
        return dict(MET), step + 1

    made.train_step = train_step
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    return made


def batch(trained: int, filtered: int, last: bool = False) -> Batch:
    counts = Accounts(dispatched=trained + filtered, filtered=filtered)
    if filtered:
        counts.filtered_scores = "their mean scores are -1 to -0.5"
    rollouts = [Experience(info={}) for _ in range(trained)]
    return Batch(rollouts, 0.0, counts, 1.0, (0, 4), 0, [], last)


def test_a_run_whose_filter_dropped_everything_is_an_error_that_no_attempt_repeats(monkeypatch):
    run = a_run(monkeypatch, [batch(0, 32), batch(0, 32, last=True)])
    with pytest.raises(RewardsLostError, match=r"64 were filtered \(their mean scores are -1 to -0.5"):
        run.fit()
    assert run._story.whole is False, "no model is told of"
    assert RewardsLostError.code != 0 and RewardsLostError.code in attempts._FINAL


@pytest.mark.parametrize("batches", [[batch(4, 0)], [batch(0, 32), batch(4, 28, last=True)]])
def test_a_run_with_a_step_is_finished(monkeypatch, batches):
    run = a_run(monkeypatch, batches)
    run.fit()
    assert run._story.whole is True


@pytest.mark.parametrize("left", [[], [batch(0, 32, last=True)]])
def test_a_resumed_run_that_has_trained_is_finished_also_with_nothing_left(monkeypatch, left):
    kept = {"ledger": Accounts(dispatched=8, trained=8, failed=Counter()).state(0), "global_step": 2}
    run = a_run(monkeypatch, left, kept)
    run.fit()
    assert run._story.whole is True


@pytest.mark.parametrize(
    ("begun", "batches", "save_steps", "kept", "saved"),
    [
        (0, [batch(4, 0)], 10, None, [1]),
        (0, [batch(4, 0)], float("inf"), None, []),  # no checkpoints were asked for
        (2, [batch(0, 32)], 10, None, []),  # a resumed run that makes no step
        (0, [batch(4, 0)], 10, 1, []),  # the step's own checkpoint is the last one
        (0, [batch(4, 0), batch(0, 32)], 10, 1, [1]),  # it precedes the prompts that were filtered at the end
    ],
)
def test_a_run_ends_with_a_checkpoint_of_its_last_step(monkeypatch, begun, batches, save_steps, kept, saved):
    before = {"ledger": Accounts(dispatched=8, trained=8).state(0), "global_step": begun}
    run, made = a_run(monkeypatch, batches, before), []
    run.args.ckpt.save_steps = save_steps
    run.save_logs_and_checkpoints = lambda step, *_: setattr(run._books, "saved", kept)
    run._best, run._books.tell_unmoved = dict, lambda: None
    run._saver = SimpleNamespace(save=lambda step, states, best: made.append((step, states["total_consumed_prompts"])))
    run.fit()
    assert made == [(step, 4 * len(batches)) for step in saved]


@pytest.mark.parametrize("trained", [0, 4])
def test_the_best_checkpoint_is_of_a_trained_model(monkeypatch, trained):
    run, saved = a_run(monkeypatch, []), []
    run._books.accounts.trained, run.best_eval_metric_value = trained, 0.0
    monkeypatch.setattr(trainer.ShearTrainer.__base__, "save_best_checkpoint", lambda self, *given: saved.append(given))
    run.save_best_checkpoint({"eval_math_pass1": 0.5}, 1, {})
    assert len(saved) == bool(trained)


def test_a_best_checkpoint_that_the_disk_refused_is_not_the_best(monkeypatch):
    run = a_run(monkeypatch, [])
    run._books.accounts.trained, run.best_eval_metric_value = 4, 0.5

    def full(self, metrics, *_):
        self.best_eval_metric_value = metrics["eval_math_pass1"]  # upstream sets it before it saves
        raise ray.exceptions.RayTaskError("save_checkpoint", "", NotSavedError("no space left"))

    monkeypatch.setattr(trainer.ShearTrainer.__base__, "save_best_checkpoint", full)
    run.save_best_checkpoint({"eval_math_pass1": 0.8}, 1, {})
    assert run.best_eval_metric_value == 0.5, "a later 0.7 is saved"


def test_the_metric_that_the_line_asks_for_outlives_that_of_a_checkpoint(monkeypatch):
    kept = {"best_eval_metric_key": "suite/average", "best_eval_metric_value": 0.9}
    for asked, found in (("eval_math_pass1", ("eval_math_pass1", -math.inf)), ("", ("suite/average", 0.9))):
        run = a_run(monkeypatch, [])
        run.best_eval_metric_key, run.best_eval_metric_value = asked, -math.inf
        run.restore_best_checkpoint_state(kept)
        assert (run.best_eval_metric_key, run.best_eval_metric_value) == found


# ── The start ──


def test_a_start_in_the_folder_of_another_run_writes_nothing_there(monkeypatch):
    def refuse(ckpt):
        raise NotOursError("another run writes to --ckpt.path")

    monkeypatch.setattr(trainer.checkpoints, "lock_own", refuse)
    monkeypatch.setattr(trainer, "Tracking", lambda args: pytest.fail("tracking.json is the other run's"))
    made = trainer.ShearTrainer("model", SimpleNamespace(args=SimpleNamespace(ckpt=None)))
    with pytest.raises(RefusedError, match="another run writes"):
        made.get_max_steps()


@pytest.mark.parametrize(("frozen", "refused"), [(3, False), (4, True)])
def test_a_run_whose_policy_never_learns_is_refused(monkeypatch, frozen, refused):
    """Two episodes of six prompts, four a step: four steps."""
    made = a_run(monkeypatch, [])
    made._refused, made.reward, made.max_steps, made.critic_model_group = "", None, 4, "critics"
    made.prompts_dataloader = SimpleNamespace(dataset=range(6))
    made.args.critic = SimpleNamespace(freezing_steps=frozen)
    made.args.rollout, made.args.train.num_episodes = SimpleNamespace(batch_size=4), 2
    with pytest.raises(RefusedError, match="learn in none of the run's 4 steps") if refused else nullcontext():
        assert made.get_max_steps() == 4


# ── The filter ──


def group(*scores: float) -> list[Experience]:
    return [Experience(scores=torch.tensor([score]), info={}) for score in scores]


def test_prompts_filtered_in_a_row_are_warned_of_with_their_scores(monkeypatch):
    told = []
    monkeypatch.setattr(samples.logger, "warning", told.append)
    made = object.__new__(samples.ShearSamplesGenerator)
    made._counts, made._rejected = Accounts(), []
    made.args = SimpleNamespace(
        algo=SimpleNamespace(dynamic_filtering_range=(0.0, 1.0)), rollout=SimpleNamespace(batch_size=3)
    )
    assert made._passes(group(1.0, 0.0)) and not told
    for scores in ((-1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)):
        assert not made._passes(group(*scores))
    (line,) = told
    assert line == (
        "3 prompts in a row were filtered: their mean scores are -1 to 0, outside --algo.dynamic_filtering_range 0 1"
    )
    assert made._passes(group(1.0, 0.0)) and not made._rejected
    assert made._counts.filtered_scores == "their mean scores are -1 to 0"


@pytest.mark.parametrize(
    ("score", "consumed"),
    [(None, 2 * 3 - 1), (1.0, 20)],  # the third failed group is the last one replaced
)
def test_an_outage_does_not_use_up_the_episode_and_a_filter_may(monkeypatch, score, consumed):
    """Every reward fails, or every group has the same score; a batch is of three prompts, the episode of 20."""
    made = object.__new__(samples.ShearSamplesGenerator)
    made._counts, made._rejected, made._evaluates, made._engines = Accounts(), [], False, SimpleNamespace(handles=["e"])
    made.args = SimpleNamespace(
        algo=SimpleNamespace(dynamic_filtering_range=(0.0, 1.0)),
        rollout=SimpleNamespace(batch_size=100, n_samples_per_prompt=2),
    )
    made.check_stop = lambda: None
    made._dispatch = lambda prompts, busy, asked: {prompt.place: (prompt, "e") for prompt in prompts}
    made._process_response_into_experience = lambda answer, **asked: Experience(
        scores=torch.tensor([score or 0.0]), info={samples.FAILED: torch.tensor([float(score is None)])}
    )
    monkeypatch.setattr(samples.ray, "wait", lambda refs, **how: (refs[:1], refs[1:]))
    monkeypatch.setattr(samples.ray, "get", lambda ref: ["first", "second"])
    prompts = (samples.Prompt((number,), "1+1=", "2", None) for number in range(20))
    assert made._generate(prompts, 3, True, {}) == ([], consumed)
    assert made._counts.dispatched == 2 * consumed and len(list(prompts)) == 20 - consumed


REWARD = 'def reward_func(queries, prompts, labels): return {"rewards": %s, "extra_logs": {%s}}\n'


@pytest.mark.parametrize(
    ("reward", "words", "said"),
    [
        ("-1.0", "", None),
        ("0.0", "--algo.dynamic_filtering_enable", None),
        (
            "-1.0",
            "--algo.dynamic_filtering_enable",
            "mine.py gives -1 to 'I do not know.', outside --algo.dynamic_filtering_range 0 1",
        ),
        ("-1.0", "--algo.dynamic_filtering_enable --algo.dynamic_filtering_range -1 1", None),
    ],
)
def test_the_range_is_held_against_the_reward_that_is_tried(job, capsys, reward, words, said):
    Path("mine.py").write_text(REWARD % (reward, ""))
    parse(job(f"--reward.remote_url mine.py {words}"))
    told = capsys.readouterr().err
    assert said in told if said else "dynamic_filtering_range" not in told


def test_extra_logs_that_are_named_as_metrics_are_told_before_training(job, capsys):
    Path("mine.py").write_text(REWARD % ("0.0", "'score': 1.0, 'turns': 2.0"))
    parse(job("--reward.remote_url mine.py"))
    told = capsys.readouterr().err
    assert "has score, which is a metric of training; it is logged as extra_score" in told and "turns" not in told


@pytest.mark.parametrize(
    ("words", "clip"),
    [
        ("", None),
        ("AS rloo", None),
        ("--reward.clip_range -10 10", [-10.0, 10.0]),
        ("AS gae --critic.num_gpus_per_node 2", (-10, 10)),
        ("AS reinforce", (-10, 10)),
        ("AS gae --critic.num_gpus_per_node 2 --reward.clip_range -1 1", [-1.0, 1.0]),
    ],
)
def test_the_clip_by_default_is_of_estimators_without_a_baseline(job, words, clip):
    assert vars(parse(job(words)))["reward.clip_range"] == clip


def test_greedy_evaluation_is_allowed_and_several_greedy_rollouts_are_questioned(job, capsys):
    line = "--eval.dataset prompts.jsonl --eval.temperature 0"
    parse(job(line))
    assert "--eval.temperature 0 makes the 4 rollouts of an evaluation prompt alike" in capsys.readouterr().err
    parse(job(f"{line} --eval.n_samples_per_prompt 1"))
    assert "alike" not in capsys.readouterr().err
