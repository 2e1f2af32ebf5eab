"""Cluster for a diagnosis: vLLM engines sample, then the policy's hidden states are read on the same GPUs."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace

import ray
import torch
from ray.util.placement_group import PlacementGroup, placement_group
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit.heatmaps import shear_evidence
from openrlhf_shear.credit.rule import GroupEvidence
from openrlhf_shear.diagnosis.run import SampledGroup
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.sampler import EngineSettings
from openrlhf_shear.train import upstream
from openrlhf_shear.train.sampling.engine_sampler import EngineSampler, started_engines
from openrlhf_shear.train.start.launch import connect

AHEAD = 2  # groups per rank whose states wait in the object store


@dataclass
class Cluster:
    """GPUs of a diagnosis (logical on a CPU machine), for its engines and its policy."""

    engines: EngineSettings
    ranks: int = 1  # ranks of the policy whose hidden states are read
    zero_stage: int = 2  # 3 shards the policy's weights over its ranks
    micro_batch_size: int = 4  # rollouts per forward pass
    _bundles: PlacementGroup | None = None

    def sampler(self, plan: Plan) -> AbstractContextManager[EngineSampler]:
        """Start engines that answer a plan's questions, or continue its prefixes; the context stops them."""
        return started_engines(plan, self.engines, self._reserved)

    def measure(
        self,
        model: str,
        groups: Sequence[SampledGroup],
        config: ShearConfig,
        search: SearchConfig,
        heatmaps: int,
        controls: bool,
    ) -> Iterator[tuple[SampledGroup, list[torch.Tensor], GroupEvidence]]:
        """Yield each group with its token weights (T_i,) and its evidence, as groups finish.

        The policy's ranks read the states and hand out references; Ray tasks all over the cluster measure.

        Args:
            model: path or hub id of the policy.
            groups: the groups to measure.
            config: the settings of SHEAR.
            search: the settings of the search.
            heatmaps: how many groups get heatmaps, from the first on.
            controls: whether to measure the controls, as in `shear_evidence`.
        """
        policy = self._policy(model)
        size = max(1, AHEAD * self.ranks)
        numbers = {group.name: number for number, group in enumerate(groups)}
        running: dict[ray.ObjectRef, SampledGroup] = {}
        try:
            with tqdm(total=len(groups), desc="hidden states", unit="group", disable=not groups) as bar:
                for start in range(0, len(groups), size):
                    chunk = groups[start : start + size]
                    for group, states in zip(chunk, self._states(policy, chunk), strict=True):
                        shown = numbers[group.name] < heatmaps
                        running[_measured.remote(group.correct, config, search, shown, controls, *states)] = group
                    last = start + size >= len(groups)
                    while running and (last or len(running) > size):
                        (done,), _ = ray.wait(list(running), num_returns=1)
                        yield running.pop(done), *ray.get(done)
                        bar.update()
        finally:
            policy.stop()

    def _reserved(self) -> PlacementGroup:
        """Reserve a bundle per GPU, as OpenRLHF does; the first call creates the group."""
        if self._bundles is None:
            count = max(self.engines.gpus, self.ranks)
            connect(self.engines.device, count)
            self._bundles = placement_group([{"GPU": 1, "CPU": 1}] * count, strategy="PACK")
            ray.get(self._bundles.ready())
        return self._bundles

    def _policy(self, model: str):
        reserved = self._reserved()
        # Late: OpenRLHF's names are hooked by now, and a CPU machine has its stand-ins.
        from openrlhf.utils import get_strategy
        from openrlhf.utils.config import hierarchize

        from openrlhf_shear.train.experience.states import ShearActorGroup, StatesActor

        actor_class = ray.remote(num_gpus=1)(StatesActor)
        group = ShearActorGroup(1, self.ranks, actor_class, reserved, num_gpus_per_actor=0.2)
        line = ["--actor.model_name_or_path", model, "--ds.zero_stage", str(self.zero_stage)]
        strategy = get_strategy(hierarchize(upstream.parser().parse_args(line)))
        # DeepSpeed wants them to fit the number of ranks.
        strategy.train_batch_size, strategy.micro_train_batch_size = self.ranks, 1
        ray.get(group.async_init_model_from_pretrained(strategy, model))
        return group

    def _states(self, policy, groups: Sequence[SampledGroup]) -> list[list[ray.ObjectRef]]:
        """Return references to the hidden states of every rollout, by group."""
        rollouts = [(group.prompt, rollout.token_ids) for group in groups for rollout in group.rollouts]
        size = self.micro_batch_size
        batches = [padded(rollouts[start : start + size]) for start in range(0, len(rollouts), size)]
        # Every forward pass is a collective under ZeRO-3, so all ranks run equally many.
        batches += [batches[-1]] * (-len(batches) % self.ranks)
        refs = iter(policy.async_hidden_states(batches))
        return [[next(refs) for _ in group.rollouts] for group in groups]


@ray.remote(num_cpus=1)
def _measured(
    correct: Sequence[bool | None],
    config: ShearConfig,
    search: SearchConfig,
    heatmaps: bool,
    controls: bool,
    *states: torch.Tensor,
) -> tuple[list[torch.Tensor], GroupEvidence]:
    result, evidence = shear_evidence(states, correct, config, search, heatmaps, controls)
    return result.weights, evidence


def padded(rollouts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> SimpleNamespace:
    """Make a micro-batch as OpenRLHF does: padded on the right, with the action mask shifted by one.

    Example: a prompt of 2 tokens and a response of 3 -> action mask [0, 1, 1, 1], for sequence positions 1 to 4.

    Args:
        rollouts: (prompt, response) token ids.

    Returns:
        `sequences` and `attention_mask` (B, S), `action_mask` (B, S - 1), int64.
    """
    tokens = [torch.tensor([*prompt, *response]) for prompt, response in rollouts]
    actions = [torch.tensor([0] * len(prompt) + [1] * len(response)) for prompt, response in rollouts]
    sequences, attention, action = (
        pad_sequence(rows, batch_first=True) for rows in (tokens, [torch.ones_like(row) for row in tokens], actions)
    )
    return SimpleNamespace(sequences=sequences, attention_mask=attention, action_mask=action[:, 1:])
