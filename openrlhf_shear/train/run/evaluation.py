"""Evaluations during training: held-out prompts (`--eval.dataset`), and benchmarks (`--eval.suite`)."""

import filecmp
import os
import shutil
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger
from torch.utils.data import DataLoader

from openrlhf_shear.evaluation.estimators import basis_of
from openrlhf_shear.evaluation.run import evaluate
from openrlhf_shear.evaluation.suite import SUITE_AVERAGE, suite_plan
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.sampling.store import Store
from openrlhf_shear.train.run.tracking import Tracking, passed_over
from openrlhf_shear.train.sampling.engine_sampler import EngineSampler
from openrlhf_shear.train.sampling.engines import Engines
from openrlhf_shear.train.sampling.rollout_rewards import reward_of
from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator
from openrlhf_shear.train.screen.story import doing

logger = init_logger(__name__)


@dataclass(frozen=True)
class Scores:
    """Scores of an evaluation: everything that is logged, and what the screen shows."""

    metrics: dict[str, float] = field(default_factory=dict)
    sets: dict[str, float] = field(default_factory=dict)  # of --eval.dataset, by metric
    # Of --eval.suite: name, avg@k (None without a verdict) and problems of a benchmark; then the average of several.
    suite: list[tuple[str, float | None, int]] = field(default_factory=list)


class TrainingSuite:
    """Evaluator of the benchmarks of `--eval.suite` on a training run's engines."""

    def __init__(self, args, engines: Engines, tokenizer, check_stop: Callable[[], None] = lambda: None):
        """Read the questions (`suite_plan`), so that their errors show before training.

        Args:
            check_stop: called about once a second while completions are sampled; it raises to stop.
        """
        self._plan = suite_plan(args)
        self._folder = Path(args.ckpt.path) / "evaluations"
        self._grading = GradingConfig(**{knob.name: getattr(args.reward, knob.name) for knob in fields(GradingConfig)})
        self._engines, self._sleeps = engines, args.vllm.enable_sleep
        settings = self._plan.sampling, self._plan.prompt_format, args.data.max_len
        self._sampler = EngineSampler(engines.handles, tokenizer, *settings, check_stop)

    def evaluate(self, step: int, go_on: bool = False) -> Scores:
        """Evaluate the engines' weights of a step; `go_on` continues an interrupted evaluation of the same weights.

        The completions and results.json stay in `CKPT_PATH/evaluations/stepN`.
        """
        folder = self._folder / f"step{step}"
        if not go_on:
            shutil.rmtree(folder, ignore_errors=True)  # from before a resume at an older checkpoint
        plan = replace(self._plan, model=f"{self._plan.model}, step {step}")
        if go_on:
            try:
                Store(folder).start(plan.settings(), plan.questions)
            except ValueError as error:
                logger.warning(f"the evaluation of step {step} begins anew: {error}")
                shutil.rmtree(folder, ignore_errors=True)
        if self._sleeps:
            self._engines.call("wake_up")
        try:
            results = evaluate(plan, Store(folder), lambda: nullcontext(self._sampler), self._grading)
        finally:
            if self._sleeps:
                self._engines.call("sleep")
        _share(folder / "questions.jsonl", self._folder / "questions.jsonl")
        for name, row in results["benchmarks"].items():
            if row["failed"]:
                logger.warning(f"step {step}: {name} lacks {sum(row['failed'].values())} verdicts: {row['failed']}")
        return scores_of_suite(results["benchmarks"])


def scores_of_suite(benchmarks: Mapping[str, Mapping]) -> Scores:
    """Return the scores of the benchmarks of a results.json, by name.

    `suite/NAME` is avg@k of a benchmark, SUITE_AVERAGE their mean; details are `suite_WHAT/NAME`.
    """
    scores = Scores()
    for name, row in benchmarks.items():
        basis = basis_of(row, None)
        scores.suite.append((name, row[f"avg@{row['k']}"], basis.problems))
        details = {what: row[what] for what in ("stderr", "timeouts", "truncated_fraction", "response_tokens_mean")}
        details |= {"problems": basis.problems, "no_answer_fraction": basis.no_answer}
        known = {what: float(value) for what, value in details.items() if value is not None}
        scores.metrics.update({f"suite_{what}/{name}": value for what, value in known.items()})
    known = {name: score for name, score, _ in scores.suite if score is not None}
    scores.metrics.update({f"suite/{name}": score for name, score in known.items()})
    if len(known) == len(scores.suite):  # an average of some of them would be another metric
        scores.metrics[SUITE_AVERAGE] = sum(known.values()) / len(known)
        if len(known) > 1:
            scores.suite.append(("average", scores.metrics[SUITE_AVERAGE], sum(of for *_, of in scores.suite)))
    return scores


def _share(file: Path, common: Path) -> None:
    """Keep a single copy of the questions on the disk for all evaluations, because programs' tests are large."""
    with suppress(OSError):  # no hard links here
        if not common.exists():
            os.link(file, common)
        elif filecmp.cmp(file, common, shallow=False):
            file.unlink()
            os.link(common, file)


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

    def run(self, step: int, undisturbed: AbstractContextManager[None], go_on: bool = False) -> Scores:
        """Evaluate the weights of a step, log the metrics and return the scores.

        Args:
            undisturbed: a context in which nothing else is sampled.
            go_on: continue an interrupted evaluation of the same weights.
        """
        sets, suite = Scores(), Scores()
        with undisturbed:
            doing("evaluating")
            if self._prompts is not None:
                samples = self._sampler.generate_eval_samples(step, **self._generate_kwargs)
                sources = [source for of_batch, *_ in self._prompts for source in of_batch]
                sets = scores_of(samples, sources, self._generate_kwargs["n_samples_per_prompt"])
                if failed := self._sampler.eval_failed:
                    logger.warning(f"evaluation at step {step}: {failed} rewards failed; these rollouts have no score")
            if self._suite is not None:
                with passed_over(f"the evaluation of step {step}"):
                    suite = self._suite.evaluate(step, go_on)
        scores = Scores(sets.metrics | suite.metrics, sets.sets, suite.suite)
        self._tracking.log_eval(step, scores.metrics)
        return scores


def scores_of(samples: Sequence[Experience], sources: Sequence[str], size: int) -> Scores:
    """Return the scores of evaluation rollouts.

    A prompt belongs to the set of its row, so sets may share prompts, and a set may hold a prompt twice. Rollouts
    without a reward are left out, and so are prompts without any reward, as in `cli.evaluate`. With rewards of 0 and 1,
    `passK` is the share of prompts that one of K rollouts answers, and `pass1` is the share of correct rollouts.

    Worked example: sources ["amc", "math"] and rewards 1, 0, 0, 0 give eval_amc_pass2 1.0, eval_amc_pass1 0.5,
    eval_math_pass2 0.0 and eval_math_pass1 0.0.

    Args:
        samples: the rollouts in row order, `size` per row.
        sources: the set of each row.
    """
    sets: dict[str, list[Sequence[Experience]]] = {}
    for row, source in enumerate(sources):
        sets.setdefault(source, []).append(samples[row * size : (row + 1) * size])
    scores = Scores()
    for source, groups in sets.items():
        passes, sizes = _passes(groups), _sizes([sample for group in groups for sample in group])
        scores.metrics.update({f"eval_{source}_{name}": value for name, value in (passes | sizes).items()})
        shown = passes | {"truncated_rate": sizes["truncated_rate"]}
        scores.sets.update({f"{source}_{name}": value for name, value in shown.items()})
    if samples:
        sizes = _sizes(samples)
        scores.metrics.update({f"eval_{name}": value for name, value in sizes.items()})
        scores.metrics.update(eval_num_samples=float(len(samples)))
        scores.sets["truncated_rate"] = sizes["truncated_rate"]
    return scores


def _passes(groups: Sequence[Sequence[Experience]]) -> dict[str, float]:
    """Return a set's passK and pass1; a prompt that lost a reward is in no `passK` of K > 1."""
    count = len(groups[0])
    rewards = [[reward for reward in map(reward_of, group) if reward is not None] for group in groups]
    best = [max(of_prompt) for of_prompt in rewards if len(of_prompt) == count]
    means = [sum(of_prompt) / len(of_prompt) for of_prompt in rewards if of_prompt]
    return {f"pass{k}": sum(of) / len(of) for k, of in ((count, best), (1, means)) if of}


def _sizes(samples: Sequence[Experience]) -> dict[str, float]:
    return {
        "response_length_mean": sum(int(sample.response_length) for sample in samples) / len(samples),
        "truncated_rate": sum(bool(sample.truncated) for sample in samples) / len(samples),
    }
