"""The downloaded data sets, a row of each benchmark's layout, and folders that hold such rows."""

import gzip
import json
from pathlib import Path

import pytest

from openrlhf_shear.sampling.benchmarks import BENCHMARKS, load_questions

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the downloaded data sets are not on this machine")

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n"
    '    """ Add them up.\n    >>> total([1, 2])\n    3\n    """\n',
    "entry_point": "total",
    "test": "def check(candidate):\n    inputs = [[[1, 2]]]\n    assert candidate(*inputs[0]) == 3\n",
}
MBPP = {
    "task_id": 2,
    "prompt": "Write a function to add two numbers. https://example.org/add-two-numbers/",
    "test_imports": "[]",
    "test_list": "['assert add(1, 2) == 3', 'assert add(0, 0) == 0']",
    "test": "assert add(1, 2) == 3\nassert add(10, 20) == 30\n",
}
STDIN = {
    "question_id": "abc_a",
    "question_content": "Print the sum of $a$ and $b$.\n1 <= a, b <= 10^{9}\n",
    "starter_code": "",
    "contest_date": "2025-02-01T00:00:00",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "4 5\n", "output": "9\n", "testtype": "stdin"}]),
    "metadata": "{}",
}
FUNCTION = {
    "question_id": "3001",
    "question_content": "Return the pair, swapped.",
    "starter_code": "class Solution:\n    def swap(self, pair: List[int], word: str) -> List[int]:\n        ",
    "contest_date": "2025-05-31T00:00:00",
    "public_test_cases": json.dumps([{"input": '[1, 2]\n"a\u2028b"', "output": "[2, 1]", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": '[3, 4]\n""', "output": "[4, 3]", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "swap"}),
}
OLYMPIAD = {"id": 7, "question": "Which?", "final_answer": ["$1$,$2$"], "is_multiple_answer": True, "error": None}
ROWS = {
    **{name: {"id": 3, "problem": " What is $1 + {1}$?\n", "answer": "023"} for name in ("aime24", "aime25")},
    "amc23": {"id": 0, "question": "What is $1 + {1}$?", "answer": 27.0},
    "math500": {"unique_id": "test/a/1.json", "problem": "What is $1 + {1}$?", "answer": "2"},
    "olympiadbench": {**OLYMPIAD, "question": "What is $1 + {1}$?"},
    "gsm8k": {"question": "What is $1 + {1}$?", "answer": "It is <<1+1=2>>2.\n#### 1,002"},
    **{name: HUMANEVAL for name in ("humaneval", "humaneval+")},
    **{name: MBPP for name in ("mbpp", "mbpp+")},
    "livecodebench": STDIN,
}


def write(folder: Path, name: str, *rows: dict) -> Path:
    """These rows as the first file that a benchmark is looked for under."""
    path = folder / BENCHMARKS[name].files[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def load(folder: Path, name: str, *rows: dict, limit: int | None = None):
    write(folder, name, *rows)
    return load_questions(BENCHMARKS[name], folder, limit)
