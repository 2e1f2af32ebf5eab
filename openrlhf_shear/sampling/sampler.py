"""From questions to completions: the missing ones, their seeds, and the result of each."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tqdm import tqdm

from openrlhf_shear.config.knobs import COUNT, NOT_NEGATIVE, Knobs, Range, knob
from openrlhf_shear.data.prompts import PromptFormat, prompt_ids
from openrlhf_shear.rewards.verdict import Verdict
from openrlhf_shear.sampling.records import Completion, Question


@dataclass(frozen=True)
class Sampling(Knobs, section="sampling"):
    """Settings of drawing completions; the paper's values for evaluation."""

    temperature: float = knob(0.1, "Sampling temperature.", NOT_NEGATIVE)
    top_p: float = knob(1.0, "Nucleus probability.", Range(0, 1, open_least=True))
    max_new_tokens: int = knob(3072, "Most tokens of a completion.", COUNT)
    seed: int = knob(0, "Sampling seed.")


@dataclass(frozen=True)
class EngineSettings(Knobs, section="vllm"):
    """vLLM engines to start."""

    device: str = knob("auto", "Hardware of the engines. auto: cuda if there is a GPU.", ("auto", "cuda", "cpu"))
    engines: int = knob(1, "Number of vLLM engines.", COUNT)
    tensor_parallel_size: int = knob(1, "GPUs an engine.", COUNT)
    gpu_memory_utilization: float = knob(
        0.9, "Share of each GPU's memory for its engine.", Range(0, 1, open_least=True)
    )
    enforce_eager: bool = knob(False, "No CUDA graphs: starts sooner, samples slower; always so on a CPU.")
    trust_remote_code: bool = knob(False, "Run Python code that comes with the model.")

    @property
    def gpus(self) -> int:
        return self.engines * self.tensor_parallel_size


@dataclass(frozen=True)
class Request:
    """A completion to draw."""

    question: Question
    sample: int
    seed: int


@dataclass(frozen=True)
class Output:
    """A model's answer."""

    response: str
    tokens: int
    truncated: bool
    token_ids: list[int] | None = None


# A missing answer is a failed verdict, which is counted, and not scored as zero.
Sampler = Callable[[Sequence[Request]], Iterator[tuple[Request, Output | Verdict]]]
Starter = Callable[[], AbstractContextManager[Sampler]]  # starts a sampler, and stops it at the end


def question_ids(tokenizer, question: Question, prompt_format: PromptFormat) -> list[int]:
    """Return the token ids of a question as the policy reads it."""
    return prompt_ids(tokenizer, prompt_format.text(tokenizer, question.messages))


def seed_of(seed: int, benchmark: str, question: str, sample: int) -> int:
    """Return the seed of a completion, 31 bits; it does not depend on other completions or their order."""
    text = f"{seed}\0{benchmark}\0{question}\0{sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def requests(
    questions: Iterable[Question], ks: Mapping[str, int], seed: int, done: Iterable[tuple[str, str, int]] = ()
) -> list[Request]:
    """Return a request for every completion that is not done, question by question, k of each."""
    known = set(done)
    return [
        Request(question, sample, seed_of(seed, question.benchmark, question.id, sample))
        for question in questions
        for sample in range(ks[question.benchmark])
        if (question.benchmark, question.id, sample) not in known
    ]


def collect(
    wanted: Sequence[Request],
    sampler: Sampler,
    keep: Callable[[Completion], None],
    quiet: bool = False,
    token_ids: bool = False,
) -> list[Completion]:
    """Sample what is wanted, with a progress bar; a failure becomes a completion with this verdict.

    `keep` receives each completion as it comes, but no failure: the next run retries failures.
    """
    completions, failed = [], 0
    with tqdm(total=len(wanted), desc="completions", unit="", disable=quiet or not wanted) as bar:
        for request, output in sampler(wanted):
            key = request.question.benchmark, request.question.id, request.sample
            if isinstance(output, Verdict):
                failed += 1
                bar.set_postfix(failed=failed)
                completions.append(Completion(*key, "", 0, False, output))
            else:
                ids = output.token_ids if token_ids else None
                completions.append(Completion(*key, output.response, output.tokens, output.truncated, token_ids=ids))
                keep(completions[-1])
            bar.update()
    return completions
