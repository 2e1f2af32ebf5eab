"""A whole diagnosis: rollouts, continuations of their prefixes, distances, tables. It resumes where it stopped.

- OUTPUT/rollouts/, OUTPUT/completions/: every sampled rollout and every continuation of a prefix, as an evaluation
- OUTPUT/measured/: the weights and distances of one group a file, so that each is measured once
- OUTPUT/rollouts.parquet, OUTPUT/prefixes.parquet: the tables for pages and analyses
- OUTPUT/text/: the text control's distances of one group a file
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.diagnosis.prefixes import prefix_questions, prefix_rows, write_prefixes
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.rewards.verdict import Failure
from openrlhf_shear.rollouts.columns import SPAN_COLUMNS, span_columns, token_columns
from openrlhf_shear.rollouts.record import Rollout, TableError, is_mixed, read_rollouts, write_rollouts
from openrlhf_shear.sampling.plan import Plan, basis_of_verdicts, complete
from openrlhf_shear.sampling.records import Completion, Question
from openrlhf_shear.sampling.sampler import Sampler, question_ids
from openrlhf_shear.sampling.store import Store
from openrlhf_shear.tasks.arithmetic import arithmetic

SAMPLED, COMPLETED, TEXT = "rollouts", "completions", "text"
ROLLOUTS, PREFIXES = "rollouts.parquet", "prefixes.parquet"
MEASURED = ("weights", *SPAN_COLUMNS)  # columns of a rollout


class DiagnosisError(ValueError):
    """The sampled rollouts allow no diagnosis; the message says why, in one line."""


@dataclass(frozen=True)
class SampledGroup:
    """The rollouts of one problem; `prompt` is the token ids that the policy reads before each response."""

    prompt: Sequence[int]
    rollouts: Sequence[Rollout]

    @property
    def name(self) -> str:
        return self.rollouts[0].group

    @property
    def correct(self) -> tuple[bool | None, ...]:
        """By rollout; None without a verdict."""
        return tuple(rollout.correct for rollout in self.rollouts)

    @property
    def mixed(self) -> bool:
        return is_mixed(self.rollouts)


@dataclass(frozen=True)
class Diagnosis:
    """The request of a diagnosis."""

    problems: Plan  # of a single benchmark, with the rollouts a problem as its k, and `token_ids`
    completions: int  # of each prefix
    config: ShearConfig  # of the weights and distances; the prefixes share its window and stride
    heatmaps: int  # number of groups that get heatmaps
    search: SearchConfig = field(default_factory=SearchConfig)  # of the distances
    controls: bool = False  # whether to measure the distances of `credit.rule.CONTROLS` too

    def settings(self) -> dict:
        """Return the settings for the tables."""
        ((dataset, samples),) = self.problems.ks.items()
        settings = {"rule": "shear", "model": self.problems.model, "dataset": dataset, "samples_per_prompt": samples}
        settings |= {"completions": self.completions, "problems": len(self.problems.questions)}
        settings |= asdict(self.problems.sampling) | {"chat": self.problems.prompt_format.chat}
        return settings | self.measured

    @property
    def measured(self) -> dict:
        """The settings on which weights and distances depend, beside the rollouts."""
        return asdict(self.config) | {"controls": self.controls, "template": self.problems.prompt_format.template}


def diagnose(request: Diagnosis, folder: Path, machines: Any, tokenizer, grading: GradingConfig) -> tuple[Path, Path]:
    """Sample, complete, measure, and write both tables; return their paths.

    Args:
        machines: `train.start.diagnosis.Cluster`, which samples and reads hidden states.

    Raises:
        ValueError: the folder holds another diagnosis.
        RuntimeError: engines died during rollouts or completions; earlier draws are kept.
        DiagnosisError: no group is mixed, or no rollout is long enough for a prefix.
        JailError: no jail works on this machine.
    """
    problems = request.problems
    with ExitStack() as engines:

        @cache
        def sampler() -> Sampler:
            """Start the sampler on first use, once."""
            room = replace(problems, longest_prefix=problems.sampling.max_new_tokens)
            return engines.enter_context(machines.sampler(room))

        def drawn(plan: Plan, name: str) -> list[Completion]:
            return complete(plan, Store(folder / name), lambda: nullcontext(sampler()), grading)

        store = Store(folder / SAMPLED)
        basis = basis_of_verdicts(grading, problems.tasks.values())
        if Store(folder / COMPLETED).samples() and store.graded_by == basis:
            store.start(problems.settings(), problems.questions)
            completions = store.generations()  # failures too: another try could change the prefixes
        else:
            completions = drawn(problems, SAMPLED)
        _require_sampled("rollouts", completions)
        groups = sampled_groups(problems, completions, tokenizer)
        mixed = [group for group in groups if group.mixed]
        _require_mixed(groups, problems)
        continued = drawn(_continuations(request, mixed), COMPLETED)
        _require_sampled("completions", continued)
    measured = _measured(request, mixed, folder / "measured", machines)
    rows = prefix_rows((rollout for rollouts in measured.values() for rollout in rollouts), continued, request.config)
    everything = [rollout for group in groups for rollout in measured.get(group.name, group.rollouts)]
    return (
        write_rollouts(folder / ROLLOUTS, everything, request.settings()),
        write_prefixes(folder / PREFIXES, rows, request.settings()),
    )


def _continuations(request: Diagnosis, mixed: Sequence[SampledGroup]) -> Plan:
    """Return the plan for the engines after the rollouts: continuations of every prefix."""
    rollouts = [rollout for group in mixed for rollout in group.rollouts]
    by_id = {question.id: question for question in request.problems.questions}
    prefixes = prefix_questions(by_id, rollouts, request.config)
    _require_prefixes(prefixes, rollouts, request.config)
    cuts = {knob.name: getattr(request.config, knob.name) for knob in fields(SpanCut)}
    ks = dict.fromkeys(request.problems.ks, request.completions)
    return replace(request.problems, questions=prefixes, ks=ks, token_ids=False, more=cuts)


def _measured(
    request: Diagnosis, groups: Sequence[SampledGroup], folder: Path, machines: Any
) -> dict[str, Sequence[Rollout]]:
    """Return the rollouts of mixed groups with weights and spans, by group; read the files of earlier calls."""
    files, settings, rollouts = {}, {}, {}
    for number, group in enumerate(groups):
        files[group.name] = folder / f"group{number:05d}.parquet"
        # The first groups of the file have heatmaps, so being one of them is a setting too.
        settings[group.name] = request.measured | {"heatmaps": number < request.heatmaps}
        rollouts[group.name] = _read(files[group.name], settings[group.name], group.rollouts)
    due = [group for group in groups if rollouts[group.name] is None]
    shown = sum(settings[group.name]["heatmaps"] for group in due)  # those with heatmaps come first
    model = request.problems.model
    measured = machines.measure(model, due, request.config, request.search, shown, request.controls) if due else ()
    for group, weights, evidence in measured:
        samples = [rollout.sample for rollout in group.rollouts]
        rollouts[group.name] = [
            replace(rollout, weights=weight.tolist(), **span_columns(spans, samples))
            for rollout, weight, spans in zip(group.rollouts, weights, evidence.rollouts, strict=True)
        ]
        write_rollouts(files[group.name], rollouts[group.name], settings[group.name])
    return rollouts


def _read(file: Path, settings: Mapping, sampled: Sequence[Rollout]) -> list[Rollout] | None:
    """Return a measured group, or None unless its file has these very rollouts and settings."""
    try:
        rows, made_with = read_rollouts(file)
    except TableError:
        return None
    there, wanted = ([(r.sample, r.token_ids, r.correct) for r in rollouts] for rollouts in (rows, sampled))
    if made_with != settings or there != wanted:
        return None
    return [
        replace(rollout, **{name: getattr(row, name) for name in MEASURED})
        for rollout, row in zip(sampled, rows, strict=True)
    ]


def _require_sampled(what: str, completions: Iterable[Completion]) -> None:
    """Refuse a partial sample: completed prefixes fix the groups, and some prefixes are no average of all."""
    lost = (Failure.ENGINE_DIED, Failure.NO_ENGINE)
    again = Counter(completion.verdict.why for completion in completions if completion.verdict.failure in lost)
    if again:
        raise RuntimeError(f"{again.total()} {what} could not be sampled, {dict(again)}; run it again")


def _require_mixed(groups: Sequence[SampledGroup], problems: Plan) -> None:
    if any(group.mixed for group in groups):
        return
    outcomes = [outcome for group in groups for outcome in group.correct]
    raise DiagnosisError(
        f"no group is mixed: {outcomes.count(True)} of {len(outcomes)} rollouts of {problems.model} are correct, and "
        f"none of {len(problems.questions)} problems has both a correct and an incorrect one, which the distances "
        "need; use problems that the model solves sometimes, more samples per prompt, or a higher temperature"
    )


def _require_prefixes(prefixes: Sequence[Question], rollouts: Sequence[Rollout], config: ShearConfig) -> None:
    if prefixes:
        return
    longest = max(min(len(r.tokens) - 1, len(r.tokens) if r.answer_start is None else r.answer_start) for r in rollouts)
    raise DiagnosisError(
        f"no rollout of a mixed group is long enough for a prefix: the window has {config.window} tokens, and the "
        f"longest response before its end or final answer {longest}; use a smaller --window"
    )


def sampled_groups(problems: Plan, completions: Iterable[Completion], tokenizer) -> list[SampledGroup]:
    """Return the groups of all sampled completions, in the order of the questions; advantages as by `group_norm`."""
    by_question: dict[str, list[Completion]] = {}
    for completion in completions:
        if completion.token_ids:
            by_question.setdefault(completion.question, []).append(completion)
    groups = []
    for question in problems.questions:
        answers = by_question.get(question.id, [])
        ids = question_ids(tokenizer, question, problems.prompt_format)
        prompt = tokenizer.decode(ids)
        rollouts = [
            Rollout(
                group=question.id,
                sample=completion.sample,
                prompt=prompt,
                label=str(question.label),
                correct=completion.verdict.correct,
                reward=None if completion.verdict.correct is None else float(completion.verdict.correct),
                advantage=advantage,
                truncated=completion.truncated,
                **token_columns(tokenizer, prompt, completion.token_ids, arithmetic.first_error),
            )
            for completion, advantage in zip(answers, _advantages(answers), strict=True)
        ]
        if rollouts:
            groups.append(SampledGroup(ids, rollouts))
    return groups


def _advantages(completions: Sequence[Completion]) -> list[float | None]:
    """Return the advantages that training gives these rollouts; None without a verdict."""
    failed = torch.tensor([completion.verdict.correct is None for completion in completions])
    rewards = torch.tensor([float(completion.verdict.correct or 0) for completion in completions])
    advantages = group_advantages(rewards, len(completions), failed=failed).tolist()
    return [None if out else advantage for out, advantage in zip(failed.tolist(), advantages, strict=True)]
