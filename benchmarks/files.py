"""Processor time and memory of what reads or writes a row for each prompt, rollout or logged value.

    python benchmarks/files.py --output benchmarks/results/files.json        # half an hour
    python benchmarks/files.py --most 10000                                  # a smoke test

Prompts are short questions with a number for a label, and the maths grader checks the labels. A rollout has 75 tokens,
weights, spans and heatmaps, and its run 2,000 rollouts a step. A logged value is a point of two runs, half of them
evaluations. A process makes the files, and another one reads them; memory is the growth of its largest resident size.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import environment, print_table, script_parser, write_json

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "unit" / room) for room in ("", "sampling")]

GROUP, TOKENS, A_STEP, SERIES = 8, 75, 2_000, 8
CHAT = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}<|assistant|>"


def questions(rows: int, messages: bool = False) -> Iterator[dict]:
    for row in range(rows):
        text = f"What is {row} plus {7 * row % 1000}? Give the answer alone, {row % 13} times, please."
        prompt = [{"role": "user", "content": text}] if messages else text
        yield {"question": prompt, "answer": str(row + 7 * row % 1000)}


def write_prompts(rows: int, kind: str, messages: bool) -> None:
    path = Path(f"rows.{kind}")
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(questions(rows))), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in questions(rows, messages)))


def preflight(rows: int, kind: str, chat: bool) -> Callable[[], object]:
    """Check all rows before a run starts."""
    from command_lines import write_tokenizer

    from openrlhf_shear.cli.train_ppo_ray import examine
    from openrlhf_shear.preflight import rows as checks
    from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

    shutil.copytree(POLICY_DIR, "model")
    write_tokenizer(Path("model"))
    Path("model/chat_template.jinja").write_text(CHAT)
    Path("first.jsonl").write_text(json.dumps(next(questions(1))))
    flags = ["--actor.model_name_or_path", "model", "--data.max_len", "512", "--reward.remote_url", "math"]
    flags += ["--data.prompt_dataset", "first.jsonl", "--data.input_key", "question", "--data.label_key", "answer"]
    run = examine([*flags, "--data.max_samples", str(rows), *["--data.apply_chat_template"] * chat]).run
    run = run.with_flags({**run.flags, "data.prompt_dataset": f"rows.{kind}"})
    return lambda: [*checks.data(run)]


def trainer(rows: int, kind: str, chat: bool) -> Callable[[], object]:
    """Make the prompts of the trainer."""
    import openrlhf_on_cpu  # noqa: F401
    from bos_tokenizers import write_tokenizer
    from test_prompts import Strategy, arguments
    from transformers import AutoTokenizer

    from openrlhf_shear.train.sampling.prompt_data import read_prompts

    args = arguments(f"rows.{kind}", chat, None)
    args.data.max_samples, args.eval.dataset = rows, None
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer(Path("tokenizer"), "begins", CHAT if chat else None))
    return lambda: read_prompts(Strategy(args), tokenizer)


def write_run(rows: int) -> None:
    import rollout_rows

    from openrlhf_shear.rollouts.record import write_rollouts

    size = min(rows, A_STEP)
    step_rows = rollout_rows.long_groups(size // GROUP, GROUP, TOKENS, window=20, stride=10)
    for step in range(1, rows // size + 1):
        settings = rollout_rows.SETTINGS | {"step": step, "window": 20, "stride": 10}
        write_rollouts(f"run/step{step:06d}.parquet", step_rows, settings)


def rollout_pages(limit: int | None) -> Callable[[], object]:
    """Make the pages of a run."""
    from openrlhf_shear.rollouts.page.page import write_pages

    return lambda: write_pages(Path("run"), Path("page.html"), limit=limit)


def write_logs(rows: int) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for seed in (0, 1):
        with SummaryWriter(f"runs/{seed}") as log:
            for step in range(1, rows // 2 // SERIES + 1):
                for tag in ("rollout/reward_mean", "timing/step_total", "rollout/length", "actor/kl"):
                    log.add_scalar(f"train/{tag}", step % 7 / 10, step)
                for tag in ("suite/math500", "suite/aime24", "suite_problems/math500", "suite_problems/aime24"):
                    log.add_scalar(f"eval/{tag}", step % 10 / 10, step)
        facts = {"method": "shear", "model": "m", "task": "math", "seed": seed, "group": 8}
        Path(f"runs/{seed}/run.json").write_text(json.dumps(facts))


def report() -> Callable[[], object]:
    """Make the report of two runs."""
    import matplotlib.pyplot  # noqa: F401

    from openrlhf_shear.cli.report import main

    return lambda: main(["runs/0", "runs/1", "--output", "report"])


# title -> what writes the files of a number of rows; what returns the function to measure; the most rows
JOBS: dict[str, tuple[Callable, Callable, int]] = {
    f"{who.__name__}, {title}": (
        lambda rows, kind=kind, chat=chat: write_prompts(rows, kind, chat),
        lambda rows, who=who, kind=kind, chat=chat: who(rows, kind, chat),
        1_000_000,
    )
    for who in (preflight, trainer)
    for title, kind, chat in (("JSONL", "jsonl", False), ("parquet", "parquet", False), ("messages", "jsonl", True))
}
JOBS["shear-rollouts"] = (write_run, lambda rows: rollout_pages(None), 100_000)
JOBS["shear-rollouts --limit 2"] = (write_run, lambda rows: rollout_pages(2), 100_000)
JOBS["shear-report"] = (write_logs, lambda rows: report(), 100_000)


def prepare(job: str, rows: int, folder: str) -> None:
    with contextlib.chdir(folder):
        JOBS[job][0](rows)


def measured(job: str, rows: int, folder: str) -> dict:
    """Measure a job in this process, which must have done nothing before."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        work = JOBS[job][1](rows)
        before, started = _peak(), time.process_time()
        work()
        seconds, megabytes = time.process_time() - started, _peak() - before
        page = Path("page.html")
        first = page.stat().st_size / 1e6 if page.exists() else None
    row = {"job": job, "rows": rows, "seconds": seconds, "microseconds_a_row": 1e6 * seconds / rows}
    return row | {"peak_megabytes": megabytes, "kilobytes_a_row": 1e3 * megabytes / rows, "first_page_megabytes": first}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="rows of the largest measurement (default 1000000)")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help=argparse.SUPPRESS)
    args = parser.parse_args()
    found = {"environment": environment()}
    sizes = [
        (job, 10**power) for job in args.jobs for power in (3, 4, 5, 6) if 10**power <= min(args.most, JOBS[job][2])
    ]
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                pool.apply(prepare, (*size, folder))
                rows.append(pool.apply(measured, (*size, folder)))
    columns = {"job": "what", "rows": "rows", "seconds": "s", "microseconds_a_row": "us a row"}
    columns |= {"peak_megabytes": "MB more", "kilobytes_a_row": "KB a row", "first_page_megabytes": "MB, first page"}
    print_table("files by their number of rows", rows, columns)
    write_json(args.output, found | {"rows": rows})


if __name__ == "__main__":
    main()
