"""The downloaded data sets, a row of each benchmark's layout, and folders that hold such rows."""

import gzip
import json
from pathlib import Path

import pytest
from cases import table

from openrlhf_shear.sampling.benchmarks import BENCHMARKS, load_questions

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the downloaded data sets are not on this machine")

ROWS = table("sampling", "ROWS")
FUNCTION = ROWS.pop("livecodebench_function")
HUMANEVAL, MBPP, STDIN = (ROWS[name] for name in ("humaneval", "mbpp", "livecodebench"))
OLYMPIAD = ROWS["olympiadbench"] | {"question": "Which?"}


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
