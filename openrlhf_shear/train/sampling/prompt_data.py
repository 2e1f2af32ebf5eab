"""Prompts of a run: rows of its files (`data.training_rows`), formatted for the policy (`data.prompts`).

The order, shares and limits of several data sets are OpenRLHF's.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from openrlhf.datasets.prompts_dataset import preprocess_data
from openrlhf.datasets.utils import blending_datasets
from torch.utils.data import DataLoader, Dataset

from openrlhf_shear.data.columns import label_at, no_label, value_at
from openrlhf_shear.data.files import DataError
from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.data.training_rows import CONTENTS, blended, of_rows, training_rows
from openrlhf_shear.train.sampling.order import PromptOrder


@dataclass(frozen=True)
class PromptRow:
    """Prompt of a data set, with its label, images and source."""

    source: str  # column `datasource`, by which evaluations are reported
    text: str  # the text that the policy reads, with special tokens
    label: object  # the file's value; "" without --data.label_key
    images: object  # None for none
    problem: str  # the problem without templates: the last user turn of a chat


class PromptRows(Dataset):
    """Data set of a run's training or evaluation prompts."""

    def __init__(self, rows: Sequence[PromptRow], fingerprint: dict[str, object]):
        """
        Args:
            rows: the prompts.
            fingerprint: the fingerprint of the data rows (`data.training_rows`).
        """
        self.rows, self.fingerprint = rows, fingerprint

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[str, dict]], args, tokenizer) -> Self:
        """Make the prompts of data rows, each with its place in words."""
        fingerprint = of_rows((row for _, row in rows), args.data.input_key, args.data.label_key)
        return cls([_prompt_row(where, row, args, tokenizer) for where, row in rows], fingerprint)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[str, str, object, object]:
        row = self.rows[index]
        return row.source, row.text, row.label, row.images

    @staticmethod
    def collate_fn(items: Sequence[tuple]) -> tuple[list, ...]:
        """Collate rows into lists of data sources, texts, labels and images."""
        return tuple(map(list, zip(*items, strict=True)))

    @property
    def digest(self) -> str:
        """Digest of the prompts, their labels and their order."""
        return self.fingerprint[CONTENTS]

    @property
    def problems(self) -> dict[str, str]:
        """Problem without templates, by the text that the policy reads."""
        return {row.text: row.problem for row in self.rows}


@dataclass(frozen=True)
class Prompts:
    """Prompts of a run, in the loaders that OpenRLHF's samples generator reads."""

    order: PromptOrder  # of `training`: which prompts its next iteration has
    training: DataLoader
    evaluation: DataLoader | None  # None without --eval.dataset


def read_prompts(strategy, tokenizer) -> Prompts:
    """Read the data as upstream does, with an order of the training prompts that only the seed decides.

    Raises:
        DataError: a data set cannot be read, or has a row without a prompt or with an invalid label.
    """
    data, evaluation, train = strategy.args.data, strategy.args.eval, strategy.args.train
    sets = [_rows(name, data.prompt_split, strategy, data.max_samples) for name in data.prompt_dataset.split(",")]
    rows = blended(sets, data.prompt_probs, train.seed)[: data.max_samples]
    prompts, held_out = PromptRows.from_rows(rows, strategy.args, tokenizer), None
    if evaluation.dataset:
        sets = [_rows(name, evaluation.split, strategy) for name in evaluation.dataset.split(",")]
        rows = list(itertools.islice(itertools.chain.from_iterable(sets), data.max_samples))
        held_out = _loader(strategy, PromptRows.from_rows(rows, strategy.args, tokenizer))
    order = PromptOrder(len(prompts), train.seed)
    return Prompts(order, _loader(strategy, prompts, order), held_out)


def _loader(strategy, prompts: PromptRows, order: PromptOrder | None = None) -> DataLoader:
    workers = strategy.args.data.dataloader_num_workers
    return strategy.setup_dataloader(prompts, 1, True, False, prompts.collate_fn, sampler=order, num_workers=workers)


def _rows(name: str, split: str, strategy, most: int | None = None) -> list[tuple[str, dict]]:
    """Return (where, row) for the first `most` rows of a data set."""
    name = name.strip()
    read = training_rows(name, split, strategy.args.use_ms, hub=True)
    if read is None:  # ModelScope's
        found = blending_datasets(name, None, strategy, dataset_split=split)
        read = ((f"row {number}", row) for number, row in enumerate(found, 1))
    return [(f"{where} of {name}", row) for where, row in itertools.islice(read, most)]


def _prompt_row(where: str, row: dict, args, tokenizer) -> PromptRow:
    data = args.data
    prompt_format = PromptFormat(data.apply_chat_template, data.input_template)
    prompt, label = value_at(row, data.input_key), "" if data.label_key is None else label_at(row, data.label_key)
    if problem := prompt_format.problem(prompt):
        raise DataError(f"data.input_key {data.input_key}: {where} {problem}")
    if data.label_key is not None and (problem := no_label(label)):
        raise DataError(f"data.label_key {data.label_key}: {where} {problem}")
    if prompt_format.chat and data.max_images_per_prompt > 0:  # <image> in a text stands for a picture
        text, _ = preprocess_data(row, None, data.input_key, None, tokenizer.apply_chat_template)
    else:
        try:
            text = prompt_format.text(tokenizer, prompt)
        except Exception as error:  # a chat template is a program, and can raise anything
            raise DataError(f"data.input_key {data.input_key}: {where}: {type(error).__name__}: {error}") from error
    images = row.get(data.image_key)
    return PromptRow(row.get("datasource") or "default", text, label, images, _problem(prompt, text))


def _problem(prompt: str | list[dict], text: str) -> str:
    if isinstance(prompt, str):
        return prompt
    return next((turn["content"] for turn in reversed(prompt) if turn["role"] == "user"), text)
