"""TRL's GRPOTrainer with any credit rule (docs/trl.md).

    trainer = ShearGRPOTrainer(..., credit="shear/window=50/stride=10")

A `CreditRule` acts once per generation batch. After TRL has computed its advantages (B,), the trainer's model makes one
more forward pass, without dropout, and the advantages become (B, A), which TRL's losses accept. An `UpdateRule` acts in
the loss, between the forward pass and the use of the advantages. Evaluation is TRL's.

Legend: B rows of this process' generation batch, A completion tokens (padded on the right), d hidden size.
"""

import torch

from openrlhf_shear.train import upstream

VERSION = "1.16.0"
upstream.require("trl", VERSION, "trl", "use: pip install '.[trl]' (docs/trl.md)")

from accelerate.logging import get_logger
from accelerate.utils import gather_object, is_peft_model
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.grpo_trainer import GRPOTrainer

from openrlhf_shear.credit.apply import token_advantages
from openrlhf_shear.credit.captured import captured_backbone_output, evaluating, one_earlier, response_states
from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.groups import step_warnings
from openrlhf_shear.credit.logits import LMHead
from openrlhf_shear.credit.registry import Rule
from openrlhf_shear.credit.rule import UpdateRule
from openrlhf_shear.integrations.rows import (
    credited_groups,
    failed_of,
    of_responses,
    outcomes,
    rows_of_process,
    rule_of,
)

logger = get_logger(__name__)
# Fields of a generation batch that TRL's loss passes to the forward pass of models that see images.
IMAGES = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


class ShearGRPOTrainer(GRPOTrainer):
    """TRL's trainer, with the advantages of a credit rule.

    Attributes:
        rule: the rule.
    """

    _tag_names = ("trl", "grpo", "shear")

    def __init__(self, *args, credit: str | Rule = "shear", correct_threshold: float = 0.5, **kwargs):
        """Make the trainer, with TRL's arguments and the following.

        Args:
            credit: a rule, or its name and knobs as for `--algo.advantage.estimator` (docs/credit-rules.md).
            correct_threshold: a rollout counts as correct if its sum of weighted rewards is at least this.

        Raises:
            ValueError: as TRL's; or no rule or knob has this name; or the rule needs an input that is missing here.
        """
        self.rule = rule_of(credit, "credit", "TRL")
        outcomes((), correct_threshold)
        self._correct_threshold = correct_threshold
        self._warned: set[str] = set()  # warnings that are given once
        self._scores: torch.Tensor | None = None  # scores of all processes' rows of the latest generation batch
        self._shaped: dict | None = None  # for an UpdateRule: the micro-batch whose loss is being computed
        super().__init__(*args, **kwargs)
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
        self._scores = scores.masked_fill(rewards.isnan().all(1), torch.nan)
        return rewards

    def _generate_and_score_completions(self, inputs):
        """Return TRL's batch; in training, the rule's advantages (B, A) replace TRL's (B,)."""
        batch = super()._generate_and_score_completions(inputs)
        if isinstance(self.rule, UpdateRule) or not self.model.training:
            return batch
        mask = _loss_mask(batch).bool()
        first = self.accelerator.process_index * len(mask)
        scores = self._scores[first : first + len(mask)].tolist()
        prompts = [row // self.num_generations for row in range(first, first + len(mask))]
        rows = rows_of_process(first, prompts, scores, self._correct_threshold, mask, self._read(batch, mask))
        shared = {"lm_head": self._lm_head()} if "lm_head" in self.rule.needs else {}
        groups, metrics = credited_groups(self.rule, rows, self.state.global_step + 1, gather_object, shared)
        base = {i.rollout: value.expand(i.length).cpu() for i, value in zip(rows, batch["advantages"], strict=True)}
        tokens = token_advantages(self.rule, groups, base, failed_of(groups))
        batch["advantages"] = batch["advantages"][:, None].repeat(1, mask.shape[1])
        batch["advantages"][mask] = torch.cat([tokens[row.rollout].advantages for row in rows]).to(mask.device)
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        for line in step_warnings(metrics, self._warned):
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

    # ── An UpdateRule acts in every loss ──

    def _compute_loss(self, model, inputs):
        """Return TRL's loss on the rule's advantages."""
        if not (isinstance(self.rule, UpdateRule) and self.model.training):
            return super()._compute_loss(model, inputs)
        self._shaped = dict(inputs)  # a copy, as further iterations use the batch again
        try:
            return super()._compute_loss(model, self._shaped)
        finally:
            self._shaped = None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        """Return TRL's results; in a loss, also replace the advantages by the rule's, before the loss reads them."""
        log_probs, entropies, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._shaped is not None:
            mask = _loss_mask(self._shaped).bool()
            base = self._shaped["advantages"][:, None].expand(mask.shape)
            old = self._shaped.get("old_per_token_logps")  # None where the loss takes the current policy's
            seen = entropies, log_probs, log_probs if old is None else old
            self._shaped["advantages"], metrics = checked_advantages(self.rule, base, mask, *seen)
            for name, value in metrics.items():
                self._metrics["train"][f"{self.rule.name}/{name}"].append(value)
        return log_probs, entropies, aux_loss


def _loss_mask(batch: dict) -> torch.Tensor:
    """Return the mask (B, A) of the tokens that the policy wrote, over which the loss runs."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)
