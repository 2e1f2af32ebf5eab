"""Shared parts of the scripts of this folder: command lines, clocks, the machine's description, tables, JSON files."""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from openrlhf_shear.report.provenance import package_version, provenance

_PACKAGES = ("triton", "POT", "geomloss")  # beside those of `provenance`
_ROOT = Path(__file__).parents[1]
_QUIET = 0.7  # load average above which times are rough


def script_parser(description: str, **output: object) -> argparse.ArgumentParser:
    """Return a parser that shows a script's docstring unchanged, and has --output; `output` overrides its settings."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    settings = {"type": Path, "metavar": "FILE.json", "help": "write the numbers to this JSON file"}
    parser.add_argument("--output", **settings | output)
    return parser


def clock(device: str = "cpu") -> float:
    """Return seconds, once the device has done all queued work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def best_times(
    jobs: dict[str, Callable], rounds: int, at_least: float = 0.5, device: str = "cpu", quiet: bool = False
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the best time of each job, and each round's best; the jobs take turns.

    Args:
        jobs: functions without arguments.
        at_least: seconds to repeat a job for in a round; it runs at least once.
        quiet: no progress bar.
    """
    every: dict[str, list[float]] = {name: [] for name in jobs}
    with tqdm(total=rounds * len(jobs), leave=False, disable=quiet) as bar:
        for _ in range(rounds):
            for name, job in jobs.items():
                bar.set_description(name)
                best, begin = float("inf"), clock(device)
                while True:
                    start = clock(device)
                    job()
                    end = clock(device)
                    best = min(best, end - start)
                    if end - begin >= at_least:
                        break
                every[name].append(best)
                bar.update()
    return {name: min(times) for name, times in every.items()}, every


def environment() -> dict:
    """Return where, when and how the numbers were made; warn if the machine is busy."""
    load = os.getloadavg()[0]
    if load > _QUIET:
        print(f"load average {load:.1f} at the start: other work is running here, so times and ratios are rough")
    found, more = provenance(), {name: package_version(name) for name in _PACKAGES}
    found |= {"versions": found["versions"] | more, "threads": torch.get_num_threads(), "load_average_at_start": load}
    return found | {"time": datetime.now(UTC).isoformat(timespec="seconds")}


def write_json(path: Path | None, found: dict) -> None:
    """Write results and say so; do nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(f"{path}: written")


def free_port() -> int:
    """Return a port of this machine that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def arithmetic_job(run: Path, log: IO, steps: int, *words: str, **variables: str) -> subprocess.Popen:
    """Start the job of `make run`, with more flags and variables; its output goes to `log`."""
    variables = {"RUN": str(run), "STEPS": str(steps), "PYTHONPATH": str(_ROOT)} | variables
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = [_ROOT / "examples/scripts/train_shear_arithmetic.sh", *words]
    return subprocess.Popen(line, env=os.environ | variables, stdout=log, stderr=log, cwd=_ROOT)


def print_table(title: str, rows: list[dict], columns: dict[str, str]) -> None:
    """Print rows; `columns` maps a key to a heading. Missing and None are blank, booleans are yes and NO."""
    table = Table(title=title, title_justify="left")
    for i, heading in enumerate(columns.values()):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(row.get(key)) for key in columns))
    console = Console()
    Console(width=console.width if console.is_terminal else 170, markup=False).print(table)


def _text(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
