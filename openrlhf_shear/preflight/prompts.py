"""Text and length of each prompt as the policy reads it. transformers is loaded only if a check needs it."""

import json
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, LineError, Note, refusal, refuse
from openrlhf_shear.data import hub
from openrlhf_shear.data.files import looks_local, one_line
from openrlhf_shear.data.prompts import PromptFormat, TwoStartsError, prompt_ids
from openrlhf_shear.line.run import Run

_MODEL, _CHAT = "actor.model_name_or_path", "data.apply_chat_template"


def room(run: Run) -> int:
    """Return the tokens that a prompt may have; OpenRLHF cuts off the beginning of a longer prompt."""
    longest, new = run.data.max_len, run.rollout.max_new_tokens
    if new is not None and new < 1:
        refuse("rollout.max_new_tokens", "must be at least 1", new, "e.g. 1024, or leave it out")
    if longest < 2:
        refuse("data.max_len", "must be at least 2, for a prompt and its response", longest, "e.g. 2048")
    if new is not None and new >= longest:
        problem = f"must be less than data.max_len ({longest}), which counts prompt and response together"
        refuse("rollout.max_new_tokens", problem, new, f"at most {longest - 1}, or a larger --data.max_len")
    return longest - (new or 1)


class Prompts:
    """The prompts of a run, in the text form that the run gives them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        template, chat = run.data.input_template, run.data.apply_chat_template
        if template and "{}" not in template and not chat:  # OpenRLHF warns, and takes the prompts alone
            refuse("data.input_template", "has no {} for the prompt", template, "e.g. 'Question: {} Answer:'")
        self.format = PromptFormat(chat, template)
        self._spelled = not run.use_ms and (self.format.chat or may_begin(run.actor.model_name_or_path))

    @cached_property
    def _tokenizer(self):
        name = self._run.actor.model_name_or_path
        if not (looks_local(name) or any(_files(name, "tokenizer_config.json"))) and (problem := hub.unreachable()):
            refuse(_MODEL, f"has a tokenizer that cannot be loaded ({problem})", name, "a model folder that exists")
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=self._run.trust_remote_code)
        except Exception as error:  # a broken file can raise anything
            refuse(_MODEL, f"has a tokenizer that cannot be loaded ({one_line(error)})", name, "another model folder")
        if self._run.data.apply_chat_template and not tokenizer.chat_template:
            problem = f"needs a chat template, which the tokenizer of {name} does not have"
            refuse(_CHAT, problem, True, "--data.input_template, or a model with a chat template (chat_template.jinja)")
        return tokenizer

    def text(self, where: str, prompt: str | list) -> str:
        """Return a prompt's text as the policy reads it. Raises LineError: a template refuses the prompt."""
        try:
            return self.format.text(self._tokenizer, prompt) if self._spelled else self.format.filled(prompt)
        except LineError:
            raise
        except TwoStartsError as error:
            remedy = "prompts without it, or whole prompts with neither template"
            refuse("data.input_key", f"gives a prompt ({where}) that {error}", self._run.data.input_key, remedy)
        except Exception as error:  # a template is a program
            if self.format.chat:
                remedy = "prompts that the model's chat template takes, or no such flag"
                refuse(_CHAT, f"fails on {where} of the prompts ({one_line(error)})", True, remedy)
            message, template = f"{type(error).__name__}: {error}", self.format.template
            refuse("data.input_template", f"is no template ({message})", template, "a single {} and no other braces")

    def check_lengths(self, name: str, prompts: list[tuple[str, str | list]], first: str) -> Iterator[Finding]:
        """Warn of prompts that will be cut off, and refuse a data set in which every prompt is too long.

        `first` is the text of the first prompt. A text never has more tokens than bytes, so few texts are tokenized.
        """
        most = room(self._run)
        around = _bytes(first) - (_bytes(prompts[0][1]) if isinstance(prompts[0][1], str) else 0)
        long = []
        for where, prompt in prompts:
            if isinstance(prompt, str) and _bytes(prompt) + around <= most:
                continue
            text = self.text(where, prompt)  # every list of messages gets here: a template may refuse any of them
            if _bytes(text) > most:
                long.append(text)
        if not long or self._run.use_ms:
            return
        counts = [len(prompt_ids(self._tokenizer, text)) for text in long]
        cut = [count for count in counts if count > most]
        of = f"of the {len(prompts)} prompts of {name} have more than the {most} tokens that responses leave them"
        if len(cut) == len(prompts):
            longer = self._run.data.max_len - most + max(cut)
            most_needed = f"{longer} for all of them"
            yield refusal("data.max_len", f"is too small: all {of}", self._run.data.max_len, most_needed)
        elif cut:
            message = f"the longest has {max(cut)}; their beginning is cut off, unless --data.max_len is larger"
            yield Note(f"{len(cut)} {of}; {message}")


def may_begin(model: str) -> bool:
    """Return whether a tokenizer may put a BOS in front of texts. Reads its files, since loading it takes seconds.

    False for a hub model whose tokenizer is not downloaded yet.
    """
    config, tokenizer = _files(model, "tokenizer_config.json", "tokenizer.json")
    try:
        written = json.loads(Path(tokenizer).read_text(encoding="utf-8")) if tokenizer else {}
        settings = json.loads(Path(config).read_text(encoding="utf-8")) if config else {}
        return bool(settings.get("bos_token")) or _adds(written.get("post_processor") or {})
    except (ValueError, AttributeError, KeyError):  # an unknown format: transformers decides
        return True


def _adds(processor: dict) -> bool:
    """Return whether a post-processor of tokenizer.json adds special tokens."""
    if processor.get("type") == "Sequence":
        return any(map(_adds, processor["processors"]))
    return processor.get("type") not in (None, "ByteLevel") and processor.get("special_tokens") != {}


def _files(model: str, *names: str) -> list[str | None]:
    """Return the paths of a model's files, here or in the hub's cache; None for a file that is not there."""
    if looks_local(model):
        paths = [os.path.join(model, name) for name in names]
    else:
        from huggingface_hub import try_to_load_from_cache

        paths = [try_to_load_from_cache(model, name) for name in names]
    return [path if isinstance(path, str) and os.path.isfile(path) else None for path in paths]


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))
