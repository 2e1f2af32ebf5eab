"""The plan of an evaluation: what to ask a model, and how to grade its answers."""

import logging
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.data.prompts import CHAT, PromptFormat
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.labels import golds_of
from openrlhf_shear.rewards.pool import RewardPool
from openrlhf_shear.rewards.settings import GradingConfig, RewardSettings
from openrlhf_shear.rewards.verdict import Verdict
from openrlhf_shear.sampling.records import Completion, Question
from openrlhf_shear.sampling.sampler import Sampling, Starter, collect, requests
from openrlhf_shear.sampling.store import Store

logger = logging.getLogger(__name__)


def basis_of_verdicts(grading: GradingConfig, tasks: Iterable[str]) -> dict[str, object]:
    """Return what the verdicts of these tasks depend on, as JSON values: settings, and digests of reward files."""
    files = {task: sha256(Path(task).read_bytes()).hexdigest() for task in sorted(tasks) if Path(task).is_file()}
    settings = {name: getattr(grading, name) for name in ("answer_format", "timeout", "memory_mb")}
    return settings | ({"files": files} if files else {})


def grade(
    questions: Mapping[tuple[str, str], Question],
    completions: Iterable[Completion],
    tasks: Mapping[str, str],
    grading: GradingConfig,
    again: bool = False,
    progress: bool = True,
) -> list[Completion]:
    """Return the completions with their verdicts, in the same order.

    No response makes this raise, and no response affects another. A grader that raises (a broken label, a jail that
    stops working) gives a failure in place of a verdict. A program or a comparison that runs out of time is wrong, with
    the reason TIMEOUT. A truncated response is graded like any other.

    Args:
        questions: (benchmark, id) -> question.
        tasks: benchmark -> a built-in grader, or a .py file with `reward_func`, whose score of 1 means correct.
        again: also grade completions that have a verdict, but not those that failed before grading (the engine died).
        progress: show a bar on stderr.

    Raises:
        ValueError: a completion answers no question.
        JailError: no jail works on this machine; nothing is graded.
    """
    completions = list(completions)
    if others := [c.key for c in completions if (c.benchmark, c.question) not in questions]:
        raise ValueError(f"every completion must answer a question: got {others[0]}")
    due: dict[str, list[int]] = defaultdict(list)
    for at, completion in enumerate(completions):
        verdict = completion.verdict  # a failure before grading left no response to grade
        if verdict is None or (again and (verdict.failure is None or verdict.failure.again)):
            due[tasks[completion.benchmark]].append(at)
    if not due:
        return completions
    with ExitStack() as stack:
        pools = {}
        for task in due:
            settings = RewardSettings(task, **asdict(grading))
            pools[task] = stack.enter_context(closing(RewardPool(settings)))
        count = sum(map(len, due.values()))
        bar = tqdm(None, "grading", count, file=sys.stderr, disable=not progress, unit="answer")
        stack.enter_context(bar)
        for task, places in due.items():
            pairs = [(questions[completions[at].benchmark, completions[at].question], completions[at]) for at in places]
            for at, verdict in zip(places, _verdicts(pools[task], task, pairs), strict=True):
                completions[at] = replace(completions[at], verdict=verdict)
                bar.update()
    return completions


def _verdicts(pool: RewardPool, task: str, pairs: list[tuple[Question, Completion]]) -> Iterator[Verdict]:
    """Yield a verdict for each completion, in order; log the first failure of each kind."""
    samples = []
    for question, completion in pairs:
        prompt = "\n\n".join(message["content"] for message in question.messages)
        samples.append((prompt + completion.response, prompt, question.label, question.tolerance))
    lenient, shown = GRADERS[task].lenient if task in GRADERS else None, set()
    for (question, _), verdict in zip(pairs, pool.grade_all(samples), strict=True):
        if verdict.failure is not None and verdict.why not in shown:
            shown.add(verdict.why)
            logger.warning("%s on %s of %s: %s", verdict.why, question.id, question.benchmark, verdict.detail[:300])
        if verdict.failure is None and lenient:
            verdict = replace(verdict, lenient=lenient(verdict.answer, golds_of(question.label), verdict.correct))
        yield verdict


@dataclass(frozen=True)
class Plan:
    """The request of an evaluation."""

    model: str
    questions: Sequence[Question]
    # by benchmark, in the order of the results. tasks: a built-in grader or a reward file; ks: completions a problem
    tasks: Mapping[str, str]
    ks: Mapping[str, int]
    sampling: Sampling
    prompt_format: PromptFormat = CHAT
    max_model_len: int | None = None  # tokens of prompt and completion (default: the model's limit)
    token_ids: bool = False  # whether to keep the tokens of completions too
    longest_prefix: int = 0  # tokens of extra room in the engines, beside prompt and completion
    # further JSON values, by name, that a resume must share
    more: Mapping[str, object] = field(default_factory=dict)

    def settings(self) -> dict:
        """Return the settings that a resume must share with the run it continues."""
        settings = {"model": self.model, "tasks": dict(self.tasks), "k": dict(self.ks), "chat": self.prompt_format.chat}
        if self.prompt_format.template is not None:
            settings["template"] = self.prompt_format.template
        return {**settings, "max_model_len": self.max_model_len, **asdict(self.sampling), **self.more}


def complete(
    plan: Plan, store: Store, engines: Starter, grading: GradingConfig, progress: bool = True
) -> list[Completion]:
    """Sample what the store lacks, grade what has no verdict, and write generations.jsonl, in this order.

    Args:
        engines: not called if nothing is left to sample.

    Raises:
        ValueError: the store holds another evaluation.
        JailError: no jail works on this machine.
    """
    with store.alone():
        store.start(plan.settings(), plan.questions)
        graded = {(c.key, c.response): c.verdict for c in store.generations() if not c.failed}
        there = [replace(c, verdict=graded.get((c.key, c.response))) for c in store.samples() if not c.failed]
        wanted = requests(plan.questions, plan.ks, plan.sampling.seed, (completion.key for completion in there))
        if there and progress:
            print(f"{len(there)} completions are there already, {len(wanted) or 'none'} to be sampled")
        if wanted:
            with store.log() as append, engines() as sampler:
                there += collect(wanted, sampler, append, quiet=not progress, token_ids=plan.token_ids)
    return graded_anew(store, there, grading, progress)


def graded_anew(
    store: Store, completions: Iterable[Completion], grading: GradingConfig, progress: bool, again: bool = False
) -> list[Completion]:
    """Grade, write generations.jsonl and return the completions with their verdicts.

    Args:
        again: as in `grading.grade`. Verdicts by other settings of the grading, by another content of a reward file,
            or by unknown ones, are always made again.
    """
    tasks, completions = store.settings()["tasks"], list(completions)
    by = basis_of_verdicts(grading, tasks.values())
    again = again or store.graded_by != by
    graded = store.write_generations(grade(store.questions(), completions, tasks, grading, again, progress))
    store.note_grading(by)
    return graded
