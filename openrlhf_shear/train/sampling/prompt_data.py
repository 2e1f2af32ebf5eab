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

_AT_ONCE = 64  # rows that go through the chat template together


# Prompt of a data set: (source, text, label, images, problem, digest). It is a plain tuple, since the garbage collector
# visits objects again and again. `source` is the column `datasource`, `text` is what the policy reads, and `problem` is
# the text without templates: the last user turn of a chat.
PromptRow = tuple[str, str, object, object, str, bytes]


class PromptRows(Dataset):
    """Data set of a run's training or evaluation prompts."""

    def __init__(self, rows: Iterable[PromptRow]):
        self.rows = list(rows)
        self.fingerprint = of_digests([digest for *_, digest in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[str, str, object, object]:
        return self.rows[index][:4]

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
        return {text: problem for _, text, _, _, problem, _ in self.rows}


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

    def rows(names: str, split: str) -> list[Iterator[PromptRow]]:
        return [_rows(name.strip(), split, strategy, tokenizer) for name in names.split(",")]

    sets = [list(each) for each in rows(data.prompt_dataset, data.prompt_split)]
    prompts, held_out = PromptRows(blended(sets, data.prompt_probs, train.seed)[: data.max_samples]), None
    if evaluation.dataset:
        whole = itertools.chain.from_iterable(rows(evaluation.dataset, evaluation.split))
        held_out = _loader(strategy, PromptRows(itertools.islice(whole, data.max_samples)))
    order = PromptOrder(len(prompts), train.seed)
    return Prompts(order, _loader(strategy, prompts, order), held_out)


def _loader(strategy, prompts: PromptRows, order: PromptOrder | None = None) -> DataLoader:
    workers = strategy.args.data.dataloader_num_workers
    return strategy.setup_dataloader(prompts, 1, True, False, prompts.collate_fn, sampler=order, num_workers=workers)


def _rows(name: str, split: str, strategy, tokenizer) -> Iterator[PromptRow]:
    """Yield the prompts of a data set, of its first --data.max_samples rows."""
    data = strategy.args.data
    prompt_format = PromptFormat(data.apply_chat_template, data.input_template)
    read = training_rows(name, split, strategy.args.use_ms, hub=True)
    if read is None:  # ModelScope's
        found = blending_datasets(name, None, strategy, dataset_split=split)
        read = ((f"row {number}", row) for number, row in enumerate(found, 1))
    read = itertools.islice(read, data.max_samples)
    while part := list(itertools.islice(read, _AT_ONCE)):
        for where, row in part:
            if problem := prompt_format.problem(value_at(row, data.input_key)):
                raise DataError(f"data.input_key {data.input_key}: {where} of {name} {problem}")
            if data.label_key is not None and (problem := no_label(label_at(row, data.label_key))):
                raise DataError(f"data.label_key {data.label_key}: {where} of {name} {problem}")
        for (_, row), text in zip(part, _texts(name, part, data, prompt_format, tokenizer), strict=True):
            source, images = row.get("datasource") or "default", row.get(data.image_key)
            label = "" if data.label_key is None else label_at(row, data.label_key)
            problem = value_at(row, data.input_key)
            if not isinstance(problem, str):
                problem = next((turn["content"] for turn in reversed(problem) if turn["role"] == "user"), text)
            yield source, text, label, images, problem, row_digest(row, data.input_key, data.label_key)


def _texts(
    name: str, part: list[tuple[str, dict]], data: Namespace, prompt_format: PromptFormat, tokenizer
) -> list[str]:
    if prompt_format.chat and data.max_images_per_prompt > 0:  # <image> in a text stands for a picture
        return [preprocess_data(row, None, data.input_key, None, tokenizer.apply_chat_template)[0] for _, row in part]
    try:
        return prompt_format.texts(tokenizer, [value_at(row, data.input_key) for _, row in part])
    except Exception as error:  # a chat template is a program, and can raise anything
        if len(part) == 1:
            why = f"{part[0][0]} of {name}: {type(error).__name__}: {error}"
            raise DataError(f"data.input_key {data.input_key}: {why}") from error
    return [text for each in part for text in _texts(name, [each], data, prompt_format, tokenizer)]
