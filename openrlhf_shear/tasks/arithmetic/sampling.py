"""Sampling the arithmetic task's small policy in process, and its accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from openrlhf_shear.tasks.arithmetic.solutions import MAX_RESPONSE_TOKENS

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer


@dataclass(frozen=True)
class Accuracy:
    """Sampled responses, one a problem: the fraction of right responses, and the fraction of lucky ones among them."""

    correct: float
    lucky: float
    problems: int

    @classmethod
    def of(cls, checks: Sequence) -> Self:
        """Return the accuracy of checked responses, each with `correct` and `lucky`."""
        correct, lucky = sum(check.correct for check in checks), sum(check.lucky for check in checks)
        return cls(correct / len(checks), lucky / max(correct, 1), len(checks))


@torch.no_grad()
def sample_ids(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    prompts: list[str],
    seed: int,
    batch_size: int = 256,
    max_new_tokens: int = MAX_RESPONSE_TOKENS,
    temperature: float = 1.0,
) -> list[torch.Tensor]:
    """Sample one response a prompt, and return its token ids, `(T_i,)` int64.

    They end with the first `<eos>`, or after `max_new_tokens`. The model needs only `generate`. torch's random state is
    unchanged.
    """
    rows = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    return continue_ids(model, tokenizer, rows, [max_new_tokens] * len(rows), seed, batch_size, temperature)


@torch.no_grad()
def continue_ids(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    rows: Sequence[Sequence[int]],
    room: Sequence[int],
    seed: int,
    batch_size: int = 256,
    temperature: float = 1.0,
) -> list[torch.Tensor]:
    """Continue token ids, as `sample_ids` continues prompts; row i by at most `room[i]` tokens, at least one."""
    responses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for at in range(0, len(rows), batch_size):
            some, most = rows[at : at + batch_size], room[at : at + batch_size]
            width = max(map(len, some))
            padded = [[tokenizer.pad_token_id] * (width - len(row)) + list(row) for row in some]
            mask = [[0] * (width - len(row)) + [1] * len(row) for row in some]
            ids = model.generate(
                input_ids=torch.tensor(padded),
                attention_mask=torch.tensor(mask),
                max_new_tokens=max(most),
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
            )
            for row, limit in zip(ids[:, width:], most, strict=True):
                ends = (row[:limit] == tokenizer.eos_token_id).nonzero()
                # After <eos> the row is padding. A copy, unlike a view, does not keep the batch in memory.
                responses.append(row[: ends[0].item() + 1 if len(ends) else limit].clone())
    return responses


def response_text(tokenizer: Qwen2Tokenizer, ids: torch.Tensor | Sequence[int]) -> str:
    """Return the text of a response, `(T_i,)` token ids, one character a token, without a final `<eos>`.

    Any other special token becomes "\N{REPLACEMENT CHARACTER}".
    """
    ids = torch.as_tensor(ids, dtype=torch.int64).tolist()
    if ids and ids[-1] == tokenizer.eos_token_id:
        ids.pop()
    special = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return "".join("\N{REPLACEMENT CHARACTER}" if i in special else t for i, t in zip(ids, tokens, strict=True))


def sampled_checks(model, tokenizer, task, problems: Sequence, seed: int) -> list:
    """Sample one response a problem of a task of the lab (`lab.tasks`), and return the task's checks."""
    ids = sample_ids(model, tokenizer, [problem.prompt for problem in problems], seed, max_new_tokens=task.budget)
    return [task.check(tokenizer, problem, row) for problem, row in zip(problems, ids, strict=True)]
