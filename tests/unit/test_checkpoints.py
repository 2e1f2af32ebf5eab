"""A checkpoint is whole or not there, wherever a run was killed; what is pruned is never what would be resumed from."""

import json
import shutil

import pytest

from openrlhf_shear.fork import checkpoints, contents


def write(folder, tag, size=10, metric=None, commit=True, latest=True):
    """A checkpoint as the strategy writes one."""
    partial = folder / f"{tag}{checkpoints.PARTIAL}"
    (partial / "deep").mkdir(parents=True)
    (partial / "model.pt").write_bytes(bytes(size))
    (partial / "deep" / "shard.pt").write_bytes(bytes(size))
    (partial / "metric.json").write_text(json.dumps({"metric_value": metric}))
    if commit:
        checkpoints.commit(folder, tag, digests_of(partial), latest)


def digests_of(partial):
    return contents.digests(file for share in contents.shares([partial], 2) for file in share)


def test_the_newest_complete_one_is_found_and_the_broken_ones_are_named(tmp_path):
    for step in (1, 2, 3, 10):
        write(tmp_path, f"global_step{step}")
    assert checkpoints.find([tmp_path]) == ("global_step10", [])
    (tmp_path / "global_step10" / "model.pt").write_bytes(bytes(5))
    (tmp_path / "global_step3" / "deep" / "shard.pt").unlink()
    tag, skipped = checkpoints.find([tmp_path])
    assert tag == "global_step2"
    assert [line.partition(": ")[2] for line in skipped] == ["model.pt has 5 bytes of 10", "deep/shard.pt is missing"]


def test_what_a_kill_leaves_is_passed_over(tmp_path):
    write(tmp_path, "global_step1")
    write(tmp_path, "global_step2", commit=False)
    tag, skipped = checkpoints.find([tmp_path])
    assert tag == "global_step1" and "never finished" in skipped[0]
    assert checkpoints.find([tmp_path / "nowhere"]) == (None, [])


def test_actor_and_critic_go_back_to_the_same_step(tmp_path):
    actor, critic = tmp_path / "_actor", tmp_path / "_critic"
    for step in (1, 2):
        write(actor, f"global_step{step}")
    write(critic, "global_step1")
    assert checkpoints.find([actor, critic])[0] == "global_step1"
    write(critic, "global_step2", commit=False)
    assert checkpoints.find([actor, critic])[0] == "global_step1"


def test_a_checkpoint_of_an_older_version_counts_if_its_last_file_is_there(tmp_path):
    for step in (1, 2):
        write(tmp_path, f"global_step{step}")
        (tmp_path / f"global_step{step}" / "complete.json").unlink()
    (tmp_path / "global_step2" / "metric.json").unlink()
    assert checkpoints.find([tmp_path])[0] == "global_step1"


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
    tag, skipped = checkpoints.find([folder])
    assert tag == ("global_step2" if out == "global_step9" else "global_step1")
    assert len(skipped) == 1 and f"{out} leads out of {folder}" in skipped[0]


def test_what_names_a_checkpoint_names_none_elsewhere(tmp_path):
    folder, elsewhere = tmp_path / "_actor", tmp_path / "x"
    write(folder, "global_step1"), write(tmp_path, "x")
    (folder / "out").symlink_to(elsewhere)
    assert checkpoints.named_in(folder, "latest") == "global_step1"
    assert checkpoints.named_in(folder, "latest_universal") is None
    for name in ("../x", str(elsewhere), "out", "..", "global_step1/../../x", ""):
        (folder / "latest").write_text(name)
        with pytest.raises(ValueError, match="must name a checkpoint of that folder"):
            checkpoints.named_in(folder, "latest")


def test_the_same_step_saved_again_replaces_the_old_one(tmp_path):
    write(tmp_path, "global_step1", size=10)
    write(tmp_path, "global_step1", size=20)
    assert checkpoints.flaw(tmp_path / "global_step1") == ""
    assert (tmp_path / "global_step1" / "model.pt").stat().st_size == 20
    assert not list(tmp_path.glob(f"*{checkpoints.PARTIAL}"))


class Killed(Exception):
    pass


def test_a_kill_at_any_moment_of_a_commit_leaves_one_to_resume_from(tmp_path, monkeypatch):
    """Each step of the file system may be the last; `latest` never names what is not there."""
    calls = ("os.replace", "os.fsync", "shutil.rmtree", "pathlib.Path.rename", "pathlib.Path.write_text")
    for at in range(12):
        folder = tmp_path / str(at)
        write(folder, "global_step1")
        write(folder, "global_step2", commit=False)
        left, found = [at], digests_of(folder / f"global_step2{checkpoints.PARTIAL}")

        def counted(real, left=left):
            def call(*args, **kwargs):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in calls:
                owner = {"os": checkpoints.os, "shutil": checkpoints.shutil}.get(name.split(".")[0], checkpoints.Path)
                patch.setattr(owner, name.rpartition(".")[2], counted(getattr(owner, name.rpartition(".")[2])))
            try:
                checkpoints.commit(folder, "global_step2", found)
                checkpoints.prune(folder, 1, float("inf"))
                done = True
            except Killed:
                done = False
        tag, _ = checkpoints.find([folder])
        assert tag in ("global_step1", "global_step2")
        assert checkpoints.flaw(folder / (folder / checkpoints.LATEST).read_text()) == ""
    assert done and tag == "global_step2", "the last round must have run through, or this shows little"


def test_pruning_keeps_the_newest_the_best_and_what_latest_names(tmp_path):
    for step, metric in ((1, 0.9), (2, None), (3, 0.1), (4, 0.5)):
        write(tmp_path, f"global_step{step}", metric=metric)
    write(tmp_path, "best_global_step1", latest=False)
    write(tmp_path, "global_step5", commit=False)
    # no metric first, then the worst
    assert checkpoints.prune(tmp_path, 2, float("inf")) == [*("global_step5.partial", "global_step2", "global_step3")]
    assert sorted(checkpoints.names(tmp_path)) == ["best_global_step1", "global_step1", "global_step4"]
    assert checkpoints.prune(tmp_path, 1, 0.0) == ["global_step1"], "what latest names stays, however large"


def test_models_beside_checkpoints_go_with_them(tmp_path):
    for step in (1, 2, 3):
        (tmp_path / f"global_step{step}_hf").mkdir()
    (tmp_path / "best_global_step1_hf").mkdir()
    (tmp_path / "global_step9_hf.partial").mkdir()
    checkpoints.prune_hf(tmp_path, ["global_step2", "global_step3"], None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("best_global_step1_hf", "global_step2_hf", "global_step3_hf")
    ]
    checkpoints.prune_hf(tmp_path, [], 1)
    checkpoints.prune_best(tmp_path, "best_global_step7")
    assert [path.name for path in tmp_path.iterdir()] == ["global_step3_hf"]


def test_a_disk_without_room_is_named(tmp_path):
    assert checkpoints.room(tmp_path / "not" / "there", 1.0) == ""
    free = shutil.disk_usage(tmp_path).free
    assert f"on the disk of {tmp_path}, which has" in checkpoints.room(tmp_path / "not", 2 * free + 1e9)


@pytest.mark.parametrize(("name", "step"), [("latest", -1), ("global_step7.old.partial", -1), ("global_step12", 12)])
def test_names(name, step):
    assert checkpoints.step_of(name) == step
