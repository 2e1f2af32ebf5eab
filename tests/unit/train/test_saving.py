"""When a checkpoint is saved, of what, and what a disk that refuses it costs."""

from argparse import Namespace
from dataclasses import replace

import openrlhf_on_cpu  # noqa: F401
import pytest
import ray
from cases import cases

from openrlhf_shear.train.carriers import Save
from openrlhf_shear.train.checkpoints.folders import NotSavedError
from openrlhf_shear.train.run import saving
from openrlhf_shear.train.run.saving import Best, Moment, Progress, Saver, what_to_save

FLAGS = {"save_steps": 4, "disable_ds": False, "save_hf": False, "best_weights_only": False}
NOW = Progress(step=8, trained=True, sound=True, last_saved=4, is_best=True)


@pytest.mark.parametrize(*cases("train", "test_what_is_saved_when"))
def test_what_is_saved_when(moment, now, flags, saved):
    what = what_to_save(Moment[moment], replace(NOW, **now), Namespace(**FLAGS | flags))
    parts = {part: part in (saved or ()) for part in ("checkpoint", "model")}
    assert what == (saved and Save(now.get("step", NOW.step), **parts, best=moment == "EVALUATION"))


def test_the_best_evaluation_is_that_of_the_metric_that_was_chosen():
    first = Best().after({"eval_z_pass1": 0.5, "eval_a_pass1": 0.25, "eval_a_length": 9.0})
    assert first == Best("eval_a_pass1", 0.25, 0.25)
    assert first.after({"eval_a_pass1": 0.125}) == Best("eval_a_pass1", 0.25, 0.125)
    assert first.after({"eval_z_pass1": 0.75}) == first
    assert Best("none").after({"eval_a_pass1": 1.0}) == Best("none")
    assert Best("suite/average").after({"suite/average": 0.5}).value == 0.5


@pytest.mark.parametrize(
    ("mine", "states", "expected"),
    [
        (Best("eval_a_pass1"), {"best_eval_metric_key": "suite/average", "best_eval_metric_value": 0.9}, None),
        (Best(), {"best_eval_metric_key": "k", "best_eval_metric_value": 0.9}, Best("k", 0.9, 0.9)),
        (Best("k", 0.95, 0.1), {"best_eval_metric_key": "k", "best_eval_metric_value": 0.9}, Best("k", 0.95, 0.9)),
        (Best("k", 0.5, 0.5), {}, Best("k", 0.5, 0.5)),
    ],
)
def test_a_checkpoint_restores_the_best_evaluation_unless_the_command_line_names_another_metric(mine, states, expected):
    assert mine.resumed(states) == (expected or replace(mine, latest=0.9))


def test_the_best_evaluation_survives_a_checkpoint():
    best = Best("k", 0.5, 0.25)
    assert Best().resumed(best.states()) == best
    assert (best.found(), Best("k").found()) == ({"best_eval_metric_key": "k", "best_eval_metric_value": 0.5}, {})


class Remote:
    """Stands for a method of a Ray actor: records the arguments of each call, and returns a fixed reference."""

    def __init__(self, ref: str):
        self.ref, self.calls = ref, []

    def remote(self, *given):
        self.calls.append(given)
        return self.ref


@pytest.fixture
def disk(monkeypatch):
    """What a save raises; None where it succeeds."""
    state = Namespace(error=None, saved=[])

    def get(ref):
        if ref == ["saved"] and state.error:
            raise state.error
        return ref

    monkeypatch.setattr(saving.ray, "get", get)
    monkeypatch.setattr(saving.ray, "wait", lambda refs, num_returns: None)
    methods = {"prune_checkpoints": "", "discard_checkpoint": ""}
    state.first = Namespace(**{name: Remote(ref) for name, ref in methods.items()})
    state.actors = Namespace(
        actors=[state.first], async_run_method=lambda *given, **how: state.saved.append((given, how)) or ["saved"]
    )
    return state


def failure(cause: Exception) -> ray.exceptions.RayTaskError:
    return ray.exceptions.RayTaskError("save_checkpoint", "", cause)


def test_a_checkpoint_has_the_states_and_the_best_evaluation_and_then_old_ones_go(disk):
    what, best = Save(8, checkpoint=True, model=False), Best("k", 0.75, 0.5)
    assert Saver(disk.actors, None).save(what, {"global_step": 8}, best) == ""
    (given, how) = disk.saved[0]
    assert given == ("save_checkpoint", what, {"global_step": 8} | best.states())
    assert how == {"metric_value": 0.5, "metric_key": "k"}, "which checkpoint is pruned first"
    assert disk.first.prune_checkpoints.calls == [(what,)] and not disk.first.discard_checkpoint.calls


def test_a_disk_that_fills_costs_the_checkpoint(disk):
    saver, what = Saver(disk.actors, None), Save(8, checkpoint=True, model=False)
    disk.error = failure(NotSavedError("[Errno 28] No space left on device: 'x'"))
    assert saver.save(what, {}, Best()) == "[Errno 28] No space left on device: 'x'; make room for --ckpt.path"
    assert disk.first.discard_checkpoint.calls == [("global_step8",)] and not disk.first.prune_checkpoints.calls
    disk.error = failure(KeyError("a mistake is none of the disk's"))
    with pytest.raises(ray.exceptions.RayTaskError):
        saver.save(what, {}, Best())
