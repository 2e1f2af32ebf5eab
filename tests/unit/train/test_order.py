"""Random draws depend only on the seed and on the place in the run."""

from types import SimpleNamespace

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_shear.train.sampling.order import PromptOrder, optimizer_steps, seed_of


@given(size=st.integers(0, 50), seed=st.integers(0, 9), episode=st.integers(0, 3), consumed=st.integers(0, 60))
def test_each_prompt_once_in_an_order_that_a_resume_continues(size, seed, episode, consumed):
    order = PromptOrder(size, seed)
    order.start_at(episode, 0)
    whole = list(order)
    assert sorted(whole) == list(range(size)) and len(order) == size
    other = PromptOrder(size, seed)
    other.start_at(episode, consumed)
    assert list(other) == whole[consumed:]


def test_episodes_and_seeds_differ():
    orders = set()
    for seed in range(3):
        for episode in range(3):
            order = PromptOrder(20, seed)
            order.start_at(episode, 0)
            orders.add(tuple(order))
    assert len(orders) == 9


def test_seeds_are_63_bits_of_the_place():
    seeds = [seed_of(0, "episode", 0, prompt, sample) for prompt in range(50) for sample in range(8)]
    assert len(set(seeds)) == 400 and all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(1, 23) != seed_of(12, 3)
    # fixed: a run of an older version of the package resumes with the same draws
    assert seed_of(0, "order", 0) == 1864822792221289227


@pytest.mark.parametrize(*cases("train", "test_the_schedule_is_as_long_as_the_run"))
def test_the_schedule_is_as_long_as_the_run(size, batch, samples, each, epochs, wanted):
    """Counted by hand, for 3 episodes: an episode's last, smaller batch of prompts has fewer updates."""
    rollout = SimpleNamespace(batch_size=batch, n_samples_per_prompt=samples)
    train = SimpleNamespace(batch_size=each, num_episodes=3, max_epochs=epochs)
    assert optimizer_steps(SimpleNamespace(rollout=rollout, train=train), size) == wanted
