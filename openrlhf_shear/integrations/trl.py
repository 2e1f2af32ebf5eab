"""TRL's GRPOTrainer with any credit rule (docs/trl.md).

    trainer = ShearGRPOTrainer(..., credit="shear/window=50/stride=10")

A `CreditRule` acts once per generation batch. After TRL has computed its advantages (B,), the trainer's model makes one
more forward pass, without dropout, and the advantages become (B, A), which TRL's losses accept. An `UpdateRule` acts in
the loss, between the forward pass and the use of the advantages. Evaluation is TRL's.

Legend: B rows of this process' generation batch, A completion tokens (padded on the right), d hidden size.
"""

import torch

from openrlhf_shear.train import upstream

VERSION, OLDEST = "1.16.0", "1.12.0"
upstream.require("trl", VERSION, "trl", "use: pip install '.[trl]' (docs/trl.md)", OLDEST)

from accelerate.logging import get_logger
from accelerate.utils import gather_object, is_peft_model
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.grpo_trainer import GRPOTrainer

from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.credit.apply import token_advantages
from openrlhf_shear.credit.captured import LMHead, captured_backbone_output, evaluating, one_earlier, response_states
from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.groups import Outcomes, step_warnings
from openrlhf_shear.credit.registry import Rule
from openrlhf_shear.credit.rule import UpdateRule
from openrlhf_shear.credit.token_gradients import CreditProbe, equal_within_rows
from openrlhf_shear.integrations.rows import (
    credited_groups,
    failed_of,
    of_responses,
    rows_of_process,
    rule_of,
)

logger = get_logger(__name__)
# Fields of a generation batch that TRL's loss passes to the forward pass of models that see images.
IMAGES = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


class CreditOfRun(TrainerCallback, ExportableState):
    """Callback that keeps the name of the credit rule in checkpoints, and refuses a resume with another."""

    def __init__(self, credit: str):
        self.credit = credit

    def state(self) -> dict:
        return {"args": {"credit": self.credit}, "attributes": {}}

    def on_train_begin(self, args, state, control, **_) -> None:
        """Compare the rule with that of the checkpoint. Raises ValueError: they differ."""
        saved = state.stateful_callbacks.get(type(self).__name__, self.state())["args"]["credit"]
        if saved != self.credit:
            raise ValueError(
                f"credit: the checkpoint was trained with {saved}: got {self.credit}; use that, or the checkpoint as "
                f"the model of a new training"
            )


class ShearGRPOTrainer(GRPOTrainer):
    """TRL's trainer, with the advantages of a credit rule.

    Attributes:
        rule: the rule.
    """

    _tag_names = ("trl", "grpo", "shear")

    def __init__(
        self,
        *args,
        credit: str | Rule = "shear",
        correct_threshold: float = 0.5,
        correct_reward: str | None = None,
        **kwargs,
    ):
        """Make the trainer, with TRL's arguments and the following.

        Args:
            credit: a rule, or its name and knobs as for `--algo.advantage.estimator` (docs/credit-rules.md).
            correct_threshold: a rollout counts as correct if its sum of weighted rewards is at least this.
            correct_reward: the name of the reward function whose reward is compared with the threshold instead, where
                `reward_funcs` has several, e.g. for accuracy and for the format.

        Raises:
            ValueError: as TRL's; or no rule, knob or reward function has this name; or the rule needs an input that is
                missing here.
        """
        self.rule = rule_of(credit, "credit", "TRL")
        OutcomeConfig(correct_threshold)  # refuses one that is not finite
        self._correct_threshold, self._correct_reward = correct_threshold, correct_reward
        self._outcomes = Outcomes("correct_threshold", correct_threshold, "correct_reward")
        self._warned: set[str] = set()  # warnings that are given once
        self._scores: torch.Tensor | None = None  # scores of all processes' rows of the latest generation batch
        self._deciding: torch.Tensor | None = None  # likewise what is compared with the threshold
        self._micro_batch: dict | None = None  # whose loss is being computed
        remedy = 'importance_sampling_level="token", or another loss_type'
        self._probe = CreditProbe(self.rule.name, remedy, logger.info)
        super().__init__(*args, **kwargs)
        named = credit if isinstance(credit, str) else f"{type(credit).__module__}:{type(credit).__qualname__}"
        self.add_callback(CreditOfRun(named))
        if correct_reward is not None and correct_reward not in self.reward_func_names:
            known = ", ".join(self.reward_func_names)
            raise ValueError(f"correct_reward must name a reward function: got {correct_reward!r}; use one of {known}")
        if "ref_log_probs" in self.rule.needs and self.beta == 0:
            raise ValueError(
                f"credit: {self.rule.name} needs ref_log_probs, and TRL has a reference model only with beta above 0; "
                f"use e.g. beta=1e-3"
            )

    # ── A CreditRule acts once per generation batch ──

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Return TRL's rewards (rows of all processes, functions), and keep their weighted sums.

        The sum is NaN if every function gave None.
        """
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        scores = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._deciding = self._scores = scores.masked_fill(rewards.isnan().all(1), torch.nan)
        if self._correct_reward is not None:
            self._deciding = rewards[:, self.reward_func_names.index(self._correct_reward)]
        return rewards

    def _generate_and_score_completions(self, inputs):
        """Return TRL's batch; in training, the rule's advantages (B, A) replace TRL's (B,)."""
        batch = super()._generate_and_score_completions(inputs)
        if isinstance(self.rule, UpdateRule) or not self.model.training:
            return batch
        mask = _loss_mask(batch).bool()
        first = self.accelerator.process_index * len(mask)
        scores, deciding = (each[first : first + len(mask)].tolist() for each in (self._scores, self._deciding))
        prompts = [row // self.num_generations for row in range(first, first + len(mask))]
        rows = rows_of_process(first, prompts, scores, self._correct_threshold, mask, self._read(batch, mask), deciding)
        shared = {"lm_head": self._lm_head()} if "lm_head" in self.rule.needs else {}
        groups, metrics = credited_groups(self.rule, rows, self.state.global_step + 1, gather_object, shared)
        base = {i.rollout: value.expand(i.length).cpu() for i, value in zip(rows, batch["advantages"], strict=True)}
        tokens = token_advantages(self.rule, groups, base, failed_of(groups))
        batch["advantages"] = batch["advantages"][:, None].repeat(1, mask.shape[1])
        batch["advantages"][mask] = torch.cat([tokens[row.rollout].advantages for row in rows]).to(mask.device)
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        for line in filter(None, (*step_warnings(metrics, self._warned), self._outcomes.note(groups))):
            logger.warning(line)
        return batch

    @torch.no_grad()
    def _read(self, batch: dict, mask: torch.Tensor) -> list[dict]:
        """Return what the rule needs of the rows; make a forward pass of the policy if the rule needs it."""
        needs = self.rule.needs
        ids, attended = (
            torch.cat([batch[f"prompt_{what}"], batch[f"completion_{what}"]], 1) for what in ("ids", "mask")
        )
        log_probs = entropies = None
        masks = {"hidden_states": mask, "source_states": one_earlier(mask)}
        states: dict[str, list[torch.Tensor]] = {name: [] for name in masks.keys() & needs}
        if states or {"log_probs", "entropies"} & needs:
            policy = self._policy()
            others = {name: batch[name] for name in IMAGES if name in batch}
            checkpointing = self.args.gradient_checkpointing_kwargs
            with (
                disable_gradient_checkpointing(self.model, checkpointing),
                evaluating(self.model),
                captured_backbone_output(policy) as captured,
            ):
                log_probs, entropies, _ = self._get_per_token_logps_and_entropies(
                    self.model,
                    ids,
                    attended,
                    mask.shape[1],
                    batch_size=self.args.per_device_train_batch_size,
                    compute_entropy="entropies" in needs,
                    **others,
                )
            first = 0
            while captured:  # TRL passes a few rows at a time; their states are freed once the responses' are copied
                hidden = captured.pop(0)[:, -ids.shape[1] :]  # prompt learning has virtual tokens in front
                rows = slice(first, first := first + len(hidden))
                for name, found in states.items():
                    found += response_states(hidden, attended[rows], masks[name][rows], packed=False)
        values = {"log_probs": log_probs, "entropies": entropies, "ref_log_probs": batch.get("ref_per_token_logps")}
        rows_of_needs = {name: values[name] for name in values.keys() & needs}
        return of_responses(needs, mask, self._tokenizer, batch["completion_ids"], states, **rows_of_needs)

    def _policy(self) -> torch.nn.Module:
        policy = self.accelerator.unwrap_model(self.model)
        return policy.get_base_model() if is_peft_model(policy) else policy

    def _lm_head(self) -> LMHead:
        try:
            return LMHead.of(self._policy(), self.temperature)
        except ValueError as error:
            raise ValueError(f"credit: {self.rule.name} needs lm_head: {error}") from error

    # ── Every loss: a gradient for each token, and what an UpdateRule does ──

    def _compute_loss(self, model, inputs):
        """Return TRL's loss on the rule's advantages, with a gradient in proportion to them at every token.

        With importance_sampling_level="sequence" and advantages that differ within a rollout, this is GSPO-token
        (Zheng et al. 2025, section 4.3): the value is that of TRL's loss, whose own gradient gives all tokens of a
        rollout their mean advantage.

        Raises CreditLostError: at a run's first rollouts with token credit, if the loss does not carry it.
        """
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        level = self.importance_sampling_level
        self._micro_batch = dict(inputs)  # a copy, as further iterations use the batch again
        try:
            loss = super()._compute_loss(model, self._micro_batch)
            if not self._probe.done:
                log_probs, advantages = (self._micro_batch[name] for name in ("log_probs", "advantages"))
                self._probe.look(loss, log_probs, advantages, _loss_mask(inputs))
            return loss
        finally:
            self.importance_sampling_level, self._micro_batch = level, None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        """Return TRL's results; in a loss, also set what the loss reads next: advantages and old log-probs."""
        log_probs, entropies, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if (batch := self._micro_batch) is None:
            return log_probs, entropies, aux_loss
        mask, now = _loss_mask(batch), log_probs.detach()
        old = batch.get("old_per_token_logps")  # None where the loss takes the current policy's
        old = now if old is None else old
        if isinstance(self.rule, UpdateRule):
            base = batch["advantages"][:, None].expand(mask.shape)
            seen = entropies, log_probs, old
            batch["advantages"], metrics = checked_advantages(self.rule, base, mask.bool(), *seen)
            for name, value in metrics.items():
                self._metrics["train"][f"{self.rule.name}/{name}"].append(value)
        if self.importance_sampling_level == "sequence" and not equal_within_rows(batch["advantages"], mask.bool()):
            # At token level TRL's ratio is then the rollout's, with a gradient for its own token alone.
            log_ratio = ((now - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)
            batch["old_per_token_logps"], self.importance_sampling_level = now - log_ratio, "token"
            batch.setdefault("sampling_per_token_logps", old)  # which else are the old ones too
        batch["log_probs"] = log_probs
        return log_probs, entropies, aux_loss


def _loss_mask(batch: dict) -> torch.Tensor:
    """Return the mask (B, A) of the tokens that the policy wrote, over which the loss runs."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)
