"""The text of a prompt that a policy reads, and its token ids: the same in training and evaluation.

A chat template writes every special token itself. A text without a template begins, once, with the tokenizer's default
start (the BOS of Llama 3 and Gemma), as in pretraining. The start is part of the text, so that rewards, agents and
rollout pages see what the policy reads. Token ids are always made without further special tokens.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openrlhf_shear.data.columns import HALF_PAIR

Turns = Sequence[dict[str, Any]]  # chat messages


WRITTEN = re.compile(r"""\s*\[\s*\{\s*["'](role|content|from)["']\s*:""")  # messages as JSON, or as Python shows them


class TwoStartsError(ValueError):
    """The policy would read two BOS in a prompt."""


@dataclass(frozen=True)
class PromptFormat:
    """Format of prompts.

    Example, a base model whose BOS is <s>: PromptFormat(False, "Q: {} A:") turns "1 + 1?" into "<s>Q: 1 + 1? A:".
    """

    chat: bool  # messages go through the tokenizer's chat template; otherwise their texts are joined
    template: str | None = None  # without `chat`: the text replaces its {}; None, or no {}: the text alone

    def problem(self, prompt: object) -> str | None:
        """Say why a row's value is no prompt; None if it is a prompt."""
        if isinstance(prompt, list) and prompt and all(isinstance(m, dict) for m in prompt):
            if problem := _no_messages(prompt):
                return problem
            if not any(turn["content"] for turn in prompt):
                return "has no text in its messages"
            if prompt[-1]["role"] == "assistant":
                return "ends with a turn of the assistant, which is the policy's"
            if not self.chat:
                return "is a list of messages, which needs --data.apply_chat_template"
        elif not isinstance(prompt, str):
            names = {"NoneType": "is null", "list": "is no text, and no list of messages"}
            name = type(prompt).__name__
            return "is a list without a message" if prompt == [] else names.get(name, f"is no text but {name}")
        elif not prompt.strip():
            return "is empty"
        elif WRITTEN.match(prompt):
            return "is messages written as a text; use the list itself (json.loads), or the text of the last message"
        try:
            "".join(texts_of(prompt)).encode()
        except UnicodeEncodeError:
            return HALF_PAIR
        return None

    def filled(self, prompt: str | Turns) -> str:
        """Return the text of a prompt without a chat template; a blank line separates the texts of messages.

        Raises LookupError or ValueError: `template` is no template.
        """
        text = "\n\n".join(texts_of(prompt))
        return self.template.format(text) if self.template and "{}" in self.template else text

    def text(self, tokenizer: Any, prompt: str | Turns) -> str:
        """Return the text that the policy reads (`texts`) of a single prompt."""
        return self.texts(tokenizer, [prompt])[0]

    def texts(self, tokenizer: Any, prompts: Sequence[str | Turns]) -> list[str]:
        """Return the texts that the policy reads, special tokens included; `prompt_ids` makes their ids.

        Raises:
            TwoStartsError: a prompt already begins with a BOS, and another would precede it.
            LookupError, ValueError: as in `filled`. The chat template may raise other errors.
        """
        inner = _inner(tokenizer)
        start = inner.bos_token
        if self.chat:
            chats = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in prompts]
            texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        else:
            _, start = _start(inner, inner.bos_token)
            before, filled = functools.partial(_before, inner, inner.bos_token), map(self.filled, prompts)
            texts = [text if text.startswith(start) else before(text[:1]) + text for text in filled]
        for prompt, text in zip(prompts, texts, strict=True) if start else ():
            again = text.startswith(start) and text.find(start, len(start))
            if again == len(start) or (again > 0 and any(turn.startswith(start) for turn in texts_of(prompt))):
                raise TwoStartsError(f"begins with {start}, which the policy would read twice")
        return texts


CHAT = PromptFormat(chat=True)


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text of `PromptFormat.text`, as the rollout engine makes them."""
    return list(_inner(tokenizer)(text, add_special_tokens=False, verbose=False)["input_ids"])


def _no_messages(turns: Turns) -> str | None:
    """Say why dicts are no messages; None if they are."""
    for number, turn in enumerate(turns, 1):
        if isinstance(turn.get("content"), str | list) and isinstance(turn.get("role"), str):
            continue
        if "content" in turn and "role" in turn:
            return f"has message {number} whose role or content is no text"
        if {"from", "value"} <= turn.keys():
            return "is ShareGPT's conversation (from, value); use messages with role and content"
        calls = " but tool_calls, which no prompt needs" if "tool_calls" in turn else f" but {', '.join(turn)}"
        lacking = "role" if "content" in turn else "content"
        return f'has message {number} without {lacking}{calls}; use messages with role and content ("" for no text)'
    return None


def texts_of(prompt: str | Turns) -> list[str]:
    """Return the texts that a row's prompt is made of."""
    if isinstance(prompt, str):
        return [prompt]
    return [turn["content"] for turn in prompt if isinstance(turn.get("content"), str)]


def _inner(tokenizer: Any) -> Any:
    """Return the tokenizer within a processor of images, or the tokenizer itself."""
    return tokenizer.tokenizer if hasattr(tokenizer, "image_processor") else tokenizer


@functools.lru_cache(maxsize=4096)
def _before(tokenizer: Any, bos_token: str | None, first: str) -> str:
    """Return what puts the default start before a text that begins with this character, and keeps the text's ids.

    If a tokenizer marks the beginning of a text (SentencePiece's "▁"), it is the start and a space.
    """
    ids, start = _start(tokenizer, bos_token)
    text = first and f"{first}a"
    wanted = [*ids, *prompt_ids(tokenizer, text)]
    return next((each for each in (start, f"{start} ") if prompt_ids(tokenizer, each + text) == wanted), start)


@functools.lru_cache(maxsize=4)
def _start(tokenizer: Any, bos_token: str | None) -> tuple[list[int], str]:
    """Return the default start of a tokenizer that has this BOS, as ids and as a text."""
    default, bare = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    ids = default[: next((at for at in range(len(default)) if default[at : at + len(bare)] == bare), 0)]
    return ids, tokenizer.decode(ids)
