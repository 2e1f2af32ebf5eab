"""The place of a resumed run: from its checkpoint, with accepted changes, and after a full disk."""

from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import ray

from openrlhf_shear.data.order import COUNT
from openrlhf_shear.train.checkpoints import fingerprint
from openrlhf_shear.train.checkpoints.folders import NotSavedError
from openrlhf_shear.train.checkpoints.resume import states_of
from openrlhf_shear.train.run import saving, trainer
from openrlhf_shear.train.run.books import Books
from openrlhf_shear.train.sampling.accounts import Accounts
from openrlhf_shear.train.sampling.batches import Batches
from openrlhf_shear.train.sampling.order import PromptOrder
from openrlhf_shear.train.screen.outcome import RefusedError

SEED, SIZE, BATCH = 42, 40, 8


class Generator:
    """Takes a batch of prompts at a time."""

    def __init__(self, order: PromptOrder):
        self._order, self.prompts, self.kept, self.taken = order, len(order), [], []
        self.check_stop = lambda: None

    def start_episode(self, episode: int, consumed: int) -> None:
        self._order.start_at(episode, consumed)
        self._left, self.consumed = list(self._order), consumed

    @property
    def ended(self) -> bool:
        return not self._left

    def generate_samples(self):
        batch, self._left = self._left[:BATCH], self._left[BATCH:]
        self.taken += batch
        self.consumed += len(batch)
        return [], None

    def take_counts(self) -> Accounts:
        return Accounts()


def topics(seed: int = SEED, size: int = SIZE) -> dict:
    return {"data": {COUNT: size}, "seed": {"train.seed": seed}}


def resumed(monkeypatch, seed=SEED, size=SIZE, accepted=None, target=None, best=None, **kept):
    """A `ShearTrainer` without models, after it has resumed in the second episode of three, of 40 prompts each.

    `best` is the best evaluation in the run's notes; `happened` has what was restored and sent, in order.
    """
    made = object.__new__(trainer.ShearTrainer)
    made.args = SimpleNamespace(
        algo=SimpleNamespace(kl=SimpleNamespace(target=target)),
        ckpt=SimpleNamespace(load_enable=True, accept_changes=accepted, path="ckpt"),
        ds=SimpleNamespace(use_universal_ckpt=False),
        eval=SimpleNamespace(steps=10),
        rollout=SimpleNamespace(batch_size=BATCH),
        train=SimpleNamespace(num_episodes=3),
    )
    place = {"episode": 1, "consumed": 16, "global_step": 7, "total_consumed_prompts": SIZE + 16}
    states = place | {"kl": 0.3, "ledger": Accounts(dispatched=9, trained=9).state(0), "waiting": []} | kept
    made.actor_model_group = SimpleNamespace(async_run_method=lambda name: [states])
    monkeypatch.setattr(trainer.ray, "get", lambda refs: refs)
    made.happened, made._latest_eval_metric_value = [], 0.6
    monkeypatch.setattr(
        trainer.ShearTrainer, "restore_best_checkpoint_state", lambda self, states: self.happened.append(states)
    )
    monkeypatch.setattr(trainer.ShearTrainer, "broadcast_to_vllm", lambda self: self.happened.append("weights sent"))
    made._order, made.kl_ctl = PromptOrder(size, seed), SimpleNamespace(value=0.1)
    made._fingerprint = fingerprint.Fingerprint(topics(seed, size))
    made._tracking = SimpleNamespace(resume=lambda trainer, step: best or {})
    made._batches = Batches(Generator(made._order), 3, {})
    made._books, made.eval_dataloader = Books(made.args, made._batches), None
    made._resume()
    return made


def left(made) -> list[int]:
    """Return the prompts that the run takes from here on."""
    while made._batches.next():
        pass
    return made._batches._generator.taken


def test_the_same_run_resumes_at_its_place(monkeypatch, capsys):
    made = resumed(monkeypatch, fingerprint=topics())
    order = PromptOrder(SIZE, SEED)
    order.start_at(1, 16)
    assert left(made)[:24] == list(order)
    assert "episode 2, 16 of 40 prompts" in capsys.readouterr().out
    assert made._story._steps == 15 == 7 + 3 + 5


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seed": 7}, "train.seed was 42, is 7"),
        ({"size": 16}, "number of prompts was 40, is 16"),
        ({"size": 16, "accepted": "seed"}, "number of prompts was 40, is 16"),
    ],
)
def test_another_run_is_refused(monkeypatch, asked, said):
    with pytest.raises(RefusedError, match=f"ckpt.path ckpt: step 7 is of another run: {said}"):
        resumed(monkeypatch, fingerprint=topics(), **asked)


@pytest.mark.parametrize("asked", [{"seed": 7, "accepted": "seed"}, {"size": 16, "accepted": "data,rule"}])
def test_other_prompts_that_are_taken_are_begun_at_the_first_one(monkeypatch, capsys, asked):
    """At the old place, 7 of 40 prompts were never trained on with another seed, and "32 of 16" were there."""
    made = resumed(monkeypatch, fingerprint=topics(), **asked)
    said, size = capsys.readouterr().out, len(made._order)
    assert "taken as asked" in said and "episode 2 begins again" in said and f"episode 2, 0 of {size} prompts" in said
    assert made._states["total_consumed_prompts"] == size
    assert made._story._steps == 7 + 2 * -(-size // BATCH)
    taken = left(made)
    assert sorted(taken[:size]) == sorted(taken[size:]) == list(range(size))


def test_waiting_rollouts_in_groups_of_another_size_are_dropped_and_their_prompts_begin_again(capsys):
    def of(group: int) -> dict:
        return topics() | {"batch": {"rollout.n_samples_per_prompt": group}}

    args = SimpleNamespace(
        ckpt=SimpleNamespace(accept_changes="batch", path="ckpt"), ds=SimpleNamespace(use_universal_ckpt=False)
    )
    kept = {"episode": 1, "consumed": 16, "global_step": 7, "total_consumed_prompts": SIZE + 16, "waiting": [{}, {}]}
    states = states_of(kept | {fingerprint.STATE: of(2)}, fingerprint.Fingerprint(of(4)), args, SIZE)
    assert (states["waiting"], states["consumed"], states["total_consumed_prompts"]) == ([], 0, SIZE)
    said = capsys.readouterr().out
    assert "2 waiting rollouts are dropped" in said and "episode 2 begins again" in said
    states = states_of(kept | {fingerprint.STATE: of(4)}, fingerprint.Fingerprint(of(4)), args, SIZE)
    assert (states["waiting"], states["consumed"]) == ([{}, {}], 16)
    ahead = kept | {"waiting_episode": 0, fingerprint.STATE: of(2)}  # a batch of the first episode still waits
    states = states_of(ahead, fingerprint.Fingerprint(of(4)), args, SIZE)
    assert (states["episode"], states["consumed"], states["total_consumed_prompts"]) == (0, 0, 0)
    assert "episode 1 begins again" in capsys.readouterr().out


def test_what_is_saved_next_has_the_fingerprint_of_what_was_taken(monkeypatch):
    made = resumed(monkeypatch, seed=7, accepted="seed", fingerprint=topics())
    assert made._states[fingerprint.STATE] == made._states_after(8)[fingerprint.STATE] == topics(seed=7)


def test_a_checkpoint_without_a_fingerprint_is_resumed_with_a_notice(monkeypatch, capsys):
    made = resumed(monkeypatch, seed=7)
    assert "the checkpoint of step 7 is of an older version, without a fingerprint" in capsys.readouterr().out
    assert made._states["consumed"] == 16


def test_a_fixed_kl_coefficient_comes_from_the_flags_and_an_adaptive_one_from_the_checkpoint(monkeypatch):
    assert resumed(monkeypatch, fingerprint=topics()).kl_ctl.value == 0.1
    assert resumed(monkeypatch, target=6.0, fingerprint=topics()).kl_ctl.value == 0.3


def test_an_adaptive_kl_coefficient_is_in_the_next_checkpoint(monkeypatch):
    made = resumed(monkeypatch, target=6.0, fingerprint=topics())
    made.kl_ctl.value = 0.7
    assert resumed(monkeypatch, target=6.0, **made._states_after(8)).kl_ctl.value == 0.7


@pytest.mark.parametrize("best", [None, {"best_eval_metric_key": "eval_pass1", "best_eval_metric_value": 0.8}])
def test_the_engines_get_the_weights_after_the_best_evaluations_of_checkpoint_and_notes_are_restored(monkeypatch, best):
    """The notes have an evaluation after the checkpoint, but no metric of the line."""
    of_checkpoint, *of_notes, last = resumed(monkeypatch, best=best, fingerprint=topics()).happened
    assert of_checkpoint["global_step"] == 7 and last == "weights sent"
    assert of_notes == ([best | {"latest_eval_metric_value": 0.6}] if best else [])


def test_a_disk_that_refuses_a_checkpoint_costs_that_checkpoint(monkeypatch, caplog):
    made = resumed(monkeypatch, fingerprint=topics())
    full, discarded = [True], []
    monkeypatch.setattr(saving.ray, "wait", lambda refs, num_returns: None)

    def get(refs):
        if refs == ["saved"] and full:
            raise ray.exceptions.RayTaskError("save", "", NotSavedError("[Errno 28] No space left on device: 'x'"))
        return "".join(room) if refs == "room" else refs

    actor = SimpleNamespace(
        disk_problem=SimpleNamespace(remote=lambda of_critic: "room"),
        prune_checkpoints=SimpleNamespace(remote=str),
        discard_checkpoint=SimpleNamespace(remote=discarded.append),
    )
    actors = SimpleNamespace(async_run_method=lambda *given, **how: ["saved"], actors=[actor])
    best = {"best_eval_metric_key": "", "best_eval_metric_value": 0.0, "latest_eval_metric_value": None}
    monkeypatch.setattr(saving.ray, "get", get)
    errors, room = [], []
    monkeypatch.setattr(saving.logger, "error", errors.append)
    saver = saving.Saver(actors, None, made._books)
    saver.save(8, made._states, best)
    assert errors == ["no checkpoint of step 8: [Errno 28] No space left on device: 'x'"]
    assert made._books.saved == 7 and discarded == ["global_step8"]
    full.clear()
    saver.save_if_due(9, made._states, best)
    assert made._books.saved == 9, "it stays due"
    saver.save_if_due(10, made._states, best)
    assert made._books.saved == 9
    room.append("the disk has no room")
    for saved, told in ((9, "the checkpoint of step 9 is the last good one"), (None, "no checkpoint was made")):
        made._books.saved = saved
        saver.save(11, made._states, best)
        assert errors[-1] == f"no checkpoint of step 11: the disk has no room; make room for --ckpt.path; {told}"
