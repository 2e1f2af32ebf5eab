"""Completions from beginning to end: asked, sampled, graded and kept; resumed where it stopped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from openrlhf_shear.sampling.grading import grade
from openrlhf_shear.sampling.plan import Grading, Plan
from openrlhf_shear.sampling.records import Completion
from openrlhf_shear.sampling.sampler import Starter, collect, requests
from openrlhf_shear.sampling.store import Store


def complete(plan: Plan, store: Store, engines: Starter, grading: Grading, progress: bool = True) -> list[Completion]:
    """Sample what the store does not hold yet, grade what has no verdict, and write generations.jsonl.

    Args:
        engines: not called if nothing is left to sample.

    Returns:
        Every completion, graded, in the order of the file.

    Raises:
        ValueError: the store holds another evaluation.
        JailError: no jail works here.
    """
    store.start(plan.settings(), plan.questions)
    graded = {completion.key: completion.verdict for completion in store.generations() if not completion.failed}
    there = [replace(c, verdict=graded.get(c.key)) for c in store.samples() if not c.failed]
    wanted = requests(plan.questions, plan.ks, plan.sampling.seed, (completion.key for completion in there))
    if wanted:
        if there and progress:
            print(f"{len(there)} completions are there already, {len(wanted)} are to be sampled")
        with store.log() as append, engines() as sampler:
            there += collect(wanted, sampler, append, quiet=not progress, token_ids=plan.token_ids)
    return graded_anew(store, there, grading, progress)


def graded_anew(
    store: Store, completions: Iterable[Completion], grading: Grading, progress: bool, again: bool = False
) -> list[Completion]:
    """The completions with their verdicts, as written to generations.jsonl; `again` as in `grading.grade`."""
    questions, tasks = store.questions(), store.settings()["tasks"]
    graded = grade(questions, completions, tasks, **asdict(grading), again=again, progress=progress)
    return store.write_generations(graded)
