"""Conversations for Qwen2.5-Math-PRM: a chat whose answer holds the steps, each scored at the separator after it."""

from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_shear.config import PrmConfig

SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
SEPARATOR = "<extra_0>"


@dataclass(frozen=True)
class Conversation:
    """Token ids of a conversation, and its separators by position.

    A response may contain the text "<extra_0>", which is encoded as ordinary text.
    """

    ids: tuple[int, ...]
    separators: tuple[int, ...]  # positions in `ids` of the scored steps; a long conversation has further steps


class ConversationEncoder:
    """Encoder of conversations, up to the last separator that fits into `max_len` tokens.

    A causal model's scores do not depend on what follows that separator.

    Raises ValueError: the model's `tokenizer` has no separator token or no chat template.
    """

    def __init__(self, tokenizer, max_len: int):
        self._separator = tokenizer.convert_tokens_to_ids(SEPARATOR)
        has_separator = SEPARATOR in tokenizer.get_vocab()
        for holds, what in ((has_separator, f"token {SEPARATOR}"), (tokenizer.chat_template, "chat template")):
            if not holds:
                raise ValueError(
                    f"prm.model_name_or_path: the tokenizer of {tokenizer.name_or_path} has no {what}; use a model in "
                    "the format of Qwen/Qwen2.5-Math-PRM-7B"
                )
        self._tokenizer, self._max_len = tokenizer, max_len
        self.pad_id: int = tokenizer.pad_token_id or 0

    def encode(self, problem: str, steps: Sequence[str]) -> Conversation:
        """Encode the conversation of one rollout; it has no separators if the first step does not fit."""
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem}]
        before = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self._tokenizer(before, add_special_tokens=False)["input_ids"]
        separators: list[int] = []
        for step in steps:
            text = self._tokenizer(step, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            if len(ids) + len(text) + 1 > self._max_len:
                break
            ids += text
            separators.append(len(ids))
            ids.append(self._separator)
        return Conversation(tuple(ids), tuple(separators))


def load_encoder(config: PrmConfig) -> ConversationEncoder:
    """Load the encoder with the model's tokenizer: a quick way to find a wrong model (ValueError) before loading it."""
    from transformers import AutoTokenizer

    return ConversationEncoder(AutoTokenizer.from_pretrained(config.model_name_or_path), config.max_len)
