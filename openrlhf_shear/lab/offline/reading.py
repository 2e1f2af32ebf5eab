"""A model's reading of given responses: hidden states, log-probs, entropies and the tokens of each step, kept on disk.

Legend: T response tokens, K steps, d hidden size, B responses of a pass, S positions of a pass.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn.utils.rnn import pad_sequence

from openrlhf_shear.credit.captured import captured_lm_head_input
from openrlhf_shear.data.prompts import PromptFormat, prompt_ids
from openrlhf_shear.data.writing import beside
from openrlhf_shear.lab.offline.responses import Response

VERSION = 2  # of a reading's computation; readings of other versions are not used


@dataclass(frozen=True)
class ResponseReading:
    """What a model makes of one response; all tensors are on the CPU."""

    token_ids: torch.Tensor  # (T,) int64
    states: torch.Tensor  # (T, d) in the model's dtype: the input of the LM head at the token's own position
    log_probs: torch.Tensor  # (T,) float32, of the actual tokens
    entropies: torch.Tensor  # (T,) float32, nats, of the distribution of each token
    step_starts: torch.Tensor  # (K,) int64: the first token of each step; T for a step without a token

    def step(self, index: int) -> range:
        """The tokens of a step; the separator behind it belongs to it."""
        starts = [*self.step_starts.tolist(), len(self.token_ids)]
        return range(starts[index], starts[index + 1])


def step_tokens(offsets: Sequence[tuple[int, int]], starts: Sequence[int]) -> list[int]:
    """Return the first token of each step: the token that holds the first character of the step.

    A token with the end of a step and the first character of the next belongs to the next.

    Args:
        offsets: T pairs, first character of each token and the character behind its last.
        starts: K, first character of each step.

    Example: the tokens "a.", ". b" and "c" of the steps "a..", "bc".

    >>> step_tokens([(0, 2), (2, 5), (5, 6)], [0, 4])
    [0, 1]
    """
    return [next((i for i, (_, end) in enumerate(offsets) if end > start), len(offsets)) for start in starts]


class Reader:
    """Reads the responses to a problem in passes of a fixed size, and keeps the results in a folder.

    A pass has responses to one problem only, so that its numbers depend on nothing else: a resumed reading is equal to
    an uninterrupted one.
    """

    def __init__(self, model, tokenizer, prompt_format: PromptFormat, identity: str, folder: Path, batch_size: int = 4):
        """
        Args:
            model, tokenizer: a causal LM of transformers and its fast tokenizer.
            prompt_format: format of the prompts.
            identity: of the model's weights and dtype; readings are kept by it.
            batch_size: responses of a pass, at least 1.

        Raises ValueError: the tokenizer has no chat template and needs it, or is not fast. A tokenizer that is not fast
        does not say where its tokens are in a text.
        """
        if prompt_format.chat and not tokenizer.chat_template:
            raise ValueError("--model: its tokenizer has no chat template; use --prompt-format plain")
        if not tokenizer.is_fast:
            raise ValueError(f"--model: {type(tokenizer).__name__} has no offsets; use a model with a fast tokenizer")
        self.tokenizer = tokenizer
        self._model, self._format, self._folder, self._batch = model, prompt_format, folder, batch_size
        self._identity = repr((VERSION, identity, prompt_format, batch_size))

    @classmethod
    def load(
        cls,
        name: str,
        prompt_format: PromptFormat,
        dtype: str,
        device: str,
        trusted: bool,
        folder: Path,
        batch_size: int,
    ) -> Self:
        """Load a model by its folder or hub id, in evaluation mode."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trusted)
        kind = getattr(torch, dtype)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=kind, trust_remote_code=trusted).to(device).eval()
        return cls(model, tokenizer, prompt_format, f"{fingerprint(model)} {dtype} {device}", folder, batch_size)

    def read(self, responses: Sequence[Response]) -> list[ResponseReading]:
        """Return the readings of responses to one problem, in order; only those that are not kept are computed.

        Raises ValueError: a response is too long for the model, or has no token.
        """
        passes = [responses[at : at + self._batch] for at in range(0, len(responses), self._batch)]
        return [reading for each in passes for reading in self._kept(each)]

    def _kept(self, responses: Sequence[Response]) -> list[ResponseReading]:
        texts = repr((self._identity, [(each.problem, each.steps) for each in responses]))
        path = self._folder / f"{hashlib.sha256(texts.encode()).hexdigest()[:32]}.pt"
        if path.is_file():
            return [ResponseReading(**fields) for fields in torch.load(path, weights_only=True)]
        readings = list(self._pass(responses))
        self._folder.mkdir(parents=True, exist_ok=True)
        with beside(path) as partial:
            torch.save([vars(reading) for reading in readings], partial)
        return readings

    @torch.no_grad()
    def _pass(self, responses: Sequence[Response]) -> Iterator[ResponseReading]:
        prompt = prompt_ids(self.tokenizer, self._format.text(self.tokenizer, responses[0].problem))
        encoded = [
            self.tokenizer(each.text, add_special_tokens=False, return_offsets_mapping=True) for each in responses
        ]
        self._check(len(prompt), [len(each["input_ids"]) for each in encoded])
        rows = [torch.tensor(prompt + each["input_ids"]) for each in encoded]
        ids = pad_sequence(rows, batch_first=True).to(self._model.device)  # padding comes last: nothing attends to it
        attended = pad_sequence([torch.ones(len(row), dtype=torch.int64) for row in rows], batch_first=True)
        with captured_lm_head_input(self._model) as captured:
            logits = self._model(input_ids=ids, attention_mask=attended.to(ids.device), use_cache=False).logits
        for i, (row, each, response) in enumerate(zip(rows, encoded, responses, strict=True)):
            own = slice(len(prompt), len(row))
            predicted = logits[i, own.start - 1 : own.stop - 1].float().log_softmax(-1)
            starts = step_tokens(each["offset_mapping"], response.step_starts)
            yield ResponseReading(
                token_ids=row[own].clone(),
                states=captured[0][i, own].cpu().clone(),
                log_probs=predicted.gather(1, ids[i, own, None]).squeeze(1).cpu(),
                entropies=torch.special.entr(predicted.exp()).sum(1).cpu(),
                step_starts=torch.tensor(starts, dtype=torch.int64),
            )

    def _check(self, prompt: int, lengths: Sequence[int]) -> None:
        longest, most = prompt + max(lengths), getattr(self._model.config, "max_position_embeddings", None)
        if min(lengths) == 0:
            raise ValueError("--responses: a response has no token in the model's vocabulary; leave it out")
        if most and longest > most:
            raise ValueError(
                f"--responses: a problem with its response has {longest} tokens, and the model reads {most}; "
                "leave it out, or use a model that reads more"
            )


def fingerprint(model: Any) -> str:
    """Return a digest of a model's weights by name."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:32]
