"""The plan of an evaluation: what to ask a model, and how to grade its answers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from openrlhf_shear.data.prompts import CHAT, PromptFormat
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.sampling.grading import basis_of_verdicts, grade
from openrlhf_shear.sampling.records import Completion, Question
from openrlhf_shear.sampling.sampler import Sampling, Starter, collect, requests
from openrlhf_shear.sampling.store import Store


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
