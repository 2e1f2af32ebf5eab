"""Rewards graded in other processes and on servers, a rollout that kills its grader, and dynamic filtering."""

import itertools

import pytest
from cases import table


def test_built_in_rewards_are_graded_in_another_process(cluster):
    """Many grades at once from an event loop, as an engine asks for them, one of them endless."""
    import asyncio
    import json

    from openrlhf_shear.rewards.pool import RewardSettings
    from openrlhf_shear.train.sampling.grading import Grading

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
        grading = Grading([reward], RewardSettings(reward, cores=2, timeout=5.0))
        return await asyncio.gather(*(grading.grade(query, "Q:", label) for query, label in samples[reward]))

    for reward in samples:
        verdicts = asyncio.run(grade(reward))
        assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.0, None], verdicts
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
    from openrlhf_shear.train.sampling.grading import Grading

    class Pool:
        async def grade(self, query, prompt, label):
            return Verdict(None, failure="timeout") if query == "hang" else of_numbers(0.5, 1.0)

    async def verdicts():
        runner = web.AppRunner(build_app(Pool(), "a-token-of-16-letters"))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        url = f"http://shear:a-token-of-16-letters@127.0.0.1:{port}/get_reward"
        served = Grading([url], RewardSettings(url, retries=1))  # the server closes the first connection
        answers = [await served.grade(query, "Q", "L") for query in ("good", "hang")]
        await runner.cleanup()
        return [*answers, await served.grade("good", "Q", "L")]

    good, failed, gone = asyncio.run(verdicts())
    assert good == of_numbers(0.5, 1.0)
    assert (failed.reward, failed.failure) == (None, "timeout")
    assert (gone.reward, gone.failure) == (None, "reward server refused")


KILLS = table("distributed", "KILLS")


def test_a_rollout_that_kills_the_pool_fails_alone(cluster, tmp_path):
    import asyncio

    from openrlhf_shear.rewards.pool import RewardSettings
    from openrlhf_shear.train.sampling.grading import Grading

    (tmp_path / "kills.py").write_text(KILLS)
    queries = ["kill" if i % 16 == 7 else str(i) for i in range(32)]

    async def grade():
        grading = Grading([], RewardSettings(str(tmp_path / "kills.py"), cores=4, timeout=30.0))
        return await asyncio.gather(*(grading.grade(query, "", "") for query in queries))

    rewards = [verdict.reward for verdict in asyncio.run(grade())]
    assert rewards == [None if query == "kill" else float(query) for query in queries]


def last(scalars, name):
    return scalars.get(f"train/ledger/{name}", [0.0])[-1]


@pytest.mark.long
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
