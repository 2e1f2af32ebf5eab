"""Benchmarks of `--eval.suite`, which a training run's engines answer every few steps."""

import filecmp
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.evaluation.basis import basis_of
from openrlhf_shear.evaluation.run import evaluate
from openrlhf_shear.evaluation.suite import SUITE_AVERAGE, suite_plan
from openrlhf_shear.sampling.plan import Grading
from openrlhf_shear.sampling.store import Store
from openrlhf_shear.train.sampling.engine_sampler import EngineSampler
from openrlhf_shear.train.sampling.engines import Engines

logger = init_logger(__name__)


class TrainingSuite:
    """Evaluator of the benchmarks of `--eval.suite` on a training run's engines."""

    def __init__(self, args, engines: Engines, tokenizer, check_stop: Callable[[], None] = lambda: None):
        """Read the questions (`suite_plan`), so that their errors show before training.

        Args:
            check_stop: called about once a second while completions are sampled; it raises to stop.
        """
        self._plan = suite_plan(args)
        self._folder = Path(args.ckpt.path) / "evaluations"
        reward = args.reward
        limits = (reward.cores, reward.timeout, reward.memory_mb, reward.allow_unsandboxed)
        self._grading = Grading(*limits, reward.answer_format)
        self._engines, self._sleeps = engines, args.vllm.enable_sleep
        settings = self._plan.sampling, self._plan.asked, args.data.max_len
        self._sampler = EngineSampler(engines.handles, tokenizer, *settings, check_stop)

    def evaluate(self, step: int, go_on: bool = False) -> dict[str, float]:
        """Evaluate the engines' current weights; return `suite/NAME`, avg@k, their `suite/average`, and details.

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
        rows = results["benchmarks"]
        scores = {name: row[f"avg@{row['k']}"] for name, row in rows.items()}
        details = {}
        for name, row in rows.items():
            if row["failed"]:
                logger.warning(f"step {step}: {name} lacks {sum(row['failed'].values())} verdicts: {row['failed']}")
            for what in ("stderr", "timeouts", "truncated_fraction", "response_tokens_mean"):
                if row[what] is not None:
                    details[f"suite_{what}/{name}"] = float(row[what])
            basis = basis_of(row, None)
            details[f"suite_problems/{name}"] = float(basis.problems)
            if basis.no_answer is not None:
                details[f"suite_no_answer_fraction/{name}"] = basis.no_answer
        known = {f"suite/{name}": value for name, value in scores.items() if value is not None}
        if len(known) == len(scores):  # an average of some of them would be another metric
            known[SUITE_AVERAGE] = sum(scores.values()) / len(scores)
        return known | details


def _share(file: Path, common: Path) -> None:
    """Keep a single copy of the questions on the disk for all evaluations, because programs' tests are large."""
    with suppress(OSError):  # no hard links here
        if not common.exists():
            os.link(file, common)
        elif filecmp.cmp(file, common, shallow=False):
            file.unlink()
            os.link(common, file)
