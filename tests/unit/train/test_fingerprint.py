"""A resume of another run is refused in a line before anything starts; harmless changes are accepted."""

import json
import os
import shutil
from pathlib import Path

import pytest
from cases import cases, table
from command_lines import refusal

from openrlhf_shear.cli.train_ppo_ray import main, parse
from openrlhf_shear.data.training_rows import CONTENTS, COUNT, of_digests, row_digest
from openrlhf_shear.line.run import ACCEPT_CHANGES
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR
from openrlhf_shear.train.checkpoints import fingerprint, folders

ROWS = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(6)]
ALLOWED = table("train", "test_what_may_change_changes")


def checkpoint_of(line: list[str], data: dict | None = None, tag: str = "global_step4") -> Path:
    """Write a checkpoint as the command's run does, with a stand-in for DeepSpeed's files."""
    folder = Path("ckpt", folders.ACTOR)
    aside = folder / f"{tag}{folders.PARTIAL}"
    aside.mkdir(parents=True)
    (aside / "mp_rank_00_model_states.pt").write_bytes(bytes(64))
    rows = of_digests([row_digest(row, "question", "answer") for row in ROWS])
    made = parse(line).fingerprint.with_data(data or rows)
    (aside / fingerprint.FILE).write_text(json.dumps(made.topics))
    folders.commit(folder, tag, folders.digests(folders.shares([aside], 1)[0]))
    return folder / tag


def resume(job, words: str = "") -> list[str]:
    return [*job(words), "--ckpt.path", "ckpt", "--ckpt.load_enable", "--dry_run"]


def write(name: str, rows: list[dict]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def line(job):
    """The builder of a command whose prompts exist, and the checkpoint of its run."""
    write("prompts.jsonl", ROWS)
    write("copied.jsonl", ROWS)
    Path("moved").mkdir()
    os.symlink("../model", "moved/model")
    shutil.copytree("tied", "changed/model")
    checkpoint_of(job())
    return job


def test_the_same_command_resumes(line, capsys):
    main(resume(line))
    told = capsys.readouterr()
    assert "dry run" in told.out and "[Info] global_step" not in told.err


@pytest.mark.parametrize(*cases("train", "test_a_difference_is_refused_in_a_line_and_taken_by_its_topic"))
def test_a_difference_is_refused_in_a_line_and_taken_by_its_topic(line, capsys, words, said, topic):
    said = said.replace("CONTENTS", CONTENTS).replace("COUNT", COUNT)
    told = refusal(capsys, resume(line, words))
    assert f"ckpt.path ckpt: global_step4 is of another run: {said}" in told
    if not topic:
        assert ACCEPT_CHANGES not in told and "or another --ckpt.path" in told
        return
    assert f"or --{ACCEPT_CHANGES} {topic} ({topic}: {fingerprint.MAY_CHANGE[topic]})" in told
    main([*resume(line, words), f"--{ACCEPT_CHANGES}", topic])
    assert f"taken as asked (--{ACCEPT_CHANGES}): {said}" in capsys.readouterr().err
    others = ",".join(fingerprint.MAY_CHANGE.keys() - {topic})
    assert said in refusal(capsys, [*resume(line, words), f"--{ACCEPT_CHANGES}", others])


def test_another_number_of_ranks_of_the_critic_is_refused(job, capsys):
    write("prompts.jsonl", ROWS)
    words = "AS gae --critic.num_gpus_per_node "
    checkpoint_of(job(words + "2"))
    shutil.copytree(Path("ckpt", folders.ACTOR), Path("ckpt", folders.CRITIC))
    told = refusal(capsys, resume(job, words + "4"))
    assert "ranks of the critic was 2, is 4" in told and ACCEPT_CHANGES not in told


def test_a_critic_of_another_shape_is_refused(job, capsys):
    write("prompts.jsonl", ROWS)
    config = json.loads((POLICY_DIR / "config.json").read_text()) | {"num_hidden_layers": 2}
    Path("critic").mkdir()
    Path("critic", "tokenizer.json").write_text("{}")
    Path("critic", "config.json").write_text(json.dumps(config))
    words = "AS gae --data.max_len 256 --critic.model_name_or_path critic"
    checkpoint_of(job(words))
    shutil.copytree(Path("ckpt", folders.ACTOR), Path("ckpt", folders.CRITIC))
    Path("critic", "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    told = refusal(capsys, resume(job, words))
    assert "the critic's number of layers was 2, is 3" in told and ACCEPT_CHANGES not in told


@pytest.mark.parametrize("words", ALLOWED)
def test_what_may_change_changes(line, capsys, words):
    main(resume(line, words))
    assert "[Info] global_step" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS[::-1], f"{CONTENTS} was "),
        (ROWS[:4], f"{COUNT} was 6, is 4;"),
        ([*ROWS[:5], ROWS[5] | {"answer": "7"}], f"{CONTENTS} was "),
        ([*ROWS[:5], ROWS[5] | {"question": "1 + 5?"}], f"{CONTENTS} was "),
    ],
)
def test_other_rows_are_refused(line, capsys, rows, said):
    write("prompts.jsonl", rows)
    assert said in refusal(capsys, resume(line))


def test_every_difference_is_named_once(line, capsys):
    write("prompts.jsonl", ROWS[:4])
    told = refusal(capsys, resume(line, "--train.seed 7 --ds.zero_stage 3"))
    assert f"{COUNT} was 6, is 4; train.seed was 42, is 7; ds.zero_stage was 2, is 3; use" in told
    assert CONTENTS not in told and "DeepSpeed's converter" in told


def test_another_shape_is_refused_whatever_is_taken(job, capsys):
    write("prompts.jsonl", ROWS)
    for name, layers in (("small", 2), ("large", 3)):
        Path(name).mkdir()
        config = json.loads((POLICY_DIR / "config.json").read_text()) | {"num_hidden_layers": layers}
        Path(name, "config.json").write_text(json.dumps(config))
        Path(name, "tokenizer.json").write_text("{}")
    words = "--data.max_len 256 --actor.model_name_or_path "
    checkpoint_of(job(words + "small"))
    told = refusal(capsys, [*resume(job, words + "large"), f"--{ACCEPT_CHANGES}", "model"])
    assert "the model's number of layers was 2, is 3" in told and "converter" not in told


def test_a_converted_checkpoint_may_have_another_layout(line, capsys):
    folder = Path("ckpt", folders.ACTOR)
    (folder / "global_step4_universal").mkdir()
    (folder / folders.UNIVERSAL).write_text("global_step4_universal")
    main(resume(line, "--ds.use_universal_ckpt --actor.num_gpus_per_node 4"))
    assert "train.seed was 42, is 7" in refusal(capsys, resume(line, "--ds.use_universal_ckpt --train.seed 7"))


def test_a_run_without_checkpoints_has_nothing_to_compare(job, capsys):
    main(resume(job, "--train.seed 7"))
    assert "[Info] global_step" not in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["flipped", "empty list"])
def test_the_fingerprint_is_that_of_the_checkpoint_that_will_be_loaded(line, capsys, broken):
    newer = checkpoint_of(line("--train.seed 7"), tag="global_step5")
    assert "train.seed was 7, is 42" in refusal(capsys, resume(line))
    if broken == "flipped":
        file = newer / fingerprint.FILE
        file.write_text(file.read_text().replace('"train.seed": 7', '"train.seed": 8'))
    else:
        (newer / folders.COMPLETE).write_text("[]")
    main(resume(line))


def test_what_is_taken_must_be_known(line, capsys):
    told = refusal(capsys, [*resume(line), f"--{ACCEPT_CHANGES}", "data,luck"])
    assert (
        f"{ACCEPT_CHANGES} must name what may differ: got 'luck'; use some of data,seed,rule,reward,batch,model" in told
    )


def test_what_is_taken_is_not_kept_for_the_next_start(line):
    from openrlhf_shear.cli.train_ppo_ray import read
    from openrlhf_shear.line import spelling

    verdict = read([*resume(line, "--train.seed 7"), f"--{ACCEPT_CHANGES}", "seed"])
    assert ACCEPT_CHANGES.partition(".")[2] not in spelling.write(Path("run"), verdict.run, verdict.parser).read_text()
