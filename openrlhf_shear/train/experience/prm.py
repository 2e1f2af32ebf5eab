"""Process reward model as an actor group: DeepSpeed inference, on the policy's GPUs or on separate ones."""

import math
import time
from collections.abc import Sequence

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.launcher import BaseModelActor
from openrlhf.utils.logging_utils import init_logger
from openrlhf.utils.utils import convert_to_torch_dtype
from tqdm import tqdm
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from openrlhf_shear.config import PrmConfig
from openrlhf_shear.credit.prm.model import collate, load_prm
from openrlhf_shear.credit.prm.steps import Conversation, StepSplitter, load_encoder
from openrlhf_shear.credit.rule import StepScores
from openrlhf_shear.train.experience.states import ShearActorGroup

logger = init_logger(__name__)


class PrmActor(BaseModelActor):
    """Rank of the process reward model: scores its share of the rollouts."""

    def init_model_from_pretrained(self, strategy, config: PrmConfig) -> None:
        # Batch sizes of updates, which this model never runs; DeepSpeed wants them to fit the number of ranks.
        strategy.train_batch_size, strategy.micro_train_batch_size = self._world_size, 1
        strategy.ring_attn_size = strategy.ds_tensor_parallel_size = 1  # ranks score different rollouts
        self._setup_distributed(strategy)
        self._config, self._sharded = config, strategy.args.ds.zero_stage == 3
        self._encoder = load_encoder(config)
        ds_config = strategy.get_ds_eval_config(offload=config.offload)
        # In effect while the object lives.
        shards_while_loading = HfDeepSpeedConfig(ds_config) if self._sharded else None
        dtype = convert_to_torch_dtype(strategy.args.ds.param_dtype)
        model = load_prm(config.model_name_or_path, dtype, strategy.args.ds.attn_implementation)
        del shards_while_loading
        model._offload = config.offload
        self._model = strategy.prepare(model)
        self._model.eval()

    @torch.no_grad()
    def score(self, problems: Sequence[str], steps: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the probability that each step of each rollout is right; rollouts that are too long get fewer scores.

        Under ZeRO-3 every rank must call this at the same time, even without rollouts.
        """
        conversations = [self._encoder.encode(problem, texts) for problem, texts in zip(problems, steps, strict=True)]
        scores: list[list[float]] = [[] for _ in conversations]
        for batch in tqdm(self._batches(conversations), desc="step scores", disable=not self.strategy.is_rank_0()):
            filler = Conversation(ids=(self._encoder.pad_id,), separators=(0,))
            shown = [conversations[i] for i in batch] or [filler]
            read = iter(self._model(**collate(shown, self._encoder.pad_id, torch.cuda.current_device())).tolist())
            for i in batch:
                scores[i] = [next(read) for _ in conversations[i].separators]
        return scores

    def _batches(self, conversations: list[Conversation]) -> list[list[int]]:
        """Cut conversations with steps into micro-batches, by length; add empty ones to match the other ranks."""
        size = self._config.micro_batch_size
        order = sorted(range(len(conversations)), key=lambda i: len(conversations[i].ids))
        order = [i for i in order if conversations[i].separators]
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if self._sharded:  # every forward pass is a collective
            most = torch.tensor([len(batches)], device=torch.cuda.current_device())
            torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
            batches += [[] for _ in range(int(most) - len(batches))]
        return batches


class PrmGroup(ShearActorGroup):
    """Actor group of the process reward model: shares rollouts out over its ranks."""

    def score(self, problems: Sequence[str], steps: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return `PrmActor.score` of all rollouts, shared out over the ranks by length."""
        order = sorted(range(len(steps)), key=lambda i: sum(map(len, steps[i])))
        shares = [order[rank :: len(self.actors)] for rank in range(len(self.actors))]
        refs = []
        for actor, share in zip(self.actors, shares, strict=True):
            refs.append(actor.score.remote([problems[i] for i in share], [steps[i] for i in share]))
        scores: dict[int, list[float]] = {}
        for share, of_rank in zip(shares, ray.get(refs), strict=True):
            scores.update(zip(share, of_rank, strict=True))
        return [scores[i] for i in range(len(steps))]


def start_prm(config: PrmConfig, strategy, policy: ShearActorGroup | None) -> tuple[PrmGroup, list[ray.ObjectRef]]:
    """Start the group; return it with references to wait for before its first use.

    The model loads while upstream's models load.

    Args:
        policy: the group whose GPUs it shares, as upstream's reward model does; None for separate GPUs.
    """
    shared = policy and policy.placement_group
    if shared is None:
        logger.info(f"the process reward model waits for {config.num_nodes} x {config.num_gpus_per_node} GPUs")
    actor_class = ray.remote(num_gpus=1)(PrmActor)
    group = PrmGroup(
        config.num_nodes, config.num_gpus_per_node, actor_class, shared, num_gpus_per_actor=0.2 if shared else 1
    )
    return group, group.async_init_model_from_pretrained(strategy, config)


class StepScorer:
    """Scorer of rollouts: cuts them into steps in this process, and has the group score the steps.

    After a call, `metrics` holds its `prm/...` metrics.
    """

    def __init__(
        self, group: PrmGroup, config: PrmConfig, tokenizer, problems: dict[str, str], colocated: bool = False
    ):
        """
        Args:
            tokenizer: the policy's.
            problems: the problem to show the model, by the prompt that the policy reads; others are shown as they are.
            colocated: whether the model shares its GPUs; if so, its cache is emptied after each call.
        """
        self._group, self._problems, self._colocated = group, problems, colocated
        self._splitter = StepSplitter(tokenizer, config.step_end)
        self.metrics: dict[str, float] = {}

    def __call__(self, samples: Sequence[Experience]) -> list[tuple[StepScores, ...]]:
        """Return a tuple of scores per micro-batch, in the order of its rows."""
        started = time.perf_counter()
        prompts = [prompt for batch in samples for prompt in batch.prompts]
        steps = [self._splitter.split(ids) for batch in samples for ids in response_ids(batch)]
        values = self._group.score([self._problems.get(p, p) for p in prompts], [step.texts for step in steps])
        if self._colocated:
            ray.get(self._group.async_run_method("empty_cache"))
        scores = [StepScores.of(step.ends, of_steps) for step, of_steps in zip(steps, values, strict=True)]
        broken = sum(not all(map(math.isfinite, of_steps)) for of_steps in values)
        if broken:
            logger.warning(
                f"the process reward model gave NaN or infinite scores for {broken} of {len(values)} rollouts, whose "
                "steps from there on count as not scored"
            )
        timed = {"prm/nonfinite_rollouts": float(broken), "prm/seconds": time.perf_counter() - started}
        # Of each rollout, steps without a score: NaN is one.
        left = [rollout.steps - len(of_steps) for rollout, of_steps in zip(scores, values, strict=True)]
        self.metrics = timed | {
            "prm/steps_per_rollout": sum(rollout.steps for rollout in scores) / len(scores),
            "prm/truncated_rollouts": float(sum(count > 0 for count in left)),
            "prm/truncated_steps": float(sum(left)),
        }
        if len(every := torch.cat([rollout.scores for rollout in scores])):
            self.metrics |= {"prm/score_mean": every.mean().item(), "prm/score_min": every.min().item()}
        rows = iter(scores)
        return [tuple(next(rows) for _ in batch.prompts) for batch in samples]


def response_ids(samples: Experience) -> list[list[int]]:
    """Return the response tokens of each row, without an environment's tokens between two turns."""
    tokens = samples.sequences[:, -samples.action_mask.shape[1] :]
    return [row[mask].tolist() for row, mask in zip(tokens, samples.action_mask.bool(), strict=True)]
