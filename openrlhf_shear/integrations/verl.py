"""verl's PPO trainer with any credit rule of whole groups (docs/verl.md).

    VERL_USE_EXTERNAL_MODULES=openrlhf_shear.integrations.verl python -m verl.trainer.main_ppo \\
        trainer.v1.trainer_mode=shear algorithm.adv_estimator=shear \\
        '+algorithm.credit="shear/window=50/stride=10"' ...

This module registers a trainer, which uses `ShearWorker` as the actor's worker, and an advantage estimator. The worker
reads the hidden states in the forward pass for the old log-probs. It weighs the groups there, together with their rows
on other data-parallel ranks. It returns two numbers a token, by which the estimator multiplies verl's GRPO advantages.
In the first update it checks that the loss carries the credit of tokens (`credit.token_gradients`).

Legend: B rows, S tokens of a sequence, A padded response tokens, d hidden size; nested tensors (B, j) have no padding.
"""

from openrlhf_shear.train import upstream

VERSION, OLDEST = "0.9.1", "0.9.0"
upstream.require("verl", VERSION, "verl", "use: pip install '.[verl]' (docs/verl.md)", OLDEST)

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils import losses
from verl.workers.utils.padding import response_from_nested, response_to_nested

from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.credit.apply import token_advantages
from openrlhf_shear.credit.captured import captured_backbone_output
from openrlhf_shear.credit.groups import Outcomes, step_warnings
from openrlhf_shear.credit.rule import UpdateRule
from openrlhf_shear.credit.token_gradients import CreditProbe
from openrlhf_shear.integrations.rows import (
    credited_groups,
    failed_of,
    of_responses,
    rows_of_process,
    rule_of,
)

NAME = "shear"  # of the trainer and of the estimator
FIELDS = ("credit_positive", "credit_negative", "credit_metrics")  # which a worker adds to a row; the last is JSON
ROW, REQUEST = "credit_row", "credit"  # keys in a worker's batch: the number of a row; the request, a `RuleRequest`


@dataclass(frozen=True)
class RuleRequest:
    """Request for credit: what a worker must know of the step."""

    credit: str  # the rule, as in `config.names`
    threshold: float  # a rollout counts as correct if its score is at least this
    step: int  # of the training, from 1
    reward: str | None = (
        None  # the entry of reward_extra_info that is compared with the threshold in place of the score
    )


# ── On the actor ──


class ShearWorker(ActorRolloutRefWorker):
    """verl's worker, which returns the tokens' credit with the old log-probs if the batch asks for it."""

    outcomes: Outcomes | None = None

    @cached_property
    def probe(self) -> CreditProbe:
        """The check of this worker's first rollouts with token credit."""
        return CreditProbe("algorithm.credit", "actor.policy_loss.loss_mode=vanilla, or gspo", print)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Return verl's output; with `REQUEST` in the batch, add the fields `FIELDS`, nested (B, j) like the responses.

        Raises CreditRuleError: the rule failed.
        """
        request = tu.pop(data, key=REQUEST, default=None)
        if request is None:
            return super().compute_log_prob(data)
        data[ROW] = torch.arange(len(data))
        with captured_rows(self.actor.engine) as states:
            output = super().compute_log_prob(data)
        data.pop(ROW)
        self.outcomes = self.outcomes or Outcomes(
            "algorithm.correct_threshold", request.threshold, "algorithm.correct_reward"
        )
        return None if output is None else credited(request, data, output, states, self.actor, self.outcomes)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """Return verl's output.

        Raises CreditLostError: at a run's first rollouts with token credit, if the loss does not carry it.
        """
        if self.probe.done:
            return super().update_actor(data)
        with watched_losses(self.probe):
            return super().update_actor(data)


@contextmanager
def watched_losses(probe: CreditProbe) -> Iterator[None]:
    """Let a probe look at each policy loss that verl computes, of any `loss_mode`, while the context is open."""
    policy_loss_of = losses.get_policy_loss_fn

    def watched(loss_mode: str):
        policy_loss = policy_loss_of(loss_mode)

        def look(*, log_prob, advantages, response_mask, **more):
            results = policy_loss(log_prob=log_prob, advantages=advantages, response_mask=response_mask, **more)
            probe.look(results[0], log_prob, advantages, response_mask)
            return results

        return look

    losses.get_policy_loss_fn = watched
    try:
        yield
    finally:
        losses.get_policy_loss_fn = policy_loss_of


@contextmanager
def captured_rows(engine) -> Iterator[dict[int, torch.Tensor]]:
    """Make verl's FSDP engine keep the inputs of the LM head at the response tokens, while the context is open.

    Yields a dict that gets a tensor (T_i, d) for every row of a batch with `ROW`, by the row's number.
    """
    model = getattr(engine.module, "module", engine.module)  # FSDP1 wraps, FSDP2 does not
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    forward_step, states = engine.forward_step, {}

    def reading(micro_batch: TensorDict, loss_function, forward_only: bool):
        with captured_backbone_output(model) as captured:
            done = forward_step(micro_batch, loss_function=loss_function, forward_only=forward_only)
        (hidden,) = captured
        lengths = micro_batch["input_ids"].offsets().diff().tolist()
        if tu.get(micro_batch, "use_remove_padding", True):
            padding = hidden.shape[1] * engine.ulysses_sequence_parallel_size - sum(lengths)
            sequences = engine._gather_and_unpad_packed(hidden[0], padding).split(lengths)
        else:
            sequences = [row[:length] for row, length in zip(hidden, lengths, strict=True)]
        masks = micro_batch["response_mask"].unbind()
        for row, sequence, mask in zip(micro_batch[ROW].tolist(), sequences, masks, strict=True):
            states[row] = sequence[len(sequence) - len(mask) :][mask.to(sequence.device).bool()].clone()
        return done

    engine.forward_step = reading
    try:
        yield states
    finally:
        del engine.forward_step


def credited(
    request: RuleRequest,
    data: TensorDict,
    output: TensorDict,
    states: dict[int, torch.Tensor],
    actor,
    outcomes: Outcomes,
) -> TensorDict:
    """Add the credit of its rows to `output`; parts of their groups may lie on other ranks."""
    rule, masks = rule_of(request.credit, "algorithm.credit", "verl"), data["response_mask"]
    mask = masks.to_padded_tensor(0).bool()
    needs, engine = rule.needs, actor.engine
    padded = {
        name: response_from_nested(output[field], masks).to_padded_tensor(0)
        for name, field in (("log_probs", "log_probs"), ("entropies", "entropy"))
        if name in needs
    }
    tensors = of_responses(
        needs,
        mask,
        actor.model_config.tokenizer,
        data["responses"].to_padded_tensor(0),
        {"hidden_states": [states[row] for row in range(len(data))]} if "hidden_states" in needs else {},
        **padded,
    )
    gather = partial(_gather, engine.get_data_parallel_group())
    counts = gather([len(data)])
    first = sum(counts[: engine.get_data_parallel_rank()])
    scores = [row.sum().item() for row in data["rm_scores"].unbind()]
    deciding = None if request.reward is None else _extra_rewards(data, request.reward)
    rows = rows_of_process(first, tu.get(data, "uid"), scores, request.threshold, mask, tensors, deciding)
    rows = [row for row in rows if row.length]  # verl pads batches with rows without response tokens
    groups, metrics = credited_groups(rule, rows, request.step, gather)
    if (line := outcomes.note(groups)) and engine.get_data_parallel_rank() == 0:
        print(line)
    for field, sign in zip(FIELDS, (1.0, -1.0), strict=False):
        credit = torch.full(mask.shape, sign)
        base = {row.rollout: torch.full((row.length,), sign) for row in rows}
        for i, of_tokens in token_advantages(rule, groups, base, failed_of(groups)).items():
            credit[i - first, mask[i - first]] = of_tokens.advantages
        output[field] = response_to_nested(credit, masks)
    tu.assign_non_tensor_stack(output, FIELDS[2], [json.dumps(metrics)] * len(data))
    return output


def _extra_rewards(data: TensorDict, name: str) -> list[float]:
    """Return an entry of verl's `reward_extra_info` of each row. Raises ValueError: a row has none of this name."""
    infos = [fields.get("reward_extra_info", {}) for fields in tu.get(data, "extra_fields", [{}])]
    if len(infos) != len(data) or not all(name in info for info in infos):
        known = ", ".join(sorted({key for info in infos for key in info})) or "none"
        raise ValueError(f"algorithm.correct_reward={name}: reward_extra_info has no such entry; it has {known}")
    return [float(info[name]) for info in infos]


def _gather(group: torch.distributed.ProcessGroup | None, values: list) -> list:
    """Join the lists of all ranks of the group."""
    if group is None or group.size() == 1:
        return list(values)
    lists = [None] * group.size()
    torch.distributed.all_gather_object(lists, values, group)
    return [value for values_of_rank in lists for value in values_of_rank]


# ── In the driver ──


_credit: ContextVar[tuple[torch.Tensor, torch.Tensor] | None] = ContextVar("credit", default=None)


@register_adv_est(NAME)
def credited_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index, config=None, **_
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return verl's GRPO advantages (B, A) times the worker's weights, or the rule's own advantages.

    They are returned twice, as by verl's estimators without a critic.

    Raises RuntimeError: no worker has weighed the batch.
    """
    credit = _credit.get()
    if credit is None:
        raise RuntimeError(
            f"algorithm.adv_estimator={NAME} needs the worker that weighs groups; use trainer.v1.trainer_mode={NAME}"
        )
    positive, negative = (values.to(token_level_rewards.device) for values in credit)
    config = config if config is not None else {}
    if rule_of(config.get("credit", NAME), "algorithm.credit", "verl").makes_advantages:
        advantages = positive * response_mask
    else:
        normed = config.get("norm_adv_by_std_in_grpo", True)
        base, _ = compute_grpo_outcome_advantage(
            token_level_rewards, response_mask, index, norm_adv_by_std_in_grpo=normed
        )
        advantages = torch.where(base < 0, -base * negative, base * positive)
    return advantages, advantages


@contextmanager
def weighed(positive: torch.Tensor, negative: torch.Tensor) -> Iterator[None]:
    """Give the estimator, within the context, the token advantages for an advantage of 1 and of -1: (B, A) each."""
    token = _credit.set((positive, negative))
    try:
        yield
    finally:
        _credit.reset(token)


@register_trainer(NAME)
class ShearTrainer(PPOTrainerSync):
    """verl's synchronous trainer, whose actor weighs the groups."""

    def __init__(self, config):
        """Make the trainer. Raises ValueError: no rule or knob has this name, or the rule's needs are not met here."""
        self.read_credit(config)
        config.trainer.v1.trainer_mode = "sync"  # verl asks for the word, and else takes asynchronous ways
        super().__init__(config)

    def read_credit(self, config) -> None:
        """Read a rule's name as in docs/credit-rules.md, `algorithm.correct_threshold` and `algorithm.correct_reward`.

        Raises ValueError: as the constructor.
        """
        self._warned: set[str] = set()  # warnings that are given once
        self._credit = config.algorithm.get("credit", NAME)
        self._threshold = float(config.algorithm.get("correct_threshold", 0.5))
        self._reward = config.algorithm.get("correct_reward", None)
        refuse_unfit(config, self._credit)
        OutcomeConfig(self._threshold)  # refuses one that is not finite

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(ShearWorker)

    def _compute_old_log_prob(self, batch, metrics):
        batch.extra_info[REQUEST] = RuleRequest(self._credit, self._threshold, self.global_steps, self._reward)
        batch = super()._compute_old_log_prob(batch, metrics)
        batch.extra_info.pop(REQUEST, None)
        return batch

    def _compute_advantage(self, batch, metrics):
        """Compute verl's advantages, with the weights that the estimator needs."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
        shown = json.loads(tu.get(data, FIELDS[2])[0])
        metrics.update(shown)
        for line in step_warnings(shown, self._warned):
            print(line)
        with weighed(*(data[field].to_padded_tensor(0) for field in FIELDS[:2])):
            return super()._compute_advantage(batch, metrics)


def refuse_unfit(config, credit: str) -> None:
    """Raise ValueError if a configuration cannot be used with the rule."""
    rule = rule_of(credit, "algorithm.credit", "verl")
    strategy = config.actor_rollout_ref.actor.strategy
    correction = config.algorithm.get("rollout_correction", None) or {}
    loss_mode = (config.actor_rollout_ref.actor.get("policy_loss", None) or {}).get("loss_mode", "vanilla")
    for wrong, problem, remedy in (
        (isinstance(rule, UpdateRule), f"{rule.name} acts in the update, which this integration does not reach", "TRL"),
        (strategy not in ("fsdp", "fsdp2"), f"actor.strategy is {strategy}; hidden states are read from FSDP", "fsdp2"),
        (
            loss_mode == "geo_mean",
            "actor.policy_loss.loss_mode=geo_mean gives all tokens of a response their mean advantage",
            "loss_mode=gspo, whose ratio is also a response's",
        ),
        (
            correction.get("bypass_mode", False),
            "rollout_correction.bypass_mode leaves out the forward pass in which hidden states are read",
            "bypass_mode=False",
        ),
        (
            config.algorithm.adv_estimator != NAME,
            f"algorithm.adv_estimator is {config.algorithm.adv_estimator}, which ignores credit",
            f"algorithm.adv_estimator={NAME}",
        ),
        (
            getattr(rule, "makes_advantages", False) and config.algorithm.get("use_kl_in_reward", False),
            f"{rule.name} makes its own advantages, so algorithm.use_kl_in_reward has no effect",
            "actor.use_kl_loss",
        ),
    ):
        if wrong:
            raise ValueError(f"algorithm.credit={credit}: {problem}; use {remedy}")
