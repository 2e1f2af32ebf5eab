"""What a policy reads of a prompt: one text, and one way from it to token ids, in training and evaluation alike.

A chat template writes every special token itself. A text that goes through no template gets in front, once, what the
tokenizer puts there by default (the BOS of Llama 3 and Gemma), as in pretraining. It stands in the text itself, so that
rewards, agents and rollout pages see what the policy reads, and ids are always made without further special tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Turns = Sequence[dict[str, Any]]  # chat messages


class TwoStartsError(ValueError):
    """A prompt whose policy would read two BOS."""


@dataclass(frozen=True)
class PromptFormat:
    """How a prompt is put into words.

    Example, a base model whose BOS is <s>: PromptFormat(False, "Q: {} A:") makes "<s>Q: 1 + 1? A:" of "1 + 1?".
    """

    chat: bool  # messages go through the tokenizer's chat template, else their texts are put together
    template: str | None = (
        None  # without `chat`: where a text goes in, at the one {}; None, or no {}, for the text alone
    )

    def problem(self, prompt: object) -> str | None:
        """Why what a row has for a prompt is none."""
        if isinstance(prompt, list) and prompt and all(isinstance(m, dict) and "content" in m for m in prompt):
            if not self.chat:
                return "is a list of messages, which needs --data.apply_chat_template"
        elif not isinstance(prompt, str):
            return "is null" if prompt is None else f"is no text but {type(prompt).__name__}"
        elif not prompt.strip():
            return "is empty"
        try:
            "".join(_texts(prompt)).encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is no character"
        return None

    def filled(self, prompt: str | Turns) -> str:
        """The text of a prompt without a chat template, the texts of several messages a blank line apart.

        Raises LookupError or ValueError: `template` is no template.
        """
        text = "\n\n".join(_texts(prompt))
        return self.template.format(text) if self.template and "{}" in self.template else text

    def text(self, tokenizer: Any, prompt: str | Turns) -> str:
        """What the policy reads, special tokens included; `prompt_ids` has its ids.

        Raises:
            TwoStartsError: the prompt has a BOS in front already, where another would come before it.
            LookupError, ValueError: as `filled`; or whatever the chat template raises.
        """
        if self.chat:
            turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            start = _inner(tokenizer).bos_token
        else:
            start, text = _with_start(_inner(tokenizer), self.filled(prompt))
        if start and text.startswith(start):
            rest = text[len(start) :]
            if rest.startswith(start) or (start in rest and any(one.startswith(start) for one in _texts(prompt))):
                raise TwoStartsError(f"begins with {start}, which the policy would read twice")
        return text


CHAT = PromptFormat(chat=True)


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """The token ids of what a policy reads, as the rollout engine makes them of `PromptFormat.text`."""
    return list(_inner(tokenizer)(text, add_special_tokens=False)["input_ids"])


def _texts(prompt: str | Turns) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    return [turn["content"] for turn in prompt if isinstance(turn.get("content"), str)]


def _inner(tokenizer: Any) -> Any:
    """The tokenizer itself, where a processor of images stands around it."""
    return tokenizer.tokenizer if hasattr(tokenizer, "image_processor") else tokenizer


def _with_start(tokenizer: Any, text: str) -> tuple[str, str]:
    """The text of what the tokenizer puts in front of any other by default, "" for nothing; and `text` behind it."""
    default, bare = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
    ids = default[: next((at for at in range(len(default)) if default[at : at + len(bare)] == bare), 0)]
    start = tokenizer.decode(ids)
    if not ids or text.startswith(start):
        return start, text
    wanted = [*ids, *prompt_ids(tokenizer, text)]
    # Where a tokenizer marks the beginning of a text (SentencePiece's "▁"), a space behind the BOS gives the same.
    candidates = (start + text, f"{start} {text}")
    return start, next((one for one in candidates if prompt_ids(tokenizer, one) == wanted), candidates[0])
