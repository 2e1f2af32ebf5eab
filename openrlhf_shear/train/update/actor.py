"""Actors of policy and critic: credit where the hidden states are, watched updates, and the models' files."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import ray
import torch
import transformers
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.trainer.ray.ppo_critic import CriticModelActor
from openrlhf.utils.logging_utils import init_logger
from openrlhf.utils.utils import get_tokenizer

from openrlhf_shear.credit.apply import shaped_advantages
from openrlhf_shear.credit.captured import LMHead, captured_entropies, turn_numbers
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import CreditRule, GroupCredit, UpdateRule
from openrlhf_shear.kernels.backends import compile_ahead
from openrlhf_shear.rollouts.columns import token_texts
from openrlhf_shear.train import hooks
from openrlhf_shear.train.carriers import RunState, Save
from openrlhf_shear.train.checkpoints import folders
from openrlhf_shear.train.checkpoints.saveable import model_written, refuse_unsaveable, without_adapters
from openrlhf_shear.train.experience.states import STATES, ReadsStates
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.update import lora
from openrlhf_shear.train.update.arrival import Arrival
from openrlhf_shear.train.update.average import WeightAverage
from openrlhf_shear.train.update.losses import ChunkedActor, credited_loss
from openrlhf_shear.train.update.update import ActorSteps, CriticSteps, refuse_broken_weights
from openrlhf_shear.train.upstream import plain_class

logger = init_logger(__name__)


class ShearPolicyActor(ReadsStates, plain_class(PolicyModelActor)):
    """Policy actor of OpenRLHF whose forward pass can collect the inputs of a credit rule."""

    def init_model_from_pretrained(self, strategy, pretrain, *args, **kwargs):
        """Load the model as upstream does, check it, and restore the state that upstream's checkpoint lacks.

        Raises:
            NotFiniteError: a weight is not finite.
            RefusedError: the model has adapters that cannot be merged for vLLM, or files that transformers cannot save;
                or its LM head cannot work in chunks.
        """
        spec = strategy.args.credit
        self._rule = load_rule(spec) if spec is not None else None
        if self._rule is not None and STATES & self._rule.needs:
            compile_ahead(spec.search.backend, "cuda" if torch.cuda.is_available() else "cpu")
        chunk = strategy.args.actor.logits_chunk
        with hooks.ACTOR.held(partial(ChunkedActor, chunk)) if chunk else nullcontext():
            super().init_model_from_pretrained(strategy, pretrain, *args, **kwargs)
        if self.actor.is_vlm:  # upstream keeps the tokenizer alone, and saved models would lack the processor
            self.tokenizer = get_tokenizer(pretrain, None)
        lora.refuse_unmergeable(self.actor.model.module)
        refuse_unsaveable("--actor.model_name_or_path", self.actor.model.module, self.tokenizer)
        if self._rule is not None:
            self.trainer.actor_loss_fn = credited_loss(self.trainer.actor_loss_fn, self._rule.name)
        if isinstance(self._rule, CreditRule):
            shared = {"lm_head": self._lm_head()} if "lm_head" in self._rule.needs else {}
            self._collector = GroupCollector(self._rule, spec.search.max_waiting_bytes, self._rank, shared)
        self._trained = 0
        strategy.arrival = Arrival(self.actor.model, "policy")
        refuse_broken_weights(self.actor.model.module, "policy", "as it was loaded")
        if self.ema_model:
            strategy.average = WeightAverage(self.actor.model)
            if self.checkpoint_states:
                strategy.time_steps["ema"] = strategy.average.load(strategy.loaded)

    def forward(
        self,
        sequences,
        action_mask=None,
        attention_mask=None,
        packed_seq_lens=None,
        mm_train_inputs_list=None,
        credit: CreditRequest | None = None,
    ) -> torch.Tensor:
        """Return upstream's log-probs, (B, A) on the CPU; with `credit`, the group collector keeps the rule's inputs.

        Complete groups wait for `take_group_credits`.
        """
        inputs = (sequences, action_mask, attention_mask, packed_seq_lens, mm_train_inputs_list)
        if credit is None:
            return super().forward(*inputs)
        needs, tensors = self._rule.needs, {}
        mask = action_mask.bool().cpu()
        with captured_entropies(self.actor) if "entropies" in needs else nullcontext() as entropies:
            if wanted := STATES & needs:
                log_probs, states = self._forward_with_states(*inputs, wanted, credit.kept_by(self._rank))
                tensors |= states
            else:
                log_probs = super().forward(*inputs)
        if "log_probs" in needs:
            tensors["log_probs"] = _of_responses(log_probs.float(), mask)
        if "entropies" in needs:
            tensors["entropies"] = _of_responses(entropies[0].float(), mask)
        if {"token_ids", "token_texts"} & set(needs):
            tensors["token_ids"] = _of_responses(sequences, mask)
            if "token_texts" in needs:
                texts = (token_texts(self.tokenizer, row.tolist()) for row in tensors["token_ids"])
                tensors["token_texts"] = list(map(tuple, texts))
        if "turns" in needs:
            tensors["turns"] = [turn_numbers(row) for row in mask]
        self._collector.add(credit, mask.sum(1).tolist(), tensors)
        return log_probs

    def add_late(self, name: str, rows: dict[int, dict[int, torch.Tensor]]) -> None:
        """Take in a late need of this rank's groups (`GroupCollector.add_late`)."""
        self._collector.add_late(name, rows)

    def forward_without_adapters(self, sequences, action_mask, attention_mask) -> torch.Tensor:
        """Return the log-probs of the model without LoRA's adapters, (B, A) on the CPU."""
        with self.actor.model.module.disable_adapter():
            return super().forward(sequences, action_mask, attention_mask)

    def _lm_head(self) -> LMHead:
        """Return the LM head for the rule.

        Raises RefusedError: no distribution can be made from the head alone (`LMHead.of`).
        """
        try:
            model = without_adapters(self.actor.model.module)
            return LMHead.of(model, self.strategy.args.rollout.temperature)
        except ValueError as error:
            raise RefusedError(f"estimator {self._rule.name} makes logits from the LM head: {error}") from error

    def begin_update(self, seed: int) -> None:
        """Seed shuffling and dropout; the trainer calls this before it hands out the rollouts of an update.

        Rollouts of a step that trained the critic alone go: upstream keeps them for the policy's first update, with
        advantages of an untrained critic.
        """
        transformers.set_seed(seed % 2**32)
        self.trainer.replay_buffer.clear()

    def fit(self, *args, **kwargs) -> dict:
        """Run upstream's update, watched; return `WatchedSteps`' metrics and `update/...`.

        Raises:
            GradientLostError: the first optimizer step lacks the gradient of a micro-batch.
            NotFiniteError: a weight is not finite afterwards.
        """
        steps, shaped = ActorSteps(self.trainer, self.actor.model), nullcontext()
        if isinstance(self._rule, UpdateRule):  # it acts in the update
            parts = (self._rule, self.trainer.actor, self.trainer.actor_loss_fn)
            shaped = shaped_advantages(*parts, steps.rule_metrics)
        with steps.watching(), shaped:
            super().fit(*args, **kwargs)
        refuse_broken_weights(self.actor.model.module, "policy", "after an update")
        self._trained = steps.trained // self.trainer.max_epochs
        counts = {"optimizer_steps": steps.applied_steps, "skipped_steps": steps.skipped_steps, "moved": steps.moved}
        return steps.status() | {f"update/{name}": float(value) for name, value in counts.items()}

    def take_trained(self) -> int:
        """Return the number of rated rollouts in the last update's applied steps, on this rank, and reset it."""
        trained, self._trained = self._trained, 0
        return trained

    def broadcast_to_vllm(self) -> None:
        """Send the weights to vLLM as upstream does, with LoRA's adapters merged."""
        with lora.merged(self.actor.model.module):
            self._send_weights()

    def _send_weights(self) -> None:
        super().broadcast_to_vllm()

    # ── Files: checkpoints, which are complete or absent, and models ──

    def save_model(self) -> None:
        """Save the trained model as upstream does. Raises ModelNotWrittenError: the disk refuses it."""
        self._fill_average()
        with model_written(self.strategy.args.ckpt):
            super().save_model()

    def save_checkpoint(self, what: Save, client_states: RunState, metric_value=None, metric_key=None) -> None:
        """Save the parts of a checkpoint, each complete or not at all, with the moving average of the weights.

        Raises NotSavedError: the disk refuses one of them. The model is saved first.
        """
        ckpt = self.strategy.args.ckpt
        if what.model:
            self._fill_average()
            self.strategy.save_hf(self.ema_model or self.actor, self.tokenizer, Path(ckpt.path, f"{what.tag}_hf"))
        if what.checkpoint:
            options = (ckpt.max_num, ckpt.max_mem, client_states, not what.best, metric_value, metric_key)
            self.strategy.save_ckpt(
                self.actor.model, self._folder(folders.ACTOR), what.tag, *options, extra=self._save_average
            )
        torch.distributed.barrier()

    def discard_checkpoint(self, tag: str) -> None:
        """Delete what the parts of a checkpoint have written, of which the disk refused one."""
        for folder in (Path(self._folder(folders.ACTOR)), Path(self._folder(folders.CRITIC))):
            folders.discard(folder, tag)
        folders.discard(Path(self.strategy.args.ckpt.path), f"{tag}_hf")

    def prune_checkpoints(self, what: Save) -> None:
        """Delete old checkpoints by --ckpt.max_num and --ckpt.max_mem, once every model has saved `what`.

        If that is a best checkpoint, also delete the former best ones.
        """
        ckpt = self.strategy.args.ckpt
        both = [Path(self._folder(name)) for name in (folders.ACTOR, folders.CRITIC)]
        for folder in both:
            if not folder.is_dir():
                continue
            if what.best:
                folders.prune_best(folder, what.tag)
            for name in folders.prune(folder, ckpt.max_num, ckpt.max_mem):
                logger.info(f"checkpoint {folder / name} deleted")
        if what.best:
            folders.prune_best(Path(ckpt.path), what.tag)
        only = ckpt.max_num if ckpt.disable_ds else None
        folders.prune_hf(Path(ckpt.path), folders.names(both[0]), only)

    def _folder(self, model: str) -> str:
        return str(Path(self.strategy.args.ckpt.path, model))

    def _save_average(self, folder: Path) -> None:
        if self.ema_model:
            self.strategy.average.save(folder, self.strategy.time_steps["ema"])

    def _fill_average(self) -> None:
        """Give OpenRLHF's average model the average, as it is saved in place of the policy."""
        if self.ema_model:
            self.strategy.average.copy_to(self.ema_model.model.module)

    # ── Credit ──

    def waiting_groups(self) -> tuple[dict[int, int], float]:
        """Return the bytes of each group that waits on this rank, and their limit (`GroupCollector.waiting`)."""
        return self._collector.waiting()

    def lend_groups(self, numbers: list[int]) -> dict[int, ray.ObjectRef]:
        """Lend waiting groups to other ranks: return references, by group, to objects in this node's store."""
        return {number: ray.put(waiting) for number, waiting in self._collector.lend(numbers).items()}

    def work_on_groups(self, numbers: list[int], borrowed: dict[int, ray.ObjectRef]) -> None:
        """Weigh this rank's share of the step's groups (`GroupCollector.work`)."""
        device = next(self.actor.model.parameters()).device
        self._collector.work(numbers, {number: ray.get(ref) for number, ref in borrowed.items()}, device)

    def take_group_credits(self, lent: list[int] = ()) -> list[GroupCredit]:
        """Return the credit of every group that this rank has seen since the last call (`GroupCollector.take`).

        These are kilobytes; the hidden states stay here.

        Args:
            lent: groups that other ranks have weighed.
        """
        return self._collector.take(lent)


def _of_responses(values: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """Split the last A columns of values, on any device, into B tensors (T_i,) on the CPU; `mask` is (B, A) bool."""
    return [row[keep] for row, keep in zip(values[:, -mask.shape[1] :].cpu(), mask, strict=True)]


class ShearCriticActor(plain_class(CriticModelActor)):
    """Critic actor whose updates run under `CriticSteps`."""

    def begin_update(self, seed: int) -> None:
        """Seed the next update, as `ShearPolicyActor.begin_update` does."""
        transformers.set_seed(seed % 2**32)

    def init_model_from_pretrained(self, strategy, *args, **kwargs):
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        if self.tokenizer is not None:  # --critic.save_value_network
            refuse_unsaveable("--critic.model_name_or_path", self.critic.module, self.tokenizer)
        strategy.arrival = Arrival(self.critic, "critic")
        refuse_broken_weights(self.critic.module, "critic", "as it was loaded")

    def fit(self) -> dict:
        """Run upstream's update, watched; return its metrics.

        Raises:
            GradientLostError: the first optimizer step lacks the gradient of a micro-batch.
            NotFiniteError: a weight is not finite afterwards.
        """
        steps = CriticSteps(self.trainer, self.critic)
        with steps.watching():
            super().fit()
        refuse_broken_weights(self.critic.module, "critic", "after an update")
        return steps.status() | {"critic_skipped_steps": float(steps.skipped_steps)}

    def save_model(self) -> None:
        """Save the critic's model as upstream does. Raises ModelNotWrittenError: the disk refuses it."""
        with model_written(self.strategy.args.ckpt):
            super().save_model()

    def save_checkpoint(self, what: Save, metric_value=None, metric_key=None) -> None:
        """Save a checkpoint as `ShearPolicyActor.save_checkpoint` does. Raises NotSavedError: the disk refuses it."""
        ckpt = self.strategy.args.ckpt
        if what.checkpoint:
            options = (ckpt.max_num, ckpt.max_mem, None, not what.best, metric_value, metric_key)
            self.strategy.save_ckpt(self.critic, str(Path(ckpt.path, folders.CRITIC)), what.tag, *options)
