"""Rewards that raise, hang, die or return nonsense on some rollouts: the step stays whole and the ledger adds up."""

import collections
import itertools

# What happens to a rollout is decided by its own text, so that all kinds occur in every step.
REWARD = """
import os, time, zlib

def reward_func(queries, prompts, labels):
    kind = zlib.crc32(queries[0].encode()) % 8
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
    """As an engine's executor asks for them: many at once, from an event loop, with an endless one among them."""
    import asyncio
    import json

    from openrlhf_shear.fork.engine import RewardExecutor
    from openrlhf_shear.rewards.pool import RewardSettings

    tests = json.dumps({"inputs": ["3\n"], "outputs": ["6\n"]})
    samples = {
        "math": [("Q: \\boxed{42.0}", "42"), ("Q: \\boxed{41}", "42"), ("Q: no idea", "42"), ("Q: \\boxed{1}", "")],
        "code": [
            (f"Q: ```python\n{body}\n```", label)
            for body, label in [
                *(
                    ("print(2 * int(input()))", tests),
                    ("print(5)", tests),
                    ("while True: pass", tests),
                    ("", "no JSON"),
                ),
            ]
        ],
    }

    async def grade(reward):
        executor = RewardExecutor([reward], RewardSettings(reward, cores=2, timeout=5.0))
        parts = [executor._fetch_rewards_via_func([query], ["Q:"], [label]) for query, label in samples[reward]]
        return [part for (part,) in await asyncio.gather(*parts)]

    for reward in samples:
        outputs = asyncio.run(grade(reward))
        assert [output["rewards"] for output in outputs] == [1.0, 0.0, 0.0, None], outputs
        assert outputs[0]["extra_logs"]["reward_timeout"] == 0.0
        assert outputs[3]["extra_logs"]["reward_failure"].reason == "grader raised ValueError"
    assert outputs[2]["extra_logs"]["reward_timeout"] == 1.0


def test_rewards_of_servers_and_of_servers_that_are_gone(cluster):
    """Our own server's answers, one of them a failure, and nobody at the address: each is its own rollout's fate."""
    import asyncio

    from aiohttp import web

    from openrlhf_shear.fork.engine import RewardExecutor
    from openrlhf_shear.rewards.graded import Graded
    from openrlhf_shear.rewards.server import build_app

    class Pool:
        async def grade(self, query, prompt, label):
            return Graded(reason="timeout", detail="slow") if query == "hang" else Graded(0.5, 1.0)

    async def outputs():
        runner = web.AppRunner(build_app(Pool(), "a-token-of-16-letters"))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        served = RewardExecutor([f"http://shear:a-token-of-16-letters@127.0.0.1:{port}/get_reward"], None)
        answers = [await served._fetch_rewards_via_http([query], ["Q"], ["L"]) for query in ("good", "hang")]
        await runner.cleanup()
        return [*answers, await served._fetch_rewards_via_http(["good"], ["Q"], ["L"])]

    (good,), (failed,), (gone,) = asyncio.run(outputs())
    assert good == {"rewards": 0.5, "scores": 1.0, "extra_logs": {}}
    assert failed["rewards"] is None and failed["extra_logs"]["reward_failure"].reason == "timeout"
    assert gone["rewards"] is None and gone["extra_logs"]["reward_failure"].reason == "reward server failed"


def last(scalars, name):
    return scalars.get(f"train/ledger/{name}", [0.0])[-1]


def test_a_reward_that_fails_in_every_way_leaves_the_steps_whole(tmp_path, train):
    (tmp_path / "reward.py").write_text(REWARD)
    log, scalars = train("--reward.remote_url", tmp_path / "reward.py", "--reward.timeout", "2")

    assert len(scalars["train/ledger/dispatched"]) == 2 and last(scalars, "dispatched") == 2 * 8 * 4
    failed = {reason: last(scalars, f"failed_{reason}") for reason in REASONS.values()}
    assert all(count > 0 for count in failed.values()), failed
    assert sum(failed.values()) == last(scalars, "failed")
    assert last(scalars, "trained") == 64 - last(scalars, "failed") > 0
    assert last(scalars, "filtered") == last(scalars, "waiting") == 0
    # The half of the kinds that is graded has mean reward 1/2: placeholders are not in that mean.
    assert 0.2 < scalars["train/rollout/reward_mean"][-1] < 0.8
    assert all(value == value for name, values in scalars.items() for value in values), "a metric is NaN"
    shown = collections.Counter(reason for reason in REASONS.values() for _ in range(log.count(
        f"a reward failed, {reason.replace('_', ' ')}:")))  # fmt: skip
    assert shown == dict.fromkeys(REASONS.values(), 1), "every kind of failure is shown, once"


def test_dynamic_filtering_keeps_what_it_accepted_when_the_data_ends(policy, train):
    """12 prompts for batches of 8, most of them filtered (2 of 4 rollouts must be right): no accepted one is lost."""
    reward = policy.parents[1] / "rewards" / "arithmetic.py"
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
    assert all(step == 32 for step in steps[:-1]), "a short rest waits for the next episode"
