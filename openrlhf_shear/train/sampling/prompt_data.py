"""Prompts of a run: rows of its files (`data.training_rows`), formatted for the policy (`data.prompts`).

The order, shares and limits of several data sets are OpenRLHF's.
"""

import itertools
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from openrlhf.datasets.prompts_dataset import preprocess_data
from openrlhf.datasets.utils import blending_datasets
from torch.utils.data import DataLoader, Dataset

from openrlhf_shear.data.columns import label_at, no_label, value_at
from openrlhf_shear.data.files import DataError
from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.data.training_rows import CONTENTS, blended, of_digests, row_digest, training_rows
from openrlhf_shear.train.sampling.order import PromptOrder


@dataclass(frozen=True, slots=True)
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

    def rows(names: str, split: str) -> list[Iterator[tuple[PromptRow, bytes]]]:
        return [_rows(name.strip(), split, strategy, tokenizer) for name in names.split(",")]

    sets = [list(itertools.islice(each, data.max_samples)) for each in rows(data.prompt_dataset, data.prompt_split)]
    prompts, held_out = _prompts(blended(sets, data.prompt_probs, train.seed)[: data.max_samples]), None
    if evaluation.dataset:
        whole = itertools.chain.from_iterable(rows(evaluation.dataset, evaluation.split))
        held_out = _loader(strategy, _prompts(itertools.islice(whole, data.max_samples)))
    order = PromptOrder(len(prompts), train.seed)
    return Prompts(order, _loader(strategy, prompts, order), held_out)


def _prompts(rows: Iterable[tuple[PromptRow, bytes]]) -> PromptRows:
    rows = list(rows)
    return PromptRows([prompt for prompt, _ in rows], of_digests([digest for _, digest in rows]))


def _loader(strategy, prompts: PromptRows, order: PromptOrder | None = None) -> DataLoader:
    workers = strategy.args.data.dataloader_num_workers
    return strategy.setup_dataloader(prompts, 1, True, False, prompts.collate_fn, sampler=order, num_workers=workers)


def _rows(name: str, split: str, strategy, tokenizer) -> Iterator[tuple[PromptRow, bytes]]:
    """Return the prompt and the digest of each row of a data set."""
    data = strategy.args.data
    prompt_format = PromptFormat(data.apply_chat_template, data.input_template)
    read = training_rows(name, split, strategy.args.use_ms, hub=True)
    if read is None:  # ModelScope's
        found = blending_datasets(name, None, strategy, dataset_split=split)
        read = ((f"row {number}", row) for number, row in enumerate(found, 1))
    for where, row in read:
        prompt = _prompt_row(f"{where} of {name}", row, data, prompt_format, tokenizer)
        yield prompt, row_digest(row, data.input_key, data.label_key)


def _prompt_row(where: str, row: dict, data: Namespace, prompt_format: PromptFormat, tokenizer) -> PromptRow:
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
