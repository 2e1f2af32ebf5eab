"""The loop of a run, as a plain object: its place after a resume, its steps, its checkpoints and its end."""

from argparse import Namespace
from collections import Counter

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from cases import cases
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.data.training_rows import COUNT
from openrlhf_shear.train.carriers import FAILED, Accounts, Batch, Save
from openrlhf_shear.train.checkpoints import fingerprint
from openrlhf_shear.train.experience.graded_experience import NothingToTrainError
from openrlhf_shear.train.run.books import Advantages
from openrlhf_shear.train.run.evaluation import Scores
from openrlhf_shear.train.run.trainer import ShearTrainer, Stop
from openrlhf_shear.train.sampling.batches import Batches
from openrlhf_shear.train.sampling.order import PromptOrder
from openrlhf_shear.train.screen.outcome import RefusedError, RewardsLostError, StoppedError
from openrlhf_shear.train.start import attempts

SEED, SIZE, BATCH = 42, 40, 8  # prompts an episode, prompts a step
KEY = "eval_default_pass1"


class Generator:
    """Samples generator that takes a batch of prompts at a time, and whose rollouts are given."""

    def __init__(self, order: PromptOrder, stop: Stop, batches: list[Batch]):
        self._order, self.prompts, self.reserve, self.taken = order, len(order), [], []
        self.check_stop, self._batches, self._counts = stop.check, list(batches), Accounts()

    def start_episode(self, episode: int, consumed: int) -> None:
        self._order.start_at(episode, consumed)
        self._left, self.consumed = list(self._order), consumed

    @property
    def ended(self) -> bool:
        return not self._left

    def generate_samples(self):
        samples, self._counts = self._batches.pop(0) if self._batches else ([], Accounts())
        batch, self._left = self._left[:BATCH], self._left[BATCH:]
        self.taken += batch
        self.consumed += len(batch)
        return samples, None

    def take_counts(self) -> Accounts:
        return self._counts


class Maker:
    """Experience maker of a run without a credit rule."""

    outcomes = None

    rule_name, shown = "", None

    def __init__(self):
        self.broken = {}

    def metrics(self) -> dict[str, float]:
        return {"vllm_gap": 0.01}


class Policy:
    """Models that learn at once; `happened` has the calls that they got, in order."""

    def __init__(self, states: dict | None, kl: float):
        self.states, self.kl_ctl, self.experience_maker = states, Namespace(value=kl), Maker()
        self.happened, self.nothing = [], ""

    def checkpoint_states(self):
        return self.states

    def begin_update(self, step):
        self.happened.append(("update", step))

    def train_step(self, samples, step):
        if self.nothing:
            raise NothingToTrainError(self.nothing)
        self.trained = sum(float(sample.info[FAILED]) == 0 for sample in samples)
        return {"update/skipped_steps": 0.0, "update/optimizer_steps": 1.0, "update/moved": 1.0}, step + 1

    def take_trained(self):
        return self.trained

    def broadcast_to_vllm(self):
        self.happened.append("weights sent")


class Disk:
    """Saver that records what is saved, with the prompts consumed by then; `problem` is why the disk refuses."""

    def __init__(self):
        self.saved, self.problem = [], ""

    def save(self, what: Save, states: dict, best) -> str:
        if not self.problem:
            self.saved.append((what.tag, states["total_consumed_prompts"]))
            self.best = best
        return self.problem


class Evaluations:
    """Evaluations every `every` steps, whose scores are given, by step."""

    def __init__(self, scores: dict[int, float], every: int, before_train: bool):
        self.scores, self._every, self.before_train, self.steps = scores, every, before_train, []

    def is_due(self, step: int) -> bool:
        return bool(self.scores) and step > 0 and step % self._every == 0

    def run(self, step, undisturbed, go_on=False):
        self.steps.append((step, go_on))
        return Scores({KEY: self.scores[step]})


class Notes:
    """Curves that go nowhere, and the notes of a run: `evaluated`, and the best evaluation of a resume."""

    def __init__(self, best: dict | None):
        self.evaluated, self.best, self.logged, self.noted = -1, best or {}, {}, {}

    def resume(self, step):
        return self.best

    def log(self, step, values):
        self.logged[step] = values

    def note_evaluated(self, step, best):
        self.noted[step] = best

    def close(self):
        self.closed = True


def topics(seed: int = SEED, size: int = SIZE) -> dict:
    return {"data": {COUNT: size}, "seed": {"train.seed": seed}}


def settings(**changes) -> Namespace:
    """OpenRLHF's nested namespace; `changes` are flags whose dots are double underscores."""
    args = Namespace(
        algo=Namespace(kl=Namespace(target=None), dynamic_filtering_enable=True, dynamic_filtering_range=(0.0, 1.0)),
        ckpt=Namespace(
            load_enable=False, accept_changes=None, path="ckpt", output_dir="out", save_steps=-1, save_hf=False,
            disable_ds=False, best_weights_only=False,
        ),
        ds=Namespace(use_universal_ckpt=False),
        logger=Namespace(tensorboard_dir=None),
        reward=Namespace(max_failed=0.5, max_failed_steps=3),
        rollout=Namespace(batch_size=BATCH, n_samples_per_prompt=1),
        train=Namespace(num_episodes=3, seed=SEED, max_skipped_steps=3),
        dump_rollouts_every=0,
    )  # fmt: skip
    for name, value in changes.items():
        section, _, flag = name.partition("__")
        setattr(getattr(args, section), flag, value)
    return args


def run(
    batches=(), states=None, seed=SEED, size=SIZE, best=None, scores=None, before_train=False, every=1, kl=0.1,
    **flags,
):  # fmt: skip
    """A trainer with everything but models and engines: its parts are attributes of the result."""
    args, stop = settings(**flags), Stop()
    parts = Namespace(stop=stop, policy=Policy(states, kl), disk=Disk(), notes=Notes(best))
    parts.generator = Generator(PromptOrder(size, seed), stop, batches)
    parts.batches = Batches(parts.generator, args.train.num_episodes, {})
    parts.evaluations = Evaluations(scores or {}, every, before_train)
    identity = fingerprint.Fingerprint(topics(seed, size))
    parts.trainer = ShearTrainer(
        args, parts.policy, parts.batches, parts.disk, parts.evaluations, parts.notes, identity, size, stop=stop
    )
    return parts


def checkpoint(**changes) -> dict:
    """The states of a checkpoint in the second episode of three."""
    place = {"episode": 1, "consumed": 16, "global_step": 7, "total_consumed_prompts": SIZE + 16}
    ledger = Accounts(dispatched=9, trained=9).state(0)
    return place | {"kl": 0.3, "ledger": ledger, "waiting": [], fingerprint.STATE: topics()} | changes


def batch(trained: int = 0, filtered: int = 0, failed: int = 0) -> tuple[list[Experience], Accounts]:
    """Rollouts with a reward, filtered, and whose reward failed."""
    counts = Accounts(dispatched=trained + filtered + failed, filtered=filtered, failed=Counter({"timeout": failed}))
    counts.filtered_scores = "their mean scores are -1 to -0.5" if filtered else ""
    lost = [0.0] * trained + [1.0] * failed
    return [Experience(rewards=torch.ones(1), info={FAILED: torch.tensor([out])}) for out in lost], counts


# ── A resume ──


def test_the_same_run_resumes_at_its_place(capsys):
    parts = run(states=checkpoint())
    parts.trainer.fit()
    order = PromptOrder(SIZE, SEED)
    order.start_at(1, 16)
    assert parts.generator.taken[:24] == list(order) and len(parts.generator.taken) == 24 + SIZE
    text = capsys.readouterr().out
    assert "episode 2, 16 of 40 prompts" in text and "after step 7 of 15" in text, "3 steps, and 5 of the third episode"


@pytest.mark.parametrize(*cases("train", "test_another_run_is_refused"))
def test_another_run_is_refused(changes, said):
    with pytest.raises(RefusedError, match=f"ckpt.path ckpt: step 7 is of another run: {said}"):
        run(states=checkpoint(), **changes).trainer.fit()


@pytest.mark.parametrize(
    "changes", [{"seed": 7, "ckpt__accept_changes": "seed"}, {"size": 16, "ckpt__accept_changes": "data,rule"}]
)
def test_other_prompts_that_are_taken_are_begun_at_the_first_one(capsys, changes):
    """At the old place, 7 of 40 prompts were never trained on with another seed, and "32 of 16" were there."""
    parts = run(states=checkpoint(), **changes)
    parts.trainer.fit()
    text, size = capsys.readouterr().out, changes.get("size", SIZE)
    assert "taken as asked" in text and "episode 2 begins again" in text and f"episode 2, 0 of {size} prompts" in text
    taken = parts.generator.taken
    assert sorted(taken[:size]) == sorted(taken[size:]) == list(range(size))


def test_what_is_saved_next_has_the_fingerprint_of_what_was_taken():
    parts = run(states=checkpoint(), seed=7, ckpt__accept_changes="seed")
    parts.trainer.fit()
    assert parts.trainer.states[fingerprint.STATE] == topics(seed=7)


@pytest.mark.parametrize(("target", "found"), [(None, 0.1), (6.0, 0.3)])
def test_a_fixed_kl_coefficient_comes_from_the_flags_and_an_adaptive_one_from_the_checkpoint(target, found):
    parts = run(states=checkpoint(), algo__kl=Namespace(target=target))
    parts.trainer.fit()
    assert parts.policy.kl_ctl.value == found == parts.trainer.states["kl"]


@pytest.mark.parametrize(("noted", "value"), [(None, 0.6), (0.8, 0.8), (0.5, 0.6)])
def test_the_engines_get_the_weights_and_the_best_evaluation_is_of_checkpoint_or_notes(noted, value):
    """The notes have an evaluation after the checkpoint."""
    found = {"best_eval_metric_key": KEY, "best_eval_metric_value": 0.6, "latest_eval_metric_value": 0.4}
    best = noted and {"best_eval_metric_key": KEY, "best_eval_metric_value": noted}
    parts = run(states=checkpoint(**found), best=best)
    parts.trainer.fit()
    assert parts.policy.happened == ["weights sent"]
    assert (parts.trainer.best.value, parts.trainer.best.latest) == (value, 0.4)


@pytest.mark.parametrize(("evaluated", "steps"), [(7, []), (6, [(7, True)])])
def test_an_evaluation_that_a_kill_interrupted_is_made_good(evaluated, steps):
    parts = run(states=checkpoint(), scores={7: 0.5}, every=7)
    parts.notes.evaluated = evaluated
    parts.trainer.fit()
    assert parts.evaluations.steps == steps


# ── The end of a run ──


def test_a_run_whose_filter_dropped_everything_is_an_error_that_no_attempt_repeats(capsys):
    parts = run([batch(filtered=32), batch(filtered=32)])
    with pytest.raises(RewardsLostError, match=r"64 were filtered \(their mean scores are -1 to -0.5"):
        parts.trainer.fit()
    text = capsys.readouterr().out
    assert "ended after step 0" in text and "finished" not in text and parts.notes.closed
    assert RewardsLostError.code != 0 and RewardsLostError.code in attempts._FINAL


@pytest.mark.parametrize(
    ("batches", "states"),
    [
        ([batch(4)], None),
        ([batch(filtered=32), batch(4, filtered=28)], None),
        ([], checkpoint()),  # a resumed run that has trained, with nothing left
        ([batch(filtered=32)], checkpoint()),
    ],
)
def test_a_run_with_a_step_is_finished(capsys, batches, states):
    run(batches, states).trainer.fit()
    assert "finished after step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("batches", "states", "save_steps", "saved"),
    [
        ([batch(4)], None, 10, [("global_step1", 3 * SIZE)]),
        ([batch(4)], None, -1, []),  # no checkpoints were asked for
        ([batch(filtered=32)], checkpoint(), 10, []),  # a resumed run that makes no step
        ([batch(4), batch(filtered=32)], None, 1, [("global_step1", BATCH), ("global_step1", 3 * SIZE)]),
        ([batch(4)] * 15, None, 15, [("global_step15", 3 * SIZE)]),  # the last step's is the last one
    ],
)
def test_a_run_ends_with_a_checkpoint_of_its_last_step_and_place(batches, states, save_steps, saved):
    """One that precedes prompts which were filtered at the end is written again."""
    parts = run(batches, states, ckpt__save_steps=save_steps)
    parts.trainer.fit()
    assert parts.disk.saved == saved


def test_a_run_that_is_asked_to_stop_saves_its_last_step():
    parts = run([batch(4)] * 3)
    parts.policy.begin_update = lambda step: setattr(parts.stop, "why", "SIGTERM" if step == 1 else "")
    with pytest.raises(StoppedError, match="stopped by SIGTERM after step 2"):
        parts.trainer.fit()
    assert parts.disk.saved == [("global_step2", 2 * BATCH)]


def test_a_checkpoint_that_the_disk_refuses_is_tried_again_after_the_next_step(caplog):
    parts = run([batch(4)] * 3, ckpt__save_steps=2)
    parts.disk.problem = "the disk has no room"
    tried = []
    parts.policy.begin_update = lambda step: step == 2 and setattr(parts.disk, "problem", "")
    parts.trainer.fit()
    assert parts.disk.saved[0] == ("global_step3", 3 * BATCH), tried


# ── A step ──


def test_a_step_is_entered_in_the_books_and_logged():
    parts = run([batch(4, failed=2)])
    parts.trainer.fit()
    logged = parts.notes.logged[1]
    assert (logged["ledger/trained"], logged["ledger/failed"], logged["ledger/dispatched"]) == (4.0, 2.0, 6.0)
    assert logged["vllm_gap"] == 0.01 and logged["update/optimizer_steps"] == 1.0 and "update/moved" not in logged
    assert parts.trainer.books.moved and parts.policy.experience_maker.training_step == 1


@pytest.mark.parametrize(("rollouts", "nothing"), [(batch(failed=4), ""), (batch(4), "no rollout is finite")])
def test_a_step_without_a_rollout_to_train_on_updates_nothing(rollouts, nothing):
    """E.g. an agent's temperature of 0, or weights that overflow: upstream would read the first rollout."""
    parts = run()
    parts.policy.nothing = nothing
    parts.policy.experience_maker.broken = {"advantage not finite": range(4)} if nothing else {}
    parts.trainer.books.accounts.add(rollouts[1])
    status, step = parts.trainer.train_step(rollouts[0], 4)
    assert (status["update/optimizer_steps"], status["ledger/trained"], step) == (0.0, 0.0, 5)
    assert parts.policy.happened == ([("update", 4)] if nothing else [])


def test_a_step_of_equal_rewards_is_warned_of(monkeypatch):
    parts, text = run(), []
    parts.trainer._advantages = Advantages(2)
    monkeypatch.setattr("openrlhf_shear.train.run.trainer.logger.warning", text.append)
    for step in range(2):
        parts.trainer.books.accounts.add(batch(4)[1])
        parts.trainer.train_step(batch(4)[0], step)
    assert len(text) == 1 and text[0].startswith("step 2: all 4 rewards are 1: nothing is learned")


def test_the_rollouts_that_taught_are_those_of_the_accounts_also_after_a_kill_and_a_resume():
    """A kill in a step counts neither; a resume goes on from the checkpoint's counts."""
    first = run([batch(4)] * 2)
    first.trainer._advantages = Advantages(2)
    first.trainer.fit()
    assert first.trainer.states["learned"] == [0, first.trainer.states["ledger"]["trained"]] == [0, 8]
    first.trainer._advantages.note([1.0, 0.0, 1.0, 1.0])  # of a step that is killed
    assert first.trainer.states["learned"] == [0, 8]
    again = run([batch(4)])
    again.trainer._advantages = Advantages(2)
    again.policy.checkpoint_states = lambda: first.trainer.states
    again.trainer._resume()
    assert again.trainer._advantages.counts == [0, 8]


# ── Evaluations ──


def test_only_a_better_evaluation_of_a_trained_model_is_saved_as_the_best():
    parts = run([batch(4)] * 3, scores={0: 0.9, 1: 0.5, 2: 0.4, 3: 0.6}, before_train=True)
    parts.trainer.fit()
    assert [step for step, _ in parts.evaluations.steps] == [0, 1, 2, 3]
    assert [tag for tag, _ in parts.disk.saved] == ["best_global_step1", "best_global_step3"]
    assert parts.notes.noted[2] == {"best_eval_metric_key": KEY, "best_eval_metric_value": 0.5}
    assert parts.disk.best.states()["latest_eval_metric_value"] == 0.6


def test_an_untrained_model_is_not_the_best():
    parts = run([batch(failed=4)], scores={1: 0.5}, reward__max_failed_steps=9)
    with pytest.raises(RewardsLostError):
        parts.trainer.fit()
    assert parts.disk.saved == [] and parts.notes.noted == {1: {}}


def test_a_best_checkpoint_that_the_disk_refused_is_not_the_best():
    parts = run([batch(4)] * 2, scores={1: 0.8, 2: 0.7})
    parts.disk.problem = "no space left"
    parts.policy.begin_update = lambda step: step == 1 and setattr(parts.disk, "problem", "")
    parts.trainer.fit()
    assert [tag for tag, _ in parts.disk.saved] == ["best_global_step2"], "0.7 is the best that is saved"
