"""Runs whose engines sample from another policy end with the cause, other runs do not; in a world of bigram tables."""

import logging
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.train.carriers import ENGINE, OLDER
from openrlhf_shear.train.sampling.engine_gap import STEPS, GapWatch, measure, probe_of
from openrlhf_shear.train.screen.outcome import ENGINE_GAP, EngineGapError

WORDS, ROLLOUTS, PROMPT, TOKENS = 12, 6, 2, 30
ROUNDING = 0.003  # nats a token


def log_probs(table, tokens, temperature=1.0) -> torch.Tensor:
    """Of tokens (..., T) but the first, each after the one before it: (..., T - 1)."""
    rows = (table / temperature).log_softmax(-1)[tokens[..., :-1]]
    return rows.gather(-1, tokens[..., 1:, None])[..., 0]


class World:
    """A policy that is a table of logits (words, words), and two engines, each with its own table.

    Attributes:
        sends: engine and step -> whether the engine gets the policy's weights after it.
        drifts: nats by which engine 1's logits are off, anew at each step, for a cause that no score can show.
    """

    def __init__(self, sends=lambda engine, step: True, speed=0.7, drifts=0.0, temperature=1.0, lora=0, **options):
        self.random, self.step, self.asked = torch.Generator().manual_seed(0), 0, []
        self.base = self.normal(WORDS, WORDS)
        self.policy, self.engines = self.base, [self.base, self.base]
        self.sends, self.speed, self.drifts, self.temperature = sends, speed, drifts, temperature
        self.older = False
        self.watch = GapWatch(
            SimpleNamespace(
                train=SimpleNamespace(async_enable=options.get("asynchronous", False)),
                vllm=SimpleNamespace(max_gap=options.get("max_gap", 0.3)),
                ds=SimpleNamespace(lora=SimpleNamespace(rank=lora)),
                rollout=SimpleNamespace(temperature=1.0, top_p=1.0),
                data=SimpleNamespace(max_len=64),
            ),
            engines=self,
        )

    def normal(self, *shape):
        return torch.randn(shape, generator=self.random)

    def call(self, method, *given):
        """As `Engines.call`."""
        self.asked.append(method)
        return [log_probs(table, torch.tensor(*given)).tolist() for table in self.engines]

    def score(self, token_ids):
        return log_probs(self.policy, torch.tensor(token_ids))

    def gap_without_adapters(self, experiences):
        return measure(self._with_policy(experiences, self.base))

    def _with_policy(self, experiences, table):
        return [
            Experience(
                sequences=sample.sequences,
                action_mask=sample.action_mask,
                rollout_log_probs=sample.rollout_log_probs,
                action_log_probs=log_probs(table, sample.sequences) + ROUNDING * self.normal(*sample.action_mask.shape),
                info=sample.info,
            )
            for sample in experiences
        ]

    def sampled(self):
        """A micro-batch of each engine."""
        made = []
        for number, table in enumerate(self.engines):
            table = table + number * self.drifts * self.normal(WORDS, WORDS)
            tokens = torch.randint(WORDS, (ROLLOUTS, 1), generator=self.random)
            for _ in range(PROMPT + TOKENS - 1):
                odds = (table / self.temperature).softmax(-1)[tokens[:, -1]]
                tokens = torch.cat([tokens, torch.multinomial(odds, 1, generator=self.random)], 1)
            mask = torch.ones(ROLLOUTS, tokens.shape[1] - 1)
            mask[:, : PROMPT - 1] = 0
            given = log_probs(table, tokens, self.temperature)
            numbers = torch.full((ROLLOUTS,), float(OLDER if self.older else number))
            made.append(Experience(sequences=tokens, action_mask=mask, rollout_log_probs=given, info={ENGINE: numbers}))
        return self._with_policy(made, self.policy)

    def train(self, steps):
        """Steps of a run: sampled, judged, updated, sent."""
        for _ in range(steps):
            self.step += 1
            experiences = self.sampled()
            self.watch.sampled()
            self.watch.judge(measure(experiences), experiences, self)
            self.update()

    def update(self):
        self.policy = self.policy + self.speed * self.normal(WORDS, WORDS)
        self.engines = [
            self.policy if self.sends(engine, self.step) else table for engine, table in enumerate(self.engines)
        ]


def ended(world, steps=10) -> str:
    """Return the message of the run's end."""
    with pytest.raises(EngineGapError) as raised:
        world.train(steps)
    assert raised.value.code == ENGINE_GAP == 5
    return str(raised.value)


def test_engines_with_the_policy_s_weights_are_not_even_asked():
    world = World()
    world.train(20)
    assert world.asked == []


@pytest.mark.parametrize("which", ["1", "0, 1"])
def test_stale_weights_end_a_run_in_the_third_step_above_the_first_gap(which):
    world = World(sends=lambda engine, step: str(engine) not in which)
    said = ended(world)
    assert said.startswith(f"stale weights: engine {which} "), said
    assert said.endswith(" 3 steps in a row (--vllm.max_gap 0 goes on)")
    assert world.step == 1 + STEPS  # the first one was sampled with the weights of all


def test_an_engine_that_stays_behind_later_is_found_too():
    world = World(sends=lambda engine, step: engine == 0 or step < 6)
    assert ended(world, 20).startswith("stale weights: engine 1 ")
    assert world.step == 6 + STEPS


def test_a_resumed_run_whose_engines_have_the_base_model_s_weights_ends_as_soon():
    world = World(sends=lambda engine, step: False)
    world.policy = world.base + world.normal(WORDS, WORDS)
    assert ended(world).startswith("stale weights: engine 0, 1 ")
    assert world.step == STEPS


def test_the_base_model_under_lora_is_told_from_stale_weights():
    world = World(sends=lambda engine, step: False, lora=8)
    assert ended(world).startswith("base model under LoRA: ")
    late = World(sends=lambda engine, step: step < 6, lora=8)  # of an adapter that was merged once
    assert ended(late).startswith("stale weights: ")


def test_another_temperature_is_seen_from_the_first_step_on():
    world = World(temperature=0.5)
    assert ended(world).startswith("engines sample from another policy")
    assert world.step == STEPS


def test_without_a_cause_only_a_gap_above_the_limit_ends_the_run(caplog):
    world = World(drifts=0.15)
    with caplog.at_level(logging.WARNING):
        world.train(30)
    (said,) = [record.message for record in caplog.records]  # once, and again only at twice the gap
    assert said.startswith("engine 1 is 0.1") and "it is none of: stale weights, adapters not merged;" in said
    said = ended(World(drifts=0.15, max_gap=0.05))
    assert said.startswith("engines sample from another policy, and it is none of: stale weights")


@pytest.mark.parametrize("options", [{"max_gap": 0.0}, {"asynchronous": True}])
def test_with_a_limit_of_0_or_asynchronous_nothing_is_judged(options):
    world = World(sends=lambda engine, step: False, **options)
    world.train(20)
    assert world.asked == []


def test_a_gap_that_falls_back_does_not_end_the_run():
    world = World(sends=lambda engine, step: step % STEPS == 0)
    world.train(30)
    assert "score" in world.asked


def test_rollouts_of_older_weights_are_not_judged():
    world = World(sends=lambda engine, step: False)
    world.older = True
    world.train(20)
    assert world.asked == []


@pytest.mark.parametrize("speed", [0.0, 1e-9])
def test_a_policy_that_stands_still_makes_no_engine_stale(speed, caplog):
    World(drifts=0.15, speed=speed).train(20)
    assert "none of: stale weights" in caplog.text


def test_a_step_without_an_update_makes_no_engine_stale(caplog):
    """A step samples rollouts and judges none of them, e.g. because all are filtered."""
    world = World(drifts=0.15)
    world.train(2)
    for _ in range(10):
        world.watch.sampled()
        world.train(1)
    assert "none of: stale weights" in caplog.text


@pytest.mark.parametrize("length", [1, 5, 300])
def test_what_is_scored_fits_an_engine_and_is_never_short(length):
    mask = torch.zeros(2, 400)
    mask[1, 50 : 50 + length] = 1
    sequences = torch.arange(802).view(2, 401)
    row = sequences[1, 51 : 51 + length].tolist()
    for max_len, size in ((64, 63), (4096, 128)):
        probe = probe_of([Experience(sequences=sequences, action_mask=mask)], max_len)
        assert probe == [row[number % length] for number in range(size)]
