"""What Qwen2.5-Math-PRM reads: a chat whose answer is the steps, a separator after each, at which it is scored."""

from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_shear.config import PrmConfig

SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
SEPARATOR = "<extra_0>"


@dataclass(frozen=True)
class Conversation:
    """Separators are known by position: a response may well hold the text "<extra_0>", which is encoded as text."""

    ids: tuple[int, ...]
    separators: tuple[int, ...]  # positions in `ids`, of the scored steps: fewer than there are, if too long


class ConversationEncoder:
    """Encodes conversations up to the last separator that fits in `max_len` tokens; a causal model's scores know
    nothing after it. Raises ValueError: the model's `tokenizer` has no separator token or no chat template.
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
        """The conversation of one rollout; without separators if not even its first step fits."""
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
    """The encoder of the model's own tokenizer: quick, so that a wrong model shows (ValueError) before it is loaded."""
    from transformers import AutoTokenizer

    return ConversationEncoder(AutoTokenizer.from_pretrained(config.model_name_or_path), config.max_len)
