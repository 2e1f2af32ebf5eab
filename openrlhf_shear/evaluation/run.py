"""One evaluation from beginning to end: completions, and the scores that they come to."""

from __future__ import annotations

from collections.abc import Iterable

from openrlhf_shear.evaluation.results import results, write_results
from openrlhf_shear.sampling.plan import Grading, Plan
from openrlhf_shear.sampling.records import Completion
from openrlhf_shear.sampling.run import complete, graded_anew
from openrlhf_shear.sampling.sampler import Starter
from openrlhf_shear.sampling.store import Store, latest


def evaluate(plan: Plan, store: Store, engines: Starter, grading: Grading, progress: bool = True) -> dict:
    """Complete what is asked (`sampling.run.complete`, with its arguments and errors) and write results.json.

    Returns:
        The results (`results.results`).
    """
    return score(store, complete(plan, store, engines, grading, progress))


def regrade(store: Store, grading: Grading, progress: bool = True) -> dict:
    """Grade a folder's completions again, and write its generations.jsonl and results.json anew; no model is needed.

    Raises:
        ValueError: the folder holds no evaluation.
        JailError: no jail works here.
    """
    if not (store.folder / "settings.json").is_file():
        raise ValueError(f"--regrade must be the folder of an evaluation: got {store.folder}")
    # What failed may have been sampled since, by a run that was interrupted before it graded.
    completions = latest([*store.generations(), *store.samples()])
    return score(store, graded_anew(store, completions, grading, progress, again=True))


def score(store: Store, completions: Iterable[Completion]) -> dict:
    """The results of a folder's graded completions, written to its results.json."""
    settings = store.settings()
    scores = {"model": settings["model"]} | results(store.questions(), completions, settings["tasks"], settings["k"])
    write_results(scores, store.folder / "results.json")
    return scores
