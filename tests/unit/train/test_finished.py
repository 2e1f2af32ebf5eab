"""The folders of a run that is finished, or still writes: told before Ray starts, and nothing in them is lost."""

import json
import subprocess
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import openrlhf_on_cpu  # noqa: F401
import pytest
from command_lines import ROOT, refusal

from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight import resources
from openrlhf_shear.train.checkpoints import finished, folders
from openrlhf_shear.train.checkpoints.saveable import model_written
from openrlhf_shear.train.run import trainer_actor
from openrlhf_shear.train.screen.outcome import ERROR, ModelNotWrittenError, RefusedError

FOLDERS = "--ckpt.path run/ckpt --ckpt.output_dir run/model"


@pytest.fixture
def run(job):
    """The values of a finished run of two episodes with a checkpoint and a model, and its line."""
    aside = Path(f"run/ckpt/_actor/global_step8{folders.PARTIAL}")
    aside.mkdir(parents=True)
    (aside / "metric.json").write_text("{}")
    folders.commit(aside.parent, "global_step8", folders.digests(aside.iterdir()))
    Path("run/model").mkdir()
    Path("run/model/config.json").write_text("{}")
    Path("run/model/model.safetensors").write_text("")
    line = job(f"{FOLDERS} --ckpt.save_steps 1 --train.num_episodes 2 --ckpt.load_enable")
    values = {"ckpt.path": "run/ckpt", "ckpt.output_dir": "run/model", "ckpt.load_enable": True}
    values |= {"train.num_episodes": 2, "ckpt.accept_changes": None}
    finished.mark(Run(values))
    return values, line


def test_a_finished_run_is_answered_without_ray(run, capsys, monkeypatch):
    _, line = run
    monkeypatch.setattr(train_ppo_ray.attempts, "supervise", lambda *given: pytest.fail("started"))
    assert json.loads(Path("run/ckpt/finished.json").read_text()) == {"checkpoint": "global_step8", "num_episodes": 2}
    train_ppo_ray.main(line)
    assert "nothing left to do: the run finished at step 8, and its model is in run/model" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        lambda values: Path("run/model/model.safetensors").unlink(),
        lambda values: Path("run/ckpt/finished.json").unlink(),
        lambda values: values.update({"train.num_episodes": 3}),
        lambda values: values.update({"ckpt.accept_changes": "data"}),
        lambda values: values.update({"ckpt.load_enable": False}),
        lambda values: Path("run/ckpt/_actor/global_step8").rename("run/ckpt/_actor/global_step7"),
    ],
)
def test_a_run_with_something_left_starts(run, change):
    """Also one whose model is missing, which the trainer then writes."""
    values, _ = run
    assert finished.nothing_left(Run(values))
    change(values)
    assert finished.nothing_left(Run(values)) == ""


def test_a_run_without_a_checkpoint_gets_no_mark(tmp_path):
    finished.mark(Run({"ckpt.path": str(tmp_path), "train.num_episodes": 1}))
    assert not list(tmp_path.iterdir())


def test_a_folder_in_which_a_run_still_writes_is_refused(job, capsys, monkeypatch):
    line = job(FOLDERS)
    lock = folders.lock_own(Namespace(path="run/ckpt", save_steps=-1, load_enable=False))
    monkeypatch.setattr(resources, "LOCK_SECONDS", 0.0)
    assert "ckpt.path is the folder of a run that still writes: got 'run/ckpt'" in refusal(capsys, line)
    lock.close()
    started = resources.hold(Path("run/ckpt"))
    assert resources.hold(Path("run/ckpt")) is None
    assert "ckpt.path is the folder of a run that still writes" in refusal(capsys, line), "before its Ray is up"
    started.close()
    train_ppo_ray.read(line)


@pytest.mark.parametrize(
    ("save_steps", "remedy"), [(4, "make room, then the same line"), (-1, "no checkpoint was made")]
)
def test_a_disk_that_refuses_the_model_is_told_in_a_line(save_steps, remedy):
    told = f"written to --ckpt.output_dir: out could .* left; {remedy}"
    with pytest.raises(ModelNotWrittenError, match=told) as ended, model_written(Namespace(save_steps=save_steps)):
        raise OSError("out could not be written (No space left on device); its disk has 0 GB left")
    assert ended.value.code == ERROR, "another attempt may write it"


@pytest.mark.parametrize("words", [["evaluate", "--help"], ["train_ppo_ray", "--help"]])
def test_a_reader_that_leaves_ends_a_command_without_a_word(words):
    command = [sys.executable, "-m", f"openrlhf_shear.cli.{words[0]}", *words[1:]]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    )
    started.stdout.close()
    assert started.stderr.read() == b""
    assert started.wait() in (0, 141)


def test_a_start_in_the_folder_of_another_run_writes_nothing_there(monkeypatch):
    def refuse(ckpt):
        raise folders.NotOursError("another run writes to --ckpt.path")

    monkeypatch.setattr(trainer_actor.folders, "lock_own", refuse)
    monkeypatch.setattr(trainer_actor, "Tracking", lambda args: pytest.fail("tracking.json is the other run's"))
    args = Namespace(ckpt=None, data=Namespace(disable_fast_tokenizer=False))
    actor = trainer_actor.TrainerActor("model", Namespace(args=args), *[None] * 4, [])
    with pytest.raises(RefusedError, match="another run writes"):
        actor.get_max_steps()


@pytest.mark.parametrize(("frozen", "refused"), [(3, False), (4, True)])
def test_a_run_whose_policy_never_learns_is_refused(frozen, refused):
    """Two episodes of six prompts, four a step: four steps."""
    rollout, train = Namespace(batch_size=4, n_samples_per_prompt=1), Namespace(num_episodes=2)
    args = Namespace(rollout=rollout, train=train, critic=Namespace(freezing_steps=frozen))
    with pytest.raises(RefusedError, match="learn in none of the run's 4 steps") if refused else nullcontext():
        trainer_actor.refuse_frozen(args, 6, has_critic=True)
    trainer_actor.refuse_frozen(args, 6, has_critic=False)
