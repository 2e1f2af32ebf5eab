"""A checkpoint is whole or absent, wherever a run was killed; pruning keeps the checkpoint that a resume would load."""

import errno
import itertools
import json
import os
import shutil
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest

from openrlhf_shear.preflight import resources
from openrlhf_shear.train.checkpoints import folders, resume
from openrlhf_shear.train.screen.outcome import RefusedError


def write(folder, tag, size=10, metric=None, commit=True, latest=True):
    """A checkpoint as the strategy writes one."""
    partial = folder / f"{tag}{folders.PARTIAL}"
    (partial / "deep").mkdir(parents=True)
    (partial / "model.pt").write_bytes(bytes(size))
    (partial / "deep" / "shard.pt").write_bytes(bytes(size))
    (partial / "metric.json").write_text(json.dumps({"metric_value": metric}))
    if commit:
        folders.commit(folder, tag, digests_of(partial), latest)


def digests_of(partial):
    return folders.digests(file for share in folders.shares([partial], 2) for file in share)


def test_the_newest_complete_one_is_found_and_the_broken_ones_are_named(tmp_path):
    for step in (1, 2, 3, 10):
        write(tmp_path, f"global_step{step}")
    assert folders.find([tmp_path]) == ("global_step10", [])
    (tmp_path / "global_step10" / "model.pt").write_bytes(bytes(5))
    (tmp_path / "global_step3" / "deep" / "shard.pt").unlink()
    tag, skipped = folders.find([tmp_path])
    assert tag == "global_step2"
    assert [line.partition(": ")[2] for line in skipped] == ["model.pt has 5 bytes of 10", "deep/shard.pt is missing"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "complete.json cannot be read"),
        ('{"model.pt": ', "complete.json cannot be read"),
        ("[]", "complete.json cannot be read"),
        ('["model.pt"]', "complete.json cannot be read"),
        ("null", "complete.json cannot be read"),
        ("[" * 100_000, "complete.json cannot be read"),
        ("{}", "complete.json lists no files"),
        ('{"model.pt": null}', "complete.json cannot be read"),
        ('{"model.pt": {"sha256": ""}}', "complete.json cannot be read"),
        ('{"model\\u0000": {"bytes": 10, "sha256": ""}}', " is missing"),
        (b"\xff\xfe{}", "complete.json cannot be read"),
        (None, "complete.json cannot be read"),
    ],
)
def test_a_broken_list_of_files_is_passed_over_for_an_older_checkpoint(tmp_path, content, said):
    write(tmp_path, "global_step1"), write(tmp_path, "global_step2")
    listing = tmp_path / "global_step2" / folders.COMPLETE
    if content is None:
        listing.unlink(), listing.mkdir()
    else:
        listing.write_bytes(content if isinstance(content, bytes) else content.encode())
    tag, skipped = folders.find([tmp_path])
    assert tag == "global_step1" and len(skipped) == 1 and said in skipped[0]
    assert folders.names(tmp_path) == ["global_step1"]


@pytest.mark.parametrize("broken", ["not readable", "a link to itself", "never committed", "without a list of files"])
def test_a_broken_checkpoint_is_passed_over_for_an_older_one(tmp_path, monkeypatch, broken):
    read = folders.Path.read_text

    def refused(path, *how, **named):
        if path.parent.name == "global_step2":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *how, **named)

    for step in (1, 2):
        write(tmp_path, f"global_step{step}", commit=step == 1 or broken != "never committed")
    if broken == "not readable":
        monkeypatch.setattr(folders.Path, "read_text", refused)
    elif broken == "a link to itself":
        (tmp_path / "global_step2" / "loop").symlink_to("loop")
    elif broken == "without a list of files":  # as upstream writes one
        (tmp_path / "global_step2" / folders.COMPLETE).unlink()
    tag, skipped = folders.find([tmp_path])
    unfinished = broken in ("never committed", "without a list of files")
    assert tag == "global_step1" and len(skipped) == 1 and ("never finished" in skipped[0]) == unfinished
    assert folders.find([tmp_path / "nowhere"]) == (None, [])


def test_a_byte_that_is_another_is_seen_and_its_file_named(tmp_path):
    write(tmp_path, "global_step1"), write(tmp_path, "global_step2")
    files = [file for share in folders.shares([tmp_path / "global_step2"], 3) for file in share]
    assert {file.name for file in files} == {"model.pt", "shard.pt", "metric.json"} and not folders.changed(files)
    shard = tmp_path / "global_step2" / "deep" / "shard.pt"
    shard.write_bytes(bytes(9) + b"\x01")
    assert folders.find([tmp_path])[0] == "global_step2", "sizes are the same"
    assert folders.changed(files) == [f"{shard} does not have the bytes that were written (SHA-256)"]
    assert folders.find([tmp_path], without=["global_step2"]) == ("global_step1", [])


def test_the_largest_files_are_shared_out_first(tmp_path):
    for name, size in (("a", 1), ("b", 5), ("c", 3), ("d", 4)):
        (tmp_path / name).write_bytes(bytes(size))
    assert [[file.name for file in share] for share in folders.shares([tmp_path], 2)] == [["b", "c"], ["d", "a"]]


def test_actor_and_critic_go_back_to_the_same_step(tmp_path):
    actor, critic = tmp_path / "_actor", tmp_path / "_critic"
    for step in (1, 2):
        write(actor, f"global_step{step}")
    write(critic, "global_step1")
    assert folders.find([actor, critic])[0] == "global_step1"
    write(critic, "global_step2", commit=False)
    assert folders.find([actor, critic])[0] == "global_step1"


@pytest.mark.parametrize(("models", "newest"), [(("_actor", "_critic"), "global_step1"), (("_actor",), "global_step2")])
@pytest.mark.parametrize("broken", ["a flipped byte", "a file of another size"])
def test_a_resume_passes_over_a_step_whose_critic_is_broken(tmp_path, monkeypatch, models, newest, broken):
    for folder, step in itertools.product(("_actor", "_critic"), (1, 2)):
        write(tmp_path / folder, f"global_step{step}")
    content = bytes(9) + b"\x01" if broken == "a flipped byte" else bytes(9)
    (tmp_path / "_critic" / "global_step2" / "model.pt").write_bytes(content)
    lines = []
    monkeypatch.setattr(resume.logger, "warning", lines.append)
    assert resume.newest_whole([tmp_path / name for name in models], 0, 1, lambda value: [value]) == newest
    assert len(lines) == len(models) - 1 and all("_critic/global_step2" in line for line in lines)


def upstream_s(folder):
    """A checkpoint as OpenRLHF writes it."""
    write(folder, "global_step2")
    (folder / "global_step2" / folders.COMPLETE).unlink()


def flipped(folder):
    write(folder, "global_step2")
    (folder / "global_step2" / "model.pt").write_bytes(bytes(9) + b"\x01")


@pytest.mark.parametrize("made", [upstream_s, flipped])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_resume_does_not_start_afresh_beside_checkpoints_that_it_cannot_load(tmp_path, made, rank):
    """Every rank ends, and the files stay, also when a fresh run saves beside them."""
    folder = tmp_path / "_actor"
    made(folder)
    of_first = []

    def gathered(value):
        if rank == 0:
            of_first.append(value)
            return [value]
        return [of_first.pop(0)]

    with pytest.raises(RefusedError, match=r"no checkpoint can be resumed from: .*global_step2: .*; move them away"):
        resume.newest_whole([folder], 0, 1, lambda value: [value])
    if rank:  # it hears the first rank's
        pairs = [("global_step2", [[], []], ""), [f"{folder} changed"]] if made is flipped else []
        of_first += [*pairs, (None, [[], []], "no checkpoint can be resumed from: global_step2: it; move them away")]
        with pytest.raises(RefusedError):
            resume.newest_whole([folder], 1, 2, gathered)
    write(folder, "global_step3"), write(folder, "global_step4")
    deleted = folders.prune(folder, max_num=1, max_gb=1000)
    assert ("global_step2" in deleted) == (made is flipped), "whose list of files says that it is this run's"


def test_what_a_killed_first_save_left_does_not_keep_a_run_from_starting(tmp_path):
    write(tmp_path / "_actor", "global_step1", commit=False)
    assert resume.newest_whole([tmp_path / "_actor"], 0, 1, lambda value: [value]) is None
    assert resume.newest_whole([tmp_path / "nowhere"], 0, 1, lambda value: [value]) is None


@pytest.mark.parametrize("out", ["global_step9", "global_step2/model.pt", "global_step2/deep"])
def test_nothing_outside_of_the_folder_is_loaded(tmp_path, out):
    folder = tmp_path / "_actor"
    for home, steps in ((folder, (1, 2)), (tmp_path / "elsewhere", (9,))):
        for step in steps:
            write(home, f"global_step{step}")
    link = folder / out
    target = tmp_path / "elsewhere" / "global_step9" / out.partition("/")[2]
    if link.exists():
        link.rename(tmp_path / "aside")
    link.symlink_to(target)
    tag, skipped = folders.find([folder])
    assert tag == ("global_step2" if out == "global_step9" else "global_step1")
    assert len(skipped) == 1 and f"{out} leads out of {folder}" in skipped[0]


def test_what_names_a_checkpoint_names_none_elsewhere(tmp_path):
    folder, elsewhere = tmp_path / "_actor", tmp_path / "x"
    write(folder, "global_step1"), write(tmp_path, "x")
    (folder / "out").symlink_to(elsewhere)
    assert folders.named_in(folder, "latest") == "global_step1"
    assert folders.named_in(folder, "latest_universal") is None
    for name in ("../x", str(elsewhere), "out", "..", "global_step1/../../x", ""):
        (folder / "latest").write_text(name)
        with pytest.raises(ValueError, match="must name a checkpoint of that folder"):
            folders.named_in(folder, "latest")


def test_the_same_step_saved_again_replaces_the_old_one(tmp_path):
    write(tmp_path, "global_step1", size=10)
    write(tmp_path, "global_step1", size=20)
    assert folders.flaw(tmp_path / "global_step1") == ""
    assert (tmp_path / "global_step1" / "model.pt").stat().st_size == 20
    assert not list(tmp_path.glob(f"*{folders.PARTIAL}"))


class Killed(Exception):
    pass


def test_a_kill_at_any_moment_of_a_commit_leaves_one_to_resume_from(tmp_path, monkeypatch):
    """Any file system call may be the last; `latest` never names a missing checkpoint."""
    calls = ("os.replace", "os.fsync", "shutil.rmtree", "pathlib.Path.rename", "pathlib.Path.write_text")
    for at in range(12):
        folder = tmp_path / str(at)
        write(folder, "global_step1")
        write(folder, "global_step2", commit=False)
        left, found = [at], digests_of(folder / f"global_step2{folders.PARTIAL}")

        def counted(real, left=left):
            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in calls:
                owner = {"os": folders.os, "shutil": folders.shutil}.get(name.split(".")[0], folders.Path)
                patch.setattr(owner, name.rpartition(".")[2], counted(getattr(owner, name.rpartition(".")[2])))
            try:
                folders.commit(folder, "global_step2", found)
                folders.prune(folder, 1, float("inf"))
                done = True
            except Killed:
                done = False
        tag, _ = folders.find([folder])
        assert tag in ("global_step1", "global_step2")
        assert folders.flaw(folder / (folder / folders.LATEST).read_text()) == ""
    assert done and tag == "global_step2", "the last round must have run through, or this shows little"


def test_pruning_keeps_the_newest_the_best_and_what_latest_names(tmp_path):
    for step, metric in ((1, 0.9), (2, None), (3, 0.1), (4, 0.5)):
        write(tmp_path, f"global_step{step}", metric=metric)
    write(tmp_path, "best_global_step1", latest=False)
    write(tmp_path, "global_step5", commit=False)
    # no metric first, then the worst
    assert folders.prune(tmp_path, 2, float("inf")) == [*("global_step5.partial", "global_step2", "global_step3")]
    assert sorted(folders.names(tmp_path)) == ["best_global_step1", "global_step1", "global_step4"]
    assert folders.prune(tmp_path, 1, 0.0) == ["global_step1"], "what latest names stays, however large"


def test_models_beside_checkpoints_go_with_them(tmp_path):
    for step in (1, 2, 3):
        (tmp_path / f"global_step{step}_hf").mkdir()
    (tmp_path / "best_global_step1_hf").mkdir()
    (tmp_path / "global_step9_hf.partial").mkdir()
    folders.prune_hf(tmp_path, ["global_step2", "global_step3"], None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("best_global_step1_hf", "global_step2_hf", "global_step3_hf")
    ]
    folders.prune_hf(tmp_path, [], 1)
    folders.prune_best(tmp_path, "best_global_step7")
    assert [path.name for path in tmp_path.iterdir()] == ["global_step3_hf"]


@pytest.mark.parametrize("content", [b"", b"\xff\xff", None])
def test_pruning_keeps_the_newest_where_latest_cannot_be_read(tmp_path, content):
    for step, metric in ((1, 0.9), (2, None)):
        write(tmp_path, f"global_step{step}", metric=metric)
    (tmp_path / folders.LATEST).unlink()
    if content is not None:
        (tmp_path / folders.LATEST).write_bytes(content)
    assert folders.prune(tmp_path, 1, float("inf")) == ["global_step1"]


def test_a_checkpoint_of_which_a_part_was_refused_goes_and_latest_names_the_one_before(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, f"global_step{step}")
    write(tmp_path, "best_global_step2", latest=False)
    for tag, left in (
        ("global_step3", "global_step2"),
        ("global_step1", "global_step2"),
        ("global_step9", "global_step2"),
    ):
        folders.discard(tmp_path, tag)
        assert not (tmp_path / tag).exists() and (tmp_path / folders.LATEST).read_text() == left
    folders.discard(tmp_path, "global_step2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best_global_step2"]
    folders.discard(tmp_path / "no critic", "global_step2")


def ckpt_flags(path, save_steps=2, load_enable=False):
    return SimpleNamespace(path=str(path), save_steps=save_steps, load_enable=load_enable)


def test_a_folder_in_which_another_run_finished_meanwhile_is_not_ours(tmp_path):
    """A second start that waited for GPUs gets the lock once the first run has ended."""
    write(tmp_path / folders.ACTOR, "global_step8")
    with pytest.raises(folders.NotOursError, match=r"has checkpoints of another run \(global_step8\); use --ckpt.load"):
        folders.lock_own(ckpt_flags(tmp_path))
    for flags in (ckpt_flags(tmp_path, load_enable=True), ckpt_flags(tmp_path, save_steps=-1)):
        folders.lock_own(flags).close()


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOLCK, "has no locks .*flock"), (errno.ENOSYS, "has no locks"), (errno.ENOSPC, "cannot be written to")],
)
def test_a_folder_that_cannot_be_locked_says_why(tmp_path, monkeypatch, number, said):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(resources.fcntl, "flock", refuse)
    with pytest.raises(folders.NotOursError, match=said):
        folders.lock_own(ckpt_flags(tmp_path))


def test_a_folder_that_another_run_has_locked_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "locked", lambda file, patience: False)
    with pytest.raises(folders.NotOursError, match=r"another run writes to --ckpt\.path"):
        folders.lock_own(ckpt_flags(tmp_path))


def test_a_removed_folder_is_locked_again_unless_another_run_has_it(tmp_path):
    ours = tmp_path / "ckpt"
    lock = folders.lock_own(ckpt_flags(ours))
    assert folders.lock_again(ours, lock) is lock
    shutil.rmtree(ours)
    lock = folders.lock_again(ours, lock)
    write(ours / folders.ACTOR, "global_step2")
    assert folders.lock_again(ours, lock) is lock
    shutil.rmtree(ours)
    others = folders.lock_own(ckpt_flags(ours))
    with pytest.raises(folders.NotOursError, match=r"another run writes to --ckpt\.path"):
        folders.lock_again(ours, lock)
    write(ours / folders.ACTOR, "global_step4")
    others.close()
    with pytest.raises(folders.NotOursError, match=r"was removed, and has checkpoints of another run \(global_step4\)"):
        folders.lock_again(ours, lock)
