"""One evaluation from beginning to end: asked, sampled, graded, counted and written; resumed where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace

from openrlhf_shear.evaluation.results import results, write_results
from openrlhf_shear.sampling.grading import grade
from openrlhf_shear.sampling.plan import Grading, Plan
from openrlhf_shear.sampling.records import Completion
from openrlhf_shear.sampling.sampler import Sampler, collect, requests
from openrlhf_shear.sampling.store import Store


def evaluate(
    plan: Plan,
    store: Store,
    engines: Callable[[], AbstractContextManager[Sampler]],
    grading: Grading,
    progress: bool = True,
) -> dict:
    """Sample what the store does not hold yet, grade what has no verdict, write generations.jsonl and results.json.

    Args:
        engines: starts what samples, and stops it; not called if nothing is left to sample.

    Returns:
        The results (`results.results`).

    Raises:
        ValueError: the store holds another evaluation.
        JailError: no jail works here.
    """
    store.start(plan.settings(), plan.questions)
    done = store.done()
    graded = {completion.key: completion.verdict for completion in store.generations() if not completion.failed}
    there = [replace(c, verdict=graded.get(c.key)) for c in store.samples() if c.key in done]
    wanted = requests(plan.questions, plan.ks, plan.sampling.seed, (completion.key for completion in there))
    if wanted:
        if there and progress:
            print(f"{len(there)} completions are there already, {len(wanted)} are to be sampled")
        with store.log() as append, engines() as sampler:
            there += collect(wanted, sampler, append, quiet=not progress, token_ids=plan.token_ids)
    return _finish(store, plan.tasks, plan.ks, there, grading, progress)


def regrade(store: Store, grading: Grading, progress: bool = True) -> dict:
    """Grade a folder's completions again, and write its generations.jsonl and results.json anew; no model is needed.

    Raises:
        ValueError: the folder holds no evaluation.
        JailError: no jail works here.
    """
    try:
        settings = store.settings()
    except FileNotFoundError as error:
        raise ValueError(f"--regrade must be the folder of an evaluation: got {store.folder}") from error
    # What failed may have been sampled since, by a run that was interrupted before it graded.
    completions = {completion.key: completion for completion in store.generations()}
    for completion in store.samples():
        if completion.key not in completions or completions[completion.key].verdict.failure is not None:
            completions[completion.key] = completion
    return _finish(store, settings["tasks"], settings["k"], list(completions.values()), grading, progress, again=True)


def _finish(
    store: Store,
    tasks: Mapping[str, str],
    ks: Mapping[str, int],
    completions: Sequence[Completion],
    grading: Grading,
    progress: bool,
    again: bool = False,
) -> dict:
    questions = store.questions()
    graded = grade(questions, completions, tasks, **asdict(grading), again=again, progress=progress)
    store.write_generations(graded)
    found = {"model": store.settings()["model"]} | results(questions, graded, tasks, ks)
    write_results(found, store.folder / "results.json")
    return found
