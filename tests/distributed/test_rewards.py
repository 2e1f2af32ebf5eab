"""Rewards that raise, hang, die or return nonsense on some rollouts: the step stays whole and the ledger adds up."""

import collections
import itertools
import math

import pytest

# A rollout's text decides its fate, so that every step has all kinds.
REWARD = """
import os, time, zlib

def reward_func(queries, prompts, labels):
    kind = zlib.crc32(queries[0].encode()) % 12
    if queries[0].endswith("I do not know."):  # the try before training
        kind = 4
    if kind == 0:
        raise KeyError("no such rollout")
    if kind == 1:
        time.sleep(3600)
    if kind == 2:
        return {"rewards": float("nan")}
    if kind == 3:
        os._exit(0)
    return {"rewards": float(kind % 2), "extra_logs": {"kind": float(kind)}}
"""
REASONS = {0: "raised_KeyError", 1: "timeout", 2: "not_finite", 3: "worker_died"}


def test_built_in_rewards_are_graded_in_another_process(cluster):
    """Many grades at once from an event loop, as an engine's executor asks for them, one of them endless."""
    import asyncio
    import json

    from openrlhf_shear.rewards.pool import RewardSettings
    from openrlhf_shear.train.sampling.engine import VERDICT, RewardExecutor

    tests = json.dumps({"inputs": ["3\n"], "outputs": ["6\n"]})
    samples = {
        "math": [("Q: \\boxed{42.0}", "42"), ("Q: \\boxed{41}", "42"), ("Q: no idea", "42"), ("Q: \\boxed{1}", "")],
        "code": [
            (f"Q: ```python\n{body}\n```", label)
            for body, label in (
                *(("print(2 * int(input()))", tests), ("print(5)", tests)),
                *(("while True: pass", tests), ("", "no JSON")),
            )
        ],
    }

    async def grade(reward):
        executor = RewardExecutor([reward], RewardSettings(reward, cores=2, timeout=5.0))
        parts = [executor._fetch_rewards_via_func([query], ["Q:"], [label]) for query, label in samples[reward]]
        return [part for (part,) in await asyncio.gather(*parts)]

    for reward in samples:
        outputs = asyncio.run(grade(reward))
        assert [output["rewards"] for output in outputs] == [1.0, 0.0, 0.0, None], outputs
        verdicts = [output["extra_logs"][VERDICT] for output in outputs]
        assert verdicts[0].extra_logs["reward_timeout"] == 0.0
        assert verdicts[3].why == "grader raised ValueError"
    assert verdicts[2].reason == "timeout" and verdicts[2].extra_logs["reward_timeout"] == 1.0


def test_rewards_of_servers_and_of_servers_that_are_gone(cluster):
    """Answers of our server, one of them a failure, and an address without a server: each affects one rollout alone."""
    import asyncio

    from aiohttp import web

    from openrlhf_shear.rewards.pool import RewardSettings
    from openrlhf_shear.rewards.server import build_app
    from openrlhf_shear.rewards.verdict import Verdict, of_numbers
    from openrlhf_shear.train.sampling.engine import VERDICT, RewardExecutor

    class Pool:
        async def grade(self, query, prompt, label):
            return Verdict(None, failure="timeout") if query == "hang" else of_numbers(0.5, 1.0)

    async def outputs():
        runner = web.AppRunner(build_app(Pool(), "a-token-of-16-letters"))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        url = f"http://shear:a-token-of-16-letters@127.0.0.1:{port}/get_reward"
        served = RewardExecutor([url], RewardSettings(url, retries=1))  # the server closes the first connection
        answers = [await served._fetch_rewards_via_http([query], ["Q"], ["L"]) for query in ("good", "hang")]
        await runner.cleanup()
        return [*answers, await served._fetch_rewards_via_http(["good"], ["Q"], ["L"])]

    (good,), (failed,), (gone,) = asyncio.run(outputs())
    assert good == {"rewards": 0.5, "scores": 1.0, "extra_logs": {VERDICT: of_numbers(0.5, 1.0)}}
    assert failed["rewards"] is None and failed["extra_logs"][VERDICT].failure == "timeout"
    assert gone["rewards"] is None and gone["extra_logs"][VERDICT].failure == "reward server refused"


KILLS = """
import os, signal, time

def reward_func(queries, prompts, labels):
    if queries[0].endswith("kill"):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    time.sleep(0.05)
    return {"rewards": float(queries[0])}
"""


def test_a_rollout_that_kills_the_pool_fails_alone(cluster, tmp_path):
    import asyncio

    from openrlhf_shear.rewards.pool import RewardSettings
    from openrlhf_shear.train.sampling.engine import RewardExecutor

    (tmp_path / "kills.py").write_text(KILLS)
    queries = ["kill" if i % 16 == 7 else str(i) for i in range(32)]

    async def grade():
        executor = RewardExecutor([], RewardSettings(str(tmp_path / "kills.py"), cores=4, timeout=30.0))
        return [
            part
            for (part,) in await asyncio.gather(*(executor._fetch_rewards_via_func([q], [""], [""]) for q in queries))
        ]

    rewards = [output["rewards"] for output in asyncio.run(grade())]
    assert rewards == [None if query == "kill" else float(query) for query in queries]


def last(scalars, name):
    return scalars.get(f"train/ledger/{name}", [0.0])[-1]


def test_a_reward_that_fails_in_every_way_leaves_the_steps_whole(tmp_path, train):
    (tmp_path / "reward.py").write_text(REWARD)
    words = ("--reward.remote_url", tmp_path / "reward.py", "--reward.timeout", "2")
    words += ("--credit.dump_rollouts_every", "2")
    words += ("--reward.cores", "4")  # so that it takes eight calls in a row without an answer to give the file up
    log, scalars = train(*words)

    assert "gradient check: policy, 2 of 2 micro-batches are in the first optimizer step" in log
    assert len(scalars["train/ledger/dispatched"]) == 2 and last(scalars, "dispatched") == 2 * 8 * 4
    failed = {reason: last(scalars, f"failed_{reason}") for reason in REASONS.values()}
    assert all(count > 0 for count in failed.values()), failed
    every = {name: values for name, values in scalars.items() if "/ledger/failed_" in name}
    assert sum(values[-1] for values in every.values()) == last(scalars, "failed")
    assert last(scalars, "trained") == 64 - last(scalars, "failed") > 0
    assert last(scalars, "filtered") == last(scalars, "waiting") == 0
    # The kinds that are graded have mean reward 1/2: placeholders are not in that mean.
    assert 0.2 < scalars["train/rollout/reward_mean"][-1] < 0.8
    assert all(value == value for name, values in scalars.items() for value in values), "a metric is NaN"
    shown = collections.Counter(reason for reason in REASONS.values() for _ in range(log.count(
        f"a reward failed, {reason.replace('_', ' ')}:")))  # fmt: skip
    assert shown == dict.fromkeys(REASONS.values(), 1), "every kind of failure is shown, once"
    assert [value > 0 for value in scalars["train/shear/dump_seconds"]] == [True, True]
    check_dump(tmp_path / "ckpt" / "rollouts", failed=last(scalars, "failed"))


def check_dump(folder, failed):
    """The rollouts of both steps as they were weighed and trained on: 8 prompts x 4, windows of 16 tokens every 4."""
    from openrlhf_shear.rollouts.record import read_rollouts

    assert sorted(path.name for path in folder.iterdir()) == ["step000001.parquet", "step000002.parquet"]
    steps = [read_rollouts(folder / f"step{step:06d}.parquet") for step in (1, 2)]
    assert [settings["step"] for _, settings in steps] == [1, 2]
    assert all(settings["rule"] == "shear" and settings["window"] == 16 for _, settings in steps)
    assert sum(row.correct is None for rows, _ in steps for row in rows) == failed
    for rows, _ in steps:
        assert [(row.group, row.sample) for row in rows] == [(str(g), s) for g in range(8) for s in range(4)]
        assert 0 < sum(row.first_error is None for row in rows) < 32, "the policy is right about half of the time"
        groups = [rows[start : start + 4] for start in range(0, 32, 4)]
        assert all(len({row.prompt for row in group}) == 1 for group in groups)
        for group in groups:
            for row in group:
                check_row(row, group)
    assert any(sample >= 0 for rows, _ in steps for row in rows for sample in row.nearest_sample), "a mixed group"


def check_row(row, group):
    opposing = [
        rollout.sample
        for rollout in group
        if None not in (rollout.correct, row.correct) and rollout.correct != row.correct
    ]
    assert len(row.tokens) == len(row.token_ids) == len(row.weights) == len(row.token_advantages)
    assert row.prompt.endswith("=") and all(len(token) == 1 for token in row.tokens[:-1]), "one character is one token"
    assert row.first_error is None or row.response[row.first_error] not in "~.,_"
    advantage = 0.0 if row.advantage is None else row.advantage
    assert (row.advantage is None) == (row.reward is None) == (row.correct is None)
    expected = [advantage * weight for weight in row.weights]
    assert row.token_advantages == pytest.approx(expected, rel=1e-6), "float32"
    assert set(row.nearest_sample) <= (set(opposing) if opposing and row.correct is not None else {-1})
    covering = [  # a token's weight is the largest distance of the spans that cover it
        max(d for start, d in zip(row.span_starts, row.span_distances, strict=True) if start <= t < start + 16)
        for t in range(len(row.tokens))
    ]
    assert row.weights == pytest.approx(covering if opposing else [1.0] * len(row.tokens), rel=1e-6)
    maps = {heatmap.other: heatmap.values for heatmap in row.heatmaps}
    measured = [rollout.sample for rollout in group if rollout.correct is not None and rollout.tokens]
    assert list(maps) == [j for j in measured if j > row.sample and row.correct is not None]
    for k, (j, span, distance) in enumerate(zip(row.nearest_sample, row.nearest_span, row.span_distances, strict=True)):
        if j == -1:
            assert span == -1 and distance == math.inf
            continue
        assert 0 <= span < len(group[j].span_starts)
        later = [group[sample] for sample in opposing if sample > row.sample]
        seen = min((pair for sample in later for pair in between(row, sample, k)), default=math.inf)
        assert seen >= distance - 1e-4, "nothing that a heatmap shows is nearer than the nearest"
        if j > row.sample and k in row.heatmap_spans and span in group[j].heatmap_spans:
            at = group[j].heatmap_spans.index(span)
            assert between(row, group[j], k)[at] == pytest.approx(distance, abs=1e-4)


def between(row, other, k):
    """The distances of span k to the shown spans of another rollout; none where span k is not shown."""
    (values,) = [heatmap.values for heatmap in row.heatmaps if heatmap.other == other.sample]
    width = len(other.heatmap_spans)
    at = row.heatmap_spans.index(k) if k in row.heatmap_spans else None
    return [math.inf] if at is None else values[at * width : (at + 1) * width]


def test_dynamic_filtering_trains_on_all_that_it_accepted(policy, train):
    """12 prompts for batches of 8, most of them filtered (2 of 4 rollouts must be right): no accepted one is lost."""
    reward = policy.parent / "arithmetic.py"
    _, scalars = train(
        *("--reward.remote_url", reward, "--algo.dynamic_filtering_enable"),
        *("--algo.dynamic_filtering_range", "0.3", "0.7"),
        *("--train.num_episodes", "2"),
        problems=12,
    )
    assert last(scalars, "dispatched") == 2 * 12 * 4
    assert last(scalars, "filtered") > 0 and last(scalars, "filtered") % 4 == 0
    accounted = sum(last(scalars, name) for name in ("trained", "filtered", "failed", "waiting"))
    assert accounted == last(scalars, "dispatched")
    assert last(scalars, "waiting") == 0 and last(scalars, "trained") > 0
    trained = [0.0, *scalars["train/ledger/trained"]]
    steps = [after - before for before, after in itertools.pairwise(trained)]
    assert all(step % 4 == 0 for step in steps) and min(steps) < 32, "a short rest is trained on in its episode"
