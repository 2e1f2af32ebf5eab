"""Rows of the credit bench: a rule on a task, with all that comparing it takes (docs/credit-bench.md).

A row holds the version of its task: a digest of what the task does. Rows of different versions, start policies or
settings are never compared; the learning rate may differ, since a rule may have been tuned.
"""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from openrlhf_shear.data.writing import beside, write_text
from openrlhf_shear.lab.alignment import Truth, known_truth, rule_alignment, vine_alignment
from openrlhf_shear.lab.placement import placement, start_models, traces
from openrlhf_shear.lab.runs import digest
from openrlhf_shear.lab.settings import BASELINE, LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.lab.worth import EVALUATED, LabRun, measures_of, over_equal_steps, step_kl
from openrlhf_shear.report.bootstrap import Bootstrap, iqm, probability_of_improvement
from openrlhf_shear.report.estimates import paired
from openrlhf_shear.report.findings import plain
from openrlhf_shear.report.provenance import distinct, provenance, same_kind
from openrlhf_shear.tasks.arithmetic.policy import load_policy

_EXAMPLES = 32  # problems of each split in a version
_SEED = 7_000_000  # of these problems
_VALUES = 2  # version of the computation of `Truth`; files of others are not read


def task_version(settings: LabSettings, start: Path) -> str:
    """Return a digest of what the task does: its prompts, what is right where in a response, and the token limit.

    It does not change with code that does the same. The setting's knobs and the start policy are not in it.
    """
    task, tokenizer, rng = task_of(settings), load_policy(start)[1], random.Random(0)
    responses = []
    for split in ("train", "heldout"):
        for problem in task.problems(_EXAMPLES, _SEED, split):
            prompt = tokenizer.encode(problem.prompt, add_special_tokens=False)
            text = problem.prompt + task.written(problem, rng)
            ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False)[len(prompt) :])
            ended = torch.cat([ids, torch.tensor([tokenizer.eos_token_id])])
            changed = ended.clone()
            changed[rng.randrange(len(ids))] = ids[rng.randrange(len(ids))]
            checks = [task.check(tokenizer, problem, each) for each in (ended, changed, ids[: len(ids) // 2])]
            responses.append([problem.prompt, text, [(found.correct, found.first_error) for found in checks]])
    return digest([task.budget, responses])


def setting_of(settings: LabSettings) -> dict:
    """Return the settings that rows must share to be compared, where they differ from their defaults."""
    return {name: value for name, value in settings.of_a_run().items() if name not in ("start", "learning_rate")}


def kept_truth(settings: LabSettings, start: Path, identity: str, continuations: int, output: Path) -> Truth:
    """Return `known_truth`, from a file below `output` if an earlier call with the same arguments wrote it.

    `identity` is the `policy.fingerprint` of the start policy.
    """
    of = setting_of(settings), settings.placement_prompts, identity, continuations
    decides = _VALUES, *of, provenance()["machine"]  # machines round differently, and so sample other rollouts
    file = output / "values" / f"{task_of(settings).place}-{digest(decides)}.pt"
    if file.is_file():
        truth = torch.load(file, weights_only=False)
        return replace(truth, known=replace(truth.known, models=start_models(settings, start)))
    truth = known_truth(settings, start, continuations)
    file.parent.mkdir(parents=True, exist_ok=True)
    with beside(file) as partial:
        torch.save(replace(truth, known=replace(truth.known, models=None)), partial)
    return truth


def make_row(
    settings: LabSettings,
    variant: Variant,
    runs: Sequence[LabRun],
    baselines: Mapping[float, Sequence[LabRun]],
    curve: Mapping[float, Sequence[LabRun]],
    truth: Truth,
    about: Mapping,
    bootstrap: Bootstrap,
) -> dict:
    """Return a rule's row, as JSON values.

    Args:
        runs: the finished runs of the rule.
        baselines: those of the baseline, by learning rate; seeds that the rule has too are compared.
        curve: the finished runs of the rule at other rates too, by learning rate.
        about: further entries: `version`, `start` and `baseline_learning_rate`.
    """
    others = {run.seed: run for run in baselines.get(about["baseline_learning_rate"], ())}
    pairs = [(run, others[run.seed]) for run in sorted(runs, key=lambda run: run.seed) if run.seed in others]
    measures = measures_of(run for pair in pairs for run in pair)
    measure = EVALUATED if EVALUATED in measures else "mean"
    scores, their = [getattr(run, measure) for run, _ in pairs], [getattr(other, measure) for _, other in pairs]
    differences = [score - other for score, other in zip(scores, their, strict=True)]
    compared = variant.name != BASELINE and bool(pairs)
    placed = placement(traces(settings, variant, truth.known), bootstrap)
    return plain(
        {
            "rule": variant.name,
            "knobs": variant.identity(settings),
            "oracle": variant.reads_truth(settings),
            "task": settings.task,
            **about,
            "setting": setting_of(settings),
            "learning_rate": settings.learning_rate,
            "seeds": [run.seed for run, _ in pairs],
            "measure": measure,
            "score": sum(scores) / len(scores) if scores else None,
            "difference": paired(differences) if compared else None,
            "final": paired([run.final - other.final for run, other in pairs]) if compared else None,
            "step_kl": step_kl([run for run, _ in pairs]) / step_kl([other for _, other in pairs]) if pairs else None,
            "equal_steps": over_equal_steps([run for run, _ in pairs], baselines, measure) if compared else None,
            "at_its_steps": over_equal_steps([other for _, other in pairs], curve, measure, True) if compared else None,
            "same_kind": all(same_kind(run.made, other.made) is not False for run, other in pairs),
            "iqm": iqm(differences, bootstrap) if compared else None,
            "improvement": probability_of_improvement(scores, their, bootstrap) if compared else None,
            **rule_alignment(settings, variant, truth, bootstrap),
            "ceiling": vine_alignment(truth, bootstrap)["correlation"],
            "continuations": truth.values.continuations,
            "exact": truth.values.exact,
            "largest": placed.errors.hit,
            "share": placed.share,
            "cost": _cost(run for run, _ in pairs),
            "differences": dict(zip((run.seed for run, _ in pairs), differences, strict=True)) if compared else {},
            "runs": distinct(run.made for run, _ in pairs),
            **provenance(),
        }
    )


def _cost(runs: Iterable[LabRun]) -> float | None:
    """Return the median over steps of the rule's seconds over the step's seconds; None where it has no time alone."""
    shares = [
        credit / step
        for run in runs
        for credit, step in zip(run.metrics.get("credit_seconds", ()), run.metrics.get("seconds", ()), strict=True)
    ]
    return median(shares) if shares and max(shares) > 0 else None


def write_row(row: Mapping, file: Path) -> str:
    """Write a row to a file of JSON lines, over an earlier row of the same rule, task, version, start and setting.

    Rates are part of the setting here. Return what to say of the earlier row; "" without one.

    Raises:
        ValueError: the earlier row has more seeds, or is of another rule of that name.
    """
    rows = {_key(each): each for each in read_rows(file)}
    earlier, said = rows.get(_key(row)), ""
    if earlier:
        if earlier["knobs"] != row["knobs"]:
            raise ValueError(f"{file}: another rule there is called {row['rule']}; rename yours, or remove that row")
        if len(earlier["seeds"]) > len(row["seeds"]):
            seeds = f"{len(earlier['seeds'])} seeds, and this one {len(row['seeds'])}"
            raise ValueError(f"{file}: the row of {row['rule']} there has {seeds}; train the missing ones")
        if earlier["score"] is not None:
            kind = {True: "the same kind of", False: "another kind of", None: "an unknown"}[same_kind(row, earlier)]
            said = f": {row['score']:.4f}, earlier {earlier['score']:.4f} on {kind} machine"
    rows[_key(row)] = row
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "".join(json.dumps(rows[key]) + "\n" for key in sorted(rows)))
    return said


def read_rows(file: Path) -> list[dict]:
    """Return a file's rows, [] if there is no file; ValueError for a line that is no row."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    rows = [json.loads(line) for line in lines]
    for number, row in enumerate(rows, 1):
        if not {"rule", "task", "version", "setting"} <= set(row):
            raise ValueError(f"{file}, line {number}, is no row of the credit bench; remove it")
    return rows


def _key(row: Mapping) -> str:
    """Return what no two rows of a file share."""
    names = ("task", "version", "rule", "start", "setting", "learning_rate", "baseline_learning_rate")
    return json.dumps([row[name] for name in names], sort_keys=True)


def at_rate(settings: LabSettings, rates: Mapping[str, float], variant: Variant) -> LabSettings:
    return replace(settings, learning_rate=rates.get(variant.name, settings.learning_rate))
