"""Evaluations during training: held-out prompts (`--eval.dataset`), and benchmarks (`--eval.suite`)."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger
from torch.utils.data import DataLoader

from openrlhf_shear.evaluation.by_set import Sampled, scores_by_set
from openrlhf_shear.train.run.suite import TrainingSuite
from openrlhf_shear.train.run.tracking import Tracking, passed_over
from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator, is_failed
from openrlhf_shear.train.screen.story import doing

logger = init_logger(__name__)


class Evaluation:
    """Evaluator of the engines' current weights, which logs what it finds."""

    def __init__(
        self,
        args: Namespace,
        tracking: Tracking,
        sampler: ShearSamplesGenerator,
        prompts: DataLoader | None,
        suite: TrainingSuite | None,
        generate_kwargs: dict,
    ):
        """
        Args:
            prompts: the held-out prompts, if any.
            suite: the benchmarks, if any.
            generate_kwargs: arguments of sampling in training.
        """
        self._every, self._tracking, self._sampler = args.eval.steps, tracking, sampler
        self._prompts, self._suite = prompts, suite
        changes = {name: getattr(args.eval, name) for name in ("temperature", "n_samples_per_prompt")}
        self._generate_kwargs = generate_kwargs | changes
        self.before_train = args.eval.before_train and self._exists

    @property
    def _exists(self) -> bool:
        return self._prompts is not None or self._suite is not None

    def is_due(self, step: int) -> bool:
        return self._exists and step > 0 and self._every > 0 and step % self._every == 0

    def run(self, step: int, undisturbed: AbstractContextManager[None], go_on: bool = False) -> dict[str, float]:
        """Evaluate the weights of a step, log the metrics and return them.

        Args:
            undisturbed: a context in which nothing else is sampled.
            go_on: continue an interrupted evaluation of the same weights.
        """
        metrics: dict[str, float] = {}
        with undisturbed:
            if self._prompts is not None:
                doing("evaluating")
                samples = self._sampler.generate_eval_samples(step, **self._generate_kwargs)
                sources = [source for of_batch, *_ in self._prompts for source in of_batch]
                metrics |= scores_of(samples, sources, self._generate_kwargs["n_samples_per_prompt"])
                self._tracking.log_eval(step, metrics)
                if failed := self._sampler.eval_failed:
                    logger.warning(f"evaluation at step {step}: {failed} rewards failed; these rollouts have no score")
            if self._suite is not None:
                with passed_over(f"the evaluation of step {step}"):
                    scores = self._suite.evaluate(step, go_on)
                    self._tracking.log_eval(step, scores)
                    metrics |= scores
        return metrics


def scores_of(samples: Sequence[Experience], sources: Sequence[str], size: int) -> dict[str, float]:
    """Return the metrics of evaluation rollouts.

    Args:
        samples: the rollouts in row order, `size` per row.
        sources: the set of each row.
    """
    sampled = [
        Sampled(
            reward=None if is_failed(sample) else sample.rewards.item(),
            length=int(sample.response_length),
            truncated=bool(sample.truncated),
        )
        for sample in samples
    ]
    return scores_by_set(sources, [sampled[start : start + size] for start in range(0, len(sampled), size)])
