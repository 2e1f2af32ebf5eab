"""Curves and notes of a run: none of their failures ends it, each is said once, and curves go on when they can."""

import errno
import json
import os
from argparse import Namespace
from types import SimpleNamespace

import pytest
from cases import table

from openrlhf_shear.train.cpu import backend as cpu_backend

cpu_backend.install()  # tests import OpenRLHF's modules

from openrlhf_shear.train.run import tracking  # noqa: E402


@pytest.fixture
def said(monkeypatch):
    """What is logged."""
    lines = []
    for level in ("warning", "error"):
        monkeypatch.setattr(tracking.logger, level, lines.append)
    return lines


@pytest.fixture
def args(tmp_path, monkeypatch):
    for name in ("WANDB_RUN_ID", "WANDB_RESUME"):
        monkeypatch.setenv(name, "")  # put back at the end
        monkeypatch.delenv(name)
    wandb = Namespace(run_name="ppo_1126T10:00", key=None)
    logger = Namespace(tensorboard_dir=str(tmp_path / "board"), wandb=wandb, logging_steps=1)
    return Namespace(ckpt=Namespace(path=str(tmp_path / "ckpt"), load_enable=False), logger=logger)


def started(args) -> tracking.Tracking:
    """The notes and curves of a run, as its trainer starts them."""
    kept = tracking.Tracking(args)
    kept.start()
    return kept


def steps(args) -> list[int]:
    """Those that TensorBoard shows of the run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(os.path.join(args.logger.tensorboard_dir, args.logger.wandb.run_name)).Reload()
    return [event.step for event in board.Scalars("train/reward")]


@pytest.fixture(autouse=True)
def first_files(monkeypatch):
    """TensorBoard's number of a file in its process starts at 0: files of one second are read in the order of names."""
    from tensorboard.summary.writer import event_file_writer

    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


@pytest.fixture
def disk(monkeypatch):
    """A disk that is full while `full` is set: of TensorBoard's writes, in its thread, and of nameless files."""
    from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem

    state = SimpleNamespace(full=False)
    write, probe = LocalFileSystem._write, tracking.tempfile.TemporaryFile

    def refusing(really):
        def call(*given, **how):
            if state.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return really(*given, **how)

        return call

    monkeypatch.setattr(tracking, "BUSY", 1.0)  # steps of a test take no time; each of them tries
    monkeypatch.setattr(LocalFileSystem, "_write", refusing(write))
    monkeypatch.setattr(tracking.tempfile, "TemporaryFile", refusing(probe))
    return state


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's writer
def test_a_full_disk_costs_steps_of_tensorboard_and_is_said_once(args, disk, said):
    kept = started(args)
    for step in range(1, 9):
        disk.full = 3 <= step <= 5
        kept.log(step, {"reward": 1.0})
        kept.log_eval(step, {"pass1": 0.5})
    kept.close()
    assert len(said) == 2, said
    assert said[0].startswith("TensorBoard failed: OSError: [Errno 28] No space left on device at step 3; training ")
    assert said[1] == "TensorBoard works again at step 6; steps before are missing in its curves"
    assert steps(args) == [1, 2, 6, 7, 8]
    folder = os.path.join(args.logger.tensorboard_dir, args.logger.wandb.run_name)
    assert len(os.listdir(folder)) == 2, "tries that fail leave no files"


def test_a_resume_on_a_full_disk_hides_the_steps_that_are_done_again_later(args, disk, said):
    kept = started(args)
    for step in range(1, 5):
        kept.log(step, {"reward": 1.0})
    kept.close()
    args.ckpt.load_enable, disk.full = True, True
    kept = started(args)
    kept.resume(2)
    kept.log(3, {"reward": 1.0})
    disk.full = False
    kept.log(4, {"reward": 1.0})
    kept.close()
    assert [line.split(":")[0] for line in said] == ["TensorBoard failed", said[1]] and steps(args) == [1, 2, 4]


def test_a_folder_that_cannot_be_made_costs_the_curves(args, said, tmp_path):
    (tmp_path / "board").write_text("a file in its place")
    kept = started(args)
    kept.resume(0)
    for step in (1, 2):
        kept.log(step, {"reward": 1.0})
    kept.close()
    assert len(said) == 1 and said[0].startswith("TensorBoard failed: NotADirectoryError: ")


class Service:
    """W&B's, in upstream's logger's place; `broken` is what its calls do."""

    broken: Exception | None = None

    def __init__(self, args):
        self.call()

    def call(self, *given):
        if self.broken:
            raise self.broken

    log_train = log_eval = close = call


def test_wandb_that_fails_costs_its_curves_and_long_tries_are_rare(args, said, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(tracking.time, "monotonic", lambda: clock[0])
    args.logger.wandb.key, args.logger.tensorboard_dir = "key", None
    monkeypatch.setattr(tracking, "WandbLogger", Service)
    kept = started(args)
    kept.log(1, {"reward": 1.0})

    made = []

    def slow(self, _):
        made.append(clock[0])
        clock[0] += 90.0
        raise ConnectionError("api.wandb.ai is not reachable\nand more")

    monkeypatch.setattr(Service, "broken", BrokenPipeError("its process is gone"))
    monkeypatch.setattr(Service, "__init__", slow)
    for step in range(2, 200):
        clock[0] += 10.0
        kept.log(step, {"reward": 1.0})
    assert len(said) == 1 and said[0].startswith("W&B failed: BrokenPipeError: its process is gone at step 2; training")
    assert len(made) == 2, "of 33 minutes at most a twentieth"
    monkeypatch.undo()
    kept.close()


def test_wandb_that_does_not_end_is_waited_for_in_vain_no_longer_than_two_minutes(args, said, monkeypatch):
    import threading

    ends = threading.Event()
    monkeypatch.setattr(tracking, "CLOSING_SECONDS", 0.05)
    tracker = SimpleNamespace(close=ends.wait)
    tracking.Curves("W&B", lambda: tracker).close()
    assert said == ["W&B failed: not closed after 0.05 s: the end of its curves may be missing"]
    ends.set()


UNUSABLE = table("train", "UNUSABLE")


@pytest.mark.parametrize("text", UNUSABLE)
def test_notes_that_cannot_be_read_cost_what_they_say(args, said, text, tmp_path):
    (tmp_path / "ckpt").mkdir()
    file = tmp_path / "ckpt" / "tracking.json"
    file.write_bytes(text.encode("latin-1"))
    args.ckpt.load_enable = True
    kept = tracking.Tracking(args)
    assert kept.evaluated == -1 and args.logger.wandb.run_name == "ppo_1126T10:00"
    assert len(said) == 1 and said[0].startswith(f"{file} cannot be used: ") and UNUSABLE[text] in said[0]
    assert json.loads(file.read_text())["run_name"] == "ppo_1126T10:00"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_notes_that_cannot_be_written_are_said_once_and_tried_again(args, said, monkeypatch, tmp_path, code):
    def refused(path, text):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(tracking, "write_text", refused)
        kept = tracking.Tracking(args)
        kept.note_evaluated(1, {})
    assert len(said) == 1 and os.strerror(code) in said[0] and "training goes on" in said[0]
    kept.note_evaluated(2, {})
    assert json.loads((tmp_path / "ckpt" / "tracking.json").read_text())["evaluated"] == 2


def test_the_best_evaluation_is_there_for_a_resume_and_one_of_lost_steps_is_not(args):
    """The checkpoint of step 20 is older than the evaluation of step 20."""
    first = tracking.Tracking(args)
    for step, value in ((10, 0.5), (20, 0.8), (30, 0.8)):
        first.note_evaluated(step, {"best_eval_metric_key": "eval_pass1", "best_eval_metric_value": value})
    args.ckpt.load_enable = True
    best = {"step": 20, "best_eval_metric_key": "eval_pass1", "best_eval_metric_value": 0.8}
    before = best | {"step": 10, "best_eval_metric_value": 0.5}
    for step, found in ((30, best), (20, best), (15, before), (5, {})):
        assert tracking.Tracking(args).resume(step) == found
