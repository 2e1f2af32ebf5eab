"""Responses by hand, a random model with a byte-level tokenizer, and a reader, for the tests of offline placement."""

import json
from pathlib import Path

import bos_tokenizers
from transformers import AutoTokenizer

from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.lab.offline.reading import Reader
from openrlhf_shear.lab.offline.responses import Response
from openrlhf_shear.tasks.arithmetic.policy import build_qwen2, save

PROBLEM, OTHER = "Ann has 3 pens and buys 4. How many?", "2 times 6, less 5?"
RESPONSES = (
    Response(PROBLEM, ("She has 3.", "3 + 4 = 7 pens.", "It is 7."), True, -1),
    Response(PROBLEM, ("She has 3 and buys 4.", "So 3 + 4 = 8.", "The answer is 8."), False, 1),
    Response(PROBLEM, ("4 + 3 = 7",), True, None),
    Response(PROBLEM, ("3 x 4", "= 12"), False, None),
    Response(OTHER, ("2 x 6 = 12", "12 - 5 = 7", "7"), True, -1),
    Response(OTHER, ("2 x 6 = 14", "14 - 5 = 9"), False, 0),
    Response(OTHER, ("First 2 x 6 = 12.", "Then 12 - 5 = 6 or so.", "6"), False, 1),
    Response("Alone?", ("No.", "It is 1 = 1."), True, -1),
)


def as_row(response: Response) -> dict:
    names = "problem", "steps", "correct", "label"
    return {name: getattr(response, name) for name in names}


def write_rows(path: Path, rows=None) -> Path:
    rows = [as_row(response) for response in RESPONSES] if rows is None else rows
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_model(folder: Path, chat: str | None = bos_tokenizers.CHAT) -> Path:
    bos_tokenizers.write_tokenizer(folder, "nothing", chat)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return save(build_qwen2(tokenizer, seed=0, layers=2, width=64), tokenizer, folder)


def reader(model: Path, folder: Path, batch_size: int = 4) -> Reader:
    return Reader.load(str(model), PromptFormat(chat=True), "float32", "cpu", False, folder, batch_size)
