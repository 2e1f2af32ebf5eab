"""Time and memory of the span search on long responses, and their growth up to a hundred million pairs of spans.

    python benchmarks/long_responses.py --output benchmarks/results/long_responses.json
    python benchmarks/long_responses.py --lengths 1000 2000          # a smoke test

Each row is a separate process that searches one group of G rollouts of T tokens. The states come from the tests' sample
of real rollouts. Each rollout's tokens are in another order of passages of 20, and each state is moved by a tenth of
its norm. A random projection to 64 dimensions keeps distances. So the states are long, and neither all alike nor
all far apart. A model's hidden size changes only the products.

- time: of the search and its stages, states in memory to distances, once
- memory: the peak of the process's resident memory above that with the states and their copy for each side

Legend: T tokens of a rollout, P pairs of spans.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from measure import environment, print_table, script_parser, write_json
from memory import Peak, resident
from safetensors.torch import load_file
from search_stages import STAGES, staged
from tqdm import tqdm

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.config.spec import SEARCH_BYTES
from openrlhf_shear.kernels.backends import choose_backend
from openrlhf_shear.transport import Spans, make_distance, search_spans

SAMPLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "smollm2_states.safetensors"
PASSAGE, MOVED = 20, 0.1
ROLLOUTS, HIDDEN = 16, 64  # half of the rollouts are correct
MOST_SPANS = 256  # of a second run of the last two lengths
COLUMNS = {
    "tokens": "T", "spans": "most spans", "pairs": "pairs", "seconds": "s", "processor_s": "processor s",
    "kernel_s": "kernel", "bounds_s": "bounds", "solves_s": "solves", "us_per_pair": "us a pair", "solved": "solved",
    "memory_gib": "GiB",
}  # fmt: skip


def rollouts(tokens: int) -> list[torch.Tensor]:
    """Return the rollouts, (T, `HIDDEN`) float32 each."""
    sample = [states.float() for states in load_file(SAMPLE).values()]
    generator = torch.Generator().manual_seed(0)
    projection = torch.randn(sample[0].shape[1], HIDDEN, generator=generator) / HIDDEN**0.5
    found = []
    for i in range(ROLLOUTS):
        real = sample[i % len(sample)] @ projection
        begins = torch.randint(len(real) - PASSAGE, (-(-tokens // PASSAGE),), generator=generator)
        states = real[(begins[:, None] + torch.arange(PASSAGE)).flatten()[:tokens]]
        noise = torch.randn(states.shape, generator=generator) / HIDDEN**0.5
        found.append(states + MOVED * states.norm(dim=1, keepdim=True) * noise)
    return found


def measured(tokens: int, most: int) -> dict:
    """Measure a row in this process, with at most so many spans a rollout; 0 for all."""
    config = ShearConfig(max_spans=most)
    states = rollouts(tokens)
    norm = float(torch.cat([h.double().norm(dim=1) for h in states]).mean())
    sides = [Spans.pack(states[i::2], config, norm) for i in range(2)]
    backend = choose_backend("auto", "cpu", config.window)

    def search(a: Spans, b: Spans):
        distance = make_distance(config.distance, config.epsilon_rel, a, b, backend)
        return search_spans(a, b, staged(spent, distance), SEARCH_BYTES)

    spent = dict.fromkeys(STAGES[:-2], 0.0)
    search(*(side.part(slice(0, 5)) for side in sides))  # compiles
    spent.update(dict.fromkeys(spent, 0.0))
    with Peak() as peak:
        before, begin, processor = resident(), time.perf_counter(), time.process_time()
        found = search(*sides)
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    pairs = len(sides[0]) * len(sides[1])
    return {
        "tokens": tokens, "spans": most, "pairs": pairs, "seconds": seconds, "processor_s": processor,
        "us_per_pair": 1e6 * seconds / pairs, "solved": found.solved_fraction,
        "memory_gib": (peak.bytes - before) / 2**30, **{f"{stage}_s": s for stage, s in spent.items()},
    }  # fmt: skip


def main() -> None:
    parser = script_parser(__doc__)
    lengths = [1000, 2000, 4000, 8000, 10000, 16000, 32768]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths, metavar="T")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(*args.one)))
        return
    rows = []
    runs = [(length, 0) for length in args.lengths] + [(length, MOST_SPANS) for length in args.lengths[-2:]]
    for run in tqdm(runs, desc="groups"):
        line = [sys.executable, __file__, "--one", *map(str, run)]
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print_table(f"G = {ROLLOUTS}, one search in {SEARCH_BYTES / 2**30:g} GiB", rows, COLUMNS)
        fits = exponents(rows)
        if args.output:  # written after each row: the next may take half an hour
            write_json(args.output, {"environment": environment(), "rows": rows, "exponents": fits})
    for name, fit in fits.items():
        print(f"time ~ pairs^p ({name}): p = {fit:.2f}")


def exponents(rows: list[dict]) -> dict[str, float]:
    """Return p of processor time ~ pairs^p, whole and of each stage, over the rows with all spans; needs two rows."""
    whole = [row for row in rows if not row["spans"]]
    if len(whole) < 2:
        return {}
    times = {"all": "processor_s"} | {stage: f"{stage}_s" for stage in STAGES[:-2]}
    logs = {what: np.log([row[what] for row in whole]) for what in ("pairs", *times.values())}
    return {name: float(np.polyfit(logs["pairs"], logs[time], 1)[0]) for name, time in times.items()}


if __name__ == "__main__":
    main()
