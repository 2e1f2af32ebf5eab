"""Benchmarks of `--eval.suite`, which a training run's engines answer every few steps."""

import filecmp
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.evaluation.estimators import basis_of
from openrlhf_shear.evaluation.run import evaluate
from openrlhf_shear.evaluation.suite import SUITE_AVERAGE, suite_plan
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.sampling.store import Store
from openrlhf_shear.train.sampling.engine_sampler import EngineSampler
from openrlhf_shear.train.sampling.engines import Engines

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
        """Evaluate the engines' current weights.

        The completions and results.json stay in `CKPT_PATH/evaluations/stepN`.

        Args:
            step: the step of the weights.
            go_on: continue an interrupted evaluation of the same weights.
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
