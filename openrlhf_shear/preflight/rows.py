"""Checks of every row of the data sets that a command line names: prompts and their lengths, labels, the first reward.

transformers is loaded only if a check needs it.
"""

import itertools
import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, LineError, Note, Refusal, did_you_mean, refusal, refuse
from openrlhf_shear.data import hub
from openrlhf_shear.data.columns import label_at, label_columns, no_label, value_at
from openrlhf_shear.data.files import DataError, looks_local, one_line
from openrlhf_shear.data.prompts import PromptFormat, TwoStartsError, prompt_ids, texts_of
from openrlhf_shear.data.training_rows import SplitError, blended, of_digests, row_digest, training_rows
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight.rewards import try_reward
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.labels import doubt

_LABELS = ("answer", "label", "solution", "ground_truth", "gold", "target", "final_answer")  # usual names of labels
_SUM = 1.4e-8  # a sum of shares that differs more from 1 is refused by NumPy, which draws
_LONG = 64  # bytes for each token that a prompt may have: of a longer prompt only the beginning is tokenized
_SHOWN = 3  # rows that a message lists
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
        begins, self.end = (False, "") if run.use_ms else special_tokens(run.actor.model_name_or_path)
        self._spelled = not run.use_ms and (self.format.chat or begins)

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

    def texts(self, rows: Sequence[tuple[str, str | list]]) -> list[str]:
        """Return the texts of prompts, given with their places, as the policy reads them.

        Raises LineError: a template refuses a prompt.
        """
        prompts = [prompt for _, prompt in rows]
        try:
            return self.format.texts(self._tokenizer, prompts) if self._spelled else [*map(self.format.filled, prompts)]
        except LineError:
            raise
        except Exception as error:  # a template is a program
            if len(rows) > 1:
                return [text for row in rows for text in self.texts([row])]
            if isinstance(error, TwoStartsError):
                problem, remedy = f"gives a prompt ({rows[0][0]}) that {error}", "prompts without it, or whole prompts"
                refuse("data.input_key", problem, self._run.data.input_key, f"{remedy} with neither template")
            if self.format.chat:
                remedy = "prompts that the model's chat template takes, or no such flag"
                refuse(_CHAT, f"fails on {rows[0][0]} of the prompts ({one_line(error)})", True, remedy)
            message, template = f"{type(error).__name__}: {error}", self.format.template
            refuse("data.input_template", f"is no template ({message})", template, "a single {} and no other braces")

    def check_lengths(self, name: str, prompts: list[tuple[str, str | list]], first: str) -> Iterator[Finding]:
        """Warn of prompts that will be cut off, and refuse a data set in which every prompt is too long.

        `first` is the text of the first prompt. A text never has more tokens than bytes, so few texts are tokenized.
        """
        most = room(self._run)
        around = _bytes(first) - (_bytes(prompts[0][1]) if isinstance(prompts[0][1], str) else 0)
        # every list of messages goes through its template, which may refuse any of them
        rows = (row for row in prompts if not isinstance(row[1], str) or _bytes(row[1]) + around > most)
        cut = []
        while part := list(itertools.islice(rows, 64)):
            long = [text for text in self.texts(part) if _bytes(text) > most]
            if not self._run.use_ms:
                cut += (count for text in long if (count := self._tokens(text, most)) > most)
        of = f"of the {len(prompts)} prompts of {name} have more than the {most} tokens that responses leave them"
        if len(cut) == len(prompts):
            longer = self._run.data.max_len - most + max(cut)
            most_needed = f"{longer} for all of them"
            yield refusal("data.max_len", f"is too small: all {of}", self._run.data.max_len, most_needed)
        elif cut:
            message = f"the longest has {max(cut)}; their beginning is cut off, unless --data.max_len is larger"
            yield Note(f"{len(cut)} {of}; {message}")

    def _tokens(self, text: str, most: int) -> int:
        """Return the tokens of a text; of one that is far longer than `most`, a projection from its beginning."""
        if len(part := text[: _LONG * most]) < len(text) and (count := len(prompt_ids(self._tokenizer, part))) > most:
            return round(count * len(text) / len(part))
        return len(prompt_ids(self._tokenizer, text))

    def require_read(self, where: str, prompt: str | list, text: str) -> None:
        """Raise LineError if a chat template writes the `text` of a prompt for another prompt too."""
        if not self.format.chat:
            return
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        other = [turn | {"content": f"7 {turn['content']}"} for turn in turns]
        if self.texts([(where, other)]) == [text]:
            remedy = "a template that writes the messages, or --data.input_template"
            refuse(_CHAT, "has a template that leaves the prompt out: its text is always the same", True, remedy)


def special_tokens(model: str) -> tuple[bool, str]:
    """Return whether a tokenizer may put a BOS in front of texts, and its end token, from its files.

    Loading it takes seconds. False and "" for a hub model whose tokenizer is not downloaded yet.
    """
    config, tokenizer = _files(model, "tokenizer_config.json", "tokenizer.json")
    try:
        written = json.loads(Path(tokenizer).read_text(encoding="utf-8")) if tokenizer else {}
        settings = json.loads(Path(config).read_text(encoding="utf-8")) if config else {}
        begins = bool(settings.get("bos_token")) or _adds(written.get("post_processor") or {})
        end = settings.get("eos_token") or ""
        return begins, end if isinstance(end, str) else end["content"]
    except (ValueError, AttributeError, KeyError, TypeError):  # an unknown format: transformers decides
        return True, ""


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


@dataclass(frozen=True)
class ReadRows:
    """What is left of a data set after its rows were read and checked."""

    first: tuple[str, str, object]  # the place of its first row, the prompt as the policy reads it, and the label
    digests: list[bytes]  # of each row, for a run that resumes


def data(run: Run) -> Generator[Finding, None, dict[str, object] | None]:
    """Check every row, and try the reward on the first; read each data set once.

    Return the facts of the training rows for the fingerprint of a run that resumes; else None, as for data sets that
    only the trainer can read.
    """
    probabilities, names = run.data.prompt_probs, run.data.prompt_dataset.split(",")
    if probabilities is not None and (problem := _of_shares(probabilities.split(","), len(names))):
        yield run.refusal("data.prompt_probs", problem, "e.g. 0.7,0.3")
    if run.data.max_samples < 1:
        yield run.refusal("data.max_samples", "must be at least 1", "a positive number")
        return None
    try:
        room(run)
    except LineError as error:
        yield from error.refusals
    if run.data.label_key and run.data.label_key == run.data.input_key:
        yield run.refusal("data.label_key", "names the column of the prompts", "the answers' column, or no such flag")
    prompts = Prompts(run)
    sets: dict[tuple[str, str], ReadRows | None] = {}
    for flag, split_flag in (("data.prompt_dataset", "data.prompt_split"), ("eval.dataset", "eval.split")):
        for name in run.flags[flag].split(",") if run.flags[flag] else ():
            place = name.strip(), run.flags[split_flag]
            if place not in sets:
                sets[place] = None
                try:
                    sets[place] = yield from _data_set(run, flag, place[0], split_flag, prompts)
                except LineError as error:
                    yield from error.refusals
    if read := next(filter(None, sets.values()), None):
        yield from try_reward(run, *read.first)
    trained = [sets[name.strip(), run.data.prompt_split] for name in names]
    if not run.ckpt.load_enable or not all(trained):
        return None
    digests = blended([rows.digests for rows in trained], probabilities, run.train.seed)
    return of_digests(digests[: run.data.max_samples])


def _of_shares(texts: list[str], count: int) -> str | None:
    """Return why these cannot be the shares of `count` data sets."""
    if len(texts) != count:
        return f"must be one for each of {count} data sets"
    try:
        shares = [float(text) for text in texts]
    except ValueError:
        return "must be numbers"
    return None if min(shares) > 0 and abs(sum(shares) - 1) < _SUM else "must be above 0, and sum to 1"


def _data_set(
    run: Run, flag: str, name: str, split_flag: str, prompts: Prompts
) -> Generator[Finding, None, ReadRows | None]:
    """Check a data set and return what is left of it; None if only the trainer can read it."""
    keys = {key: run.flags[key] for key in ("data.input_key", "data.label_key") if run.flags[key] is not None}
    columns: dict[str, None] = {}
    filled: set[str] = set()
    lacking: dict[str, list[str]] = {key: [] for key in keys}
    rows: list[tuple[str, object]] = []
    digests: list[bytes] = []
    label: object = ""
    blind: list[str] = []
    labels: dict[str, tuple[str, object]] = {}  # by prompt, the first row with it and its label
    doubtful: dict[str, list[str]] = {
        "have another label than an earlier row with the same prompt": [],
        f"hold the end token {prompts.end}, behind which a model starts anew": [],
        "have a label that hardly any response equals; shear-prepare-data takes the answer out of a solution": [],
    }
    other_label, ended, worded = doubtful.values()
    # A rank whose micro-batch has no picture runs other collectives than the others, with every ZeRO stage.
    all_must_see = flag == "data.prompt_dataset" and _ranks_see_together(run)
    resumes = run.ckpt.load_enable
    with _errors_of(flag, split_flag):
        read = training_rows(name, run.flags[split_flag], run.use_ms, hub=resumes)
        if read is None:
            return None
        for where, row in read:
            columns.update(dict.fromkeys(row))
            if len(rows) >= run.data.max_samples:
                continue
            prompt = value_at(row, run.data.input_key)
            if problem := prompts.format.problem(prompt):
                lacking["data.input_key"].append(f"{where} {problem}")
            elif prompts.end and prompts.end in "\n".join([prompt] if isinstance(prompt, str) else texts_of(prompt)):
                ended.append(where)
            pictures = row.get(run.flags["data.image_key"])
            if all_must_see and not any(pictures if isinstance(pictures, list) else [pictures]):
                blind.append(where)
            if "data.label_key" in keys:
                value = label_at(row, keys["data.label_key"])
                if isinstance(value, dict):
                    filled.update(field for field, part in value.items() if part is not None)
                label = label if rows else value
                if run.reward.remote_url == "math" and isinstance(value, str) and (kind := doubt(value)):
                    worded.append(f"{where} ({kind})")
                if problem := _no_label(run, value):
                    lacking["data.label_key"].append(f"{where} {problem}")
                before = labels.setdefault(prompt if isinstance(prompt, str) else repr(prompt), (where, value))
                other_label += [f"{where} ({value!r:.40}, {before[0]} {before[1]!r:.40})"] * (before[1] != value)
            rows.append((where, prompt))
            if resumes:
                digests.append(row_digest(row, run.data.input_key, run.data.label_key))
    if not rows:
        refuse(flag, "has no rows", name, "a data set with at least one row")
    wrong = []
    for key in keys:
        wrong += _no_columns(key, keys[key], f"{name} (--{flag})", columns, filled)
    wrong += _incomplete(lacking, keys, len(rows), f"{name} (--{flag})")
    if blind:
        of = f"{len(blind)} of {len(rows)} rows of {name}: {_some(blind)}"
        remedy = "a data set with a picture in every row, or --actor.num_gpus_per_node 1: ranks have to see together"
        wrong.append(run.refusal("data.image_key", f"gives no picture in {of}", remedy))
    if wrong:
        raise LineError(*wrong)
    yield from _question_labels(run, name, columns)
    if flag == "data.prompt_dataset" and "," not in run.data.prompt_dataset:
        yield from _question_steps(run, len(rows))
    for what, places in doubtful.items():
        if places:
            yield Note(f"{len(places)} of {len(rows)} rows of {name} {what}: {_some(places)}")
    if run.data.max_images_per_prompt > 0:  # a vision model's processor makes the text
        return ReadRows((f"{rows[0][0]} of {name}", str(rows[0][1]), label), digests)
    (first,) = prompts.texts(rows[:1])
    prompts.require_read(*rows[0], first)
    yield from prompts.check_lengths(name, rows, first)
    return ReadRows((f"{rows[0][0]} of {name}", first, label), digests)


def _incomplete(lacking: dict[str, list[str]], keys: dict[str, object], rows: int, of: str) -> Iterator[Refusal]:
    """Refuse each key that gives no prompt, or no label, in some rows of a data set."""
    for key, problems in lacking.items():
        if problems:
            what = "prompt" if key == "data.input_key" else "label"
            problem = f"gives no {what} in {len(problems)} of {rows} rows of {of}: {_some(problems)}"
            yield refusal(key, problem, keys[key], f"a data set with a {what} in every row")


@contextmanager
def _errors_of(flag: str, split_flag: str) -> Iterator[None]:
    """Refuse the flag with which a data set cannot be read."""
    try:
        yield
    except SplitError as error:
        raise LineError(Refusal(split_flag, str(error))) from error
    except DataError as error:
        raise LineError(Refusal(flag, str(error))) from error
    except ValueError as error:
        raise LineError(Refusal("data.label_key", str(error))) from error


def _question_steps(run: Run, prompts: int) -> Iterator[Note]:
    """Warn of what happens every N steps and never comes, as the run has fewer."""
    steps = -(-prompts // run.rollout.batch_size) * run.train.num_episodes
    for flag in ("eval.steps", "ckpt.save_steps"):
        if run.flags[flag] > steps:
            yield Note(f"--{flag} {run.flags[flag]} never comes, as {prompts} prompts make {steps} of them")


def _some(places: list[str]) -> str:
    return "; ".join(places[:_SHOWN]) + "; ..." * (len(places) > _SHOWN)


def _ranks_see_together(run: Run) -> bool:
    """Return whether several ranks train on pictures; packed samples with pictures are refused elsewhere."""
    if run.flags.get("data.max_images_per_prompt", 0) <= 0 or run.ranks.get("actor", 1) == 1:
        return False
    return not (run.train.dynamic_batch_enable or run.ds.packing_samples or run.ds.ring_attn_size > 1)


def _no_columns(key: str, columns_key: str, of: str, columns: dict[str, None], filled: set[str]) -> Iterator[Refusal]:
    """Refuse columns that are not there, and those of several label columns that are null in every row.

    `columns` has those of the data set, `filled` the names of the label's fields with a value.
    """
    several = key == "data.label_key" and "," in columns_key and columns_key not in columns
    for name, column in (label_columns(columns_key) if several else {columns_key: columns_key}).items():
        if not {column, column.partition(".")[0]} & set(columns):
            remedy = f"--{key} with one of its columns{did_you_mean(column, columns)}: {', '.join(columns)}"
            yield refusal(key, f"is not a column of {of}", column, remedy)
        elif several and name not in filled:
            yield refusal(key, f"names a column without a value in any row of {of}", column, "columns with values")


def _no_label(run: Run, label: object) -> str | None:
    grader = GRADERS.get(run.reward.remote_url)
    if (problem := no_label(label)) or grader is None:
        return problem
    return "is empty" if label in ("", [], {}) else grader.label_problem(label)


def _question_labels(run: Run, name: str, columns: dict[str, None]) -> Iterator[Note]:
    seen = next((column for column in _LABELS if column in columns), None)
    if seen and not run.data.label_key and str(run.reward.remote_url).endswith(".py"):
        message = f"reward_func gets '' as every label, although {name} has a column {seen}"
        yield Note(f"without --data.label_key {message}; use --data.label_key {seen}")
