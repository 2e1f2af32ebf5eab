"""What a run tells: its events, on their way as lines, and their text."""

from argparse import Namespace
from dataclasses import fields

import pytest

from openrlhf_shear.train.screen import events, story
from openrlhf_shear.train.screen.outcome import RewardsLostError

ACCOUNTS = {"dispatched": 32, "trained": 20, "filtered": 4, "failed": {"raised KeyError": 8}, "waiting": 0}
VALUES = {int: 3, float: 0.5, str: "a\nb", bool: True, dict[str, float]: {"kl": 0.5}}


@pytest.fixture
def told(monkeypatch):
    """The events of this process."""
    emitted = []
    monkeypatch.setattr(story, "put", emitted.append)
    return emitted


@pytest.mark.parametrize("kind", events.KINDS.values())
def test_every_event_is_read_as_it_is_written(kind):
    named = {field.name: VALUES.get(field.type) for field in fields(kind)}
    event = kind(**named)
    line = events.line_of(event)
    assert events.split("before" + line) == ("before", event) and line.count("\n") == 1
    cut = line[: len(line) // 2]
    assert events.split(cut) == (cut, None) and events.split("a line") == ("a line", None)
    assert events.split(line.replace(kind.__name__, "Another"))[1] is None


def status(**other) -> dict:
    return {
        **{"rollout/reward_mean": 0.456, "shear/mixed_groups": 0.875, "rollout/response_length_mean": 80.4},
        **{"policy_loss": -0.00294, "shear/credit_share": 0.041, "timing/step_total": 4.0},
        **{"update/optimizer_steps": 2.0, "update/skipped_steps": 0.0, "reward_failed": 0.0} | other,
    }


def settings(tmp_path) -> Namespace:
    ckpt = Namespace(path=str(tmp_path / "ckpt"), output_dir="RUN/model")
    logger, train = Namespace(tensorboard_dir="RUN/tb"), Namespace(num_episodes=2)
    return Namespace(ckpt=ckpt, logger=logger, dump_rollouts_every=5, train=train)


def test_a_line_a_step_and_where_everything_is(tmp_path, told):
    run = story.Story(settings(tmp_path), 40)
    mine = {"my_rule/reward_mean": 7.0, "other/credit_share": 0.9, "my_rule/skipped_steps": 3.0, "x/policy_loss": 5.0}
    run.step(12, mine | status() | mine, "shear")
    run.step(13, status(**{"reward_failed": 0.25, "update/skipped_steps": 1.0, "timing/step_total": 6.0}), "shear")
    run.evaluated(13, {"x_pass1": 0.51234, "truncated_rate": 0.0})
    run.ended({"global_step": 13, "ledger": ACCOUNTS}, False, False)
    assert [line for event in told for line in event.lines()] == [
        "12/40  reward 0.46  mixed 0.88  len 80  loss -0.0029  credit 4%  4.0 s  ETA -",
        "13/40  reward 0.46  mixed 0.88  len 80  loss -0.0029  credit 4%  NO REWARD 25%  SKIPPED UPDATES 1  6.0 s  "
        "ETA 2:42",
        "evaluation at step 13: x_pass1 0.512, truncated_rate 0.000",
        "ended after step 13 of 40: 2 steps in this attempt with 4 optimizer steps, which changed NO WEIGHT",
        "rollouts  20 trained of 32 sampled (4 filtered, 8 raised KeyError)",
        "resume    no checkpoint was made (--ckpt.save_steps N makes one every N steps)",
        "curves    tensorboard --logdir RUN/tb",
        "report    python -m openrlhf_shear.cli.report RUN/tb --output DIR",
        f"page      shear-rollouts {tmp_path}/ckpt --output rollouts.html",
    ]
    told.clear()
    (tmp_path / "ckpt" / "_actor").mkdir(parents=True)
    run.ended({"global_step": 13}, True, True, "9 of 9 rollouts", "rewards differ")
    summary, saving = told
    assert summary.lines()[:4] == [
        "finished after step 13 of 40: 2 steps in this attempt with 4 optimizer steps",
        "learned   9 of 9 rollouts",
        "NO CREDIT rewards differ",
        f"resume    the same line with --ckpt.load_enable, from {tmp_path}/ckpt",
    ]
    assert saving.printed() == "[openrlhf_shear:now] saving the model\n", "the driver names it once it is saved"


def test_the_time_left_is_the_median_s_and_unknown_after_the_first_step(told, tmp_path):
    """A first step of minutes, then one that waited for a checkpoint: neither moves it."""
    run = story.Story(settings(tmp_path), 40)
    for step, seconds in enumerate([600.0, 10.0, 10.0, 90.0, 10.0], 1):
        run.step(step, status(**{"timing/step_total": seconds}))
    assert [event.seconds_left for event in told] == [None, 380.0, 370.0, 360.0, 350.0]


def test_a_suite_is_a_short_table_with_the_changes_since_the_last(told, tmp_path):
    run = story.Story(settings(tmp_path), 40)
    suite = [(f"benchmark-of-the-suite-{i}", 0.05 * i, 30) for i in range(9)]
    run.evaluated(10, {}, [*suite, ("lost", None, 500)])
    run.evaluated(20, {}, [(name, score + 0.01, n) for name, score, n in suite] + [("lost", 0.5, 500)])
    run.evaluated(30, {}, [])
    first, second = (event.lines() for event in told)
    assert first[0] == second[0].replace("20", "10") == "evaluation at step 10     score %  change  problems"
    assert first[-2:] == [
        "benchmark-of-the-suite-8     40.0       -        30",
        "lost                            -       -       500",
    ]
    assert second[-2:] == [
        "benchmark-of-the-suite-8     41.0    +1.0        30",
        "lost                         50.0       -       500",
    ]
    assert len(first) == 11 and max(map(len, first)) < 60


def test_a_resume_tells_its_place(told, tmp_path):
    run = story.Story(settings(tmp_path), 40)
    run.resumed({"global_step": 3, "episode": 0, "consumed": 48}, 640)
    run.resumed({"global_step": 8, "episode": 2, "consumed": 0}, 640)
    assert told[0] == events.Checkpoint(3)
    assert [event.lines() for event in told[1:]] == [
        ["resuming after step 3: episode 1, 48 of 640 prompts"],
        ["nothing left to train: the run finished at step 8, and its model goes to RUN/model; "
         "raise --train.num_episodes to continue"],
    ]  # fmt: skip


def test_an_attempt_tells_how_it_ends(told):
    with pytest.raises(SystemExit) as raised, story.ending():
        raise RewardsLostError("no rewards")
    with pytest.raises(OSError), story.ending():
        raise OSError("no such model\nlook at the hub")
    assert raised.value.code == 3
    assert told == [events.End("no rewards", 3), events.End("OSError: no such model")]


def test_a_task_that_failed_is_named_by_its_own_error():
    """Ray's other errors are long, and end with their cause."""
    from ray.exceptions import ActorDiedError, RayTaskError

    of_task = RayTaskError("fit", "Traceback ...", ValueError("the task's")).as_instanceof_cause()
    assert story.cause_of(of_task) == "ValueError: the task's"
    died = story.cause_of(ActorDiedError())
    assert died == str(ActorDiedError()).splitlines()[-1].strip() or died.endswith(str(ActorDiedError()))
