"""The time that ranks wait for each other's credit, simulated with the fork's own schedule, before and after.

    python benchmarks/schedule.py --output schedule.json
    python benchmarks/schedule.py --fit DATA/math_train/math_train_7500.jsonl.gz   # fit the lengths' distribution again

A step has 128 groups. Its forward passes are dealt to the ranks as in training (`plan_micro_batches`, dynamic batches).
They are collectives: in each slot all ranks wait for the slowest. The table compares three ways to place the credit
stage, in units of an even share of its whole work:

- in the passes: every group is weighed in the pass that completes it (as the fork did until now)
- at the owner: after the passes, on the rank that made the group's rollouts
- shared: after the passes, by `share_credit`, large groups in parts; also with the transfer of moved states

Lengths are lognormal within each level of MATH, as the tokens of its solutions are (`--fit`). They are scaled so that
the mean over levels is a third of the limit, and cut there. The share of correct rollouts is assumed for each level.
Times are those of a 7B model: 2 x 7.6e9 FLOP a token at 400 TFLOP/s. A million span pairs take `--per-million` seconds,
and states of 3584 bfloat16 numbers move at 10 GB/s.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from gold_programs import json_lines
from measure import environment, print_table, script_parser, write_json
from tqdm import tqdm

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.train.experience.schedule import plan_micro_batches, share_credit

# level of MATH: mean and deviation of log(tokens), share of its problems, share of correct rollouts (assumed)
LEVELS = {1: (3.98, 0.64, 0.075, 0.9), 2: (4.31, 0.66, 0.180, 0.8), 3: (4.61, 0.64, 0.212, 0.65)}
LEVELS |= {4: (4.85, 0.65, 0.225, 0.5), 5: (5.28, 0.63, 0.307, 0.3)}
GROUPS, STRIDE = 128, ShearConfig().stride
TOKEN_SECONDS = 2 * 7.6e9 / 400e12
STATE_SECONDS = 3584 * 2 / 10e9  # a token
PASS_TOKENS = 16384


def main() -> None:
    args = _arguments()
    if args.fit:
        print(json.dumps(fit(args.fit)))
        return
    rows = []
    for limit in (3_000, 8_000, 32_000):
        for group_size in (8, 16):
            for ranks in (8, 32, 128):
                trials = [
                    simulate(np.random.default_rng(seed), limit, group_size, ranks, args.per_million)
                    for seed in tqdm(range(args.steps), f"{limit} tokens, G {group_size}, {ranks} ranks", leave=False)
                ]
                mean = {name: float(np.mean([trial[name] for trial in trials])) for name in trials[0]}
                rows.append({"tokens": limit, "G": group_size, "ranks": ranks} | mean)
    columns = {"tokens": "tokens", "G": "G", "ranks": "ranks", "even": "even share [s]"}
    columns |= {
        "in the passes": "in the passes",
        "at the owner": "at the owner",
        "shared": "shared",
        "with transfers": "with transfers",
    }
    columns |= {"moved": "groups moved", "forward": "forward [s]", "before": "experience before", "after": "and after"}
    print_table("credit in even shares; experience making in forward passes without credit", rows, columns)
    if args.output:
        write_json(args.output, {"environment": environment("cpu"), "per million": args.per_million, "rows": rows})


def simulate(rng: np.random.Generator, limit: int, group_size: int, ranks: int, per_million: float) -> dict:
    """Simulate one step as the module describes."""
    lengths, right = drawn(rng, limit, group_size)
    flat = [int(n) for group in lengths for n in group]
    schedule = plan_micro_batches(flat, group_size, ranks, max_tokens=max(PASS_TOKENS, limit))
    sides = [
        [int(group[mask].sum()) // STRIDE for mask in (good, ~good)] for group, good in zip(lengths, right, strict=True)
    ]
    work = [per_million * a * b / 1e6 for a, b in sides]
    even = sum(work) / ranks
    tokens = [sum(flat[i] for i in batch) * TOKEN_SECONDS for batch in schedule.micro_batches]
    in_pass = [0.0] * len(tokens)
    left = [group_size] * GROUPS
    for number, batch in enumerate(schedule.micro_batches):
        for i in batch:
            left[i // group_size] -= 1
            if not left[i // group_size]:
                in_pass[number] += work[i // group_size]
    slots = schedule.slots
    each = len(slots) // ranks
    forward = joint = 0.0
    for k in range(each):
        now = [slots[rank * each + k] for rank in range(ranks)]
        forward += max(tokens[slot.micro_batch] for slot in now)
        joint += max(tokens[slot.micro_batch] + (0 if slot.is_filler else in_pass[slot.micro_batch]) for slot in now)
    alone, loads, owned, moved = [0.0] * ranks, [0.0] * ranks, [0.0] * ranks, 0
    tolls = [int(group.sum()) * STATE_SECONDS for group in lengths]
    for rank, units in enumerate(share_credit(work, schedule.owners, ranks, splits=True, tolls=tolls)):
        foreign = {group for group, _, _ in units if schedule.owners[group] != rank}
        alone[rank] = sum(work[group] / parts for group, _, parts in units)
        loads[rank] = alone[rank] + sum(tolls[group] for group in foreign)
        moved += len(foreign)
    for group, owner in enumerate(schedule.owners):
        owned[owner] += work[group]
    return {
        "even": even,
        "in the passes": (joint - forward) / even,
        "at the owner": max(owned) / even,
        "shared": max(alone) / even,
        "with transfers": max(loads) / even,
        "largest group": max(work) / even,
        "moved": moved,
        "forward": forward,
        "before": joint / forward,
        "after": (forward + max(loads)) / forward,
    }


def drawn(rng: np.random.Generator, limit: int, group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw (groups, G) tokens, and whether each rollout is correct."""
    numbers = np.array(list(LEVELS))
    shares = np.array([LEVELS[level][2] for level in numbers])
    levels = rng.choice(numbers, GROUPS, p=shares / shares.sum())
    middle, spread, _, right = (np.array([LEVELS[level][k] for level in levels]) for k in range(4))
    means = np.exp([m + s**2 / 2 for m, s, _, _ in LEVELS.values()])
    scale = limit / 3 / (shares @ means / shares.sum())
    # half of the variance is between problems, half between rollouts
    of_problem = rng.normal(middle, spread / np.sqrt(2))
    tokens = scale * np.exp(rng.normal(of_problem[:, None], (spread / np.sqrt(2))[:, None], (GROUPS, group_size)))
    return np.clip(tokens, 20, limit).astype(int), rng.random((GROUPS, group_size)) < right[:, None]


def fit(path: Path) -> dict:
    """Fit the lengths in `LEVELS` to problems with `solution` and `level`, at 3.5 characters a token."""
    lengths = defaultdict(list)
    for row in json_lines(path):
        level = str(row["level"]).rpartition(" ")[2]
        if level.isdigit() and row["solution"]:
            lengths[int(level)].append(np.log(max(1, len(row["solution"]) / 3.5)))
    total = sum(map(len, lengths.values()))
    return {k: [float(np.mean(v)), float(np.std(v)), len(v) / total] for k, v in sorted(lengths.items())}


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--steps", type=int, default=20, help="simulated steps for each row (default 20)")
    parser.add_argument(
        "--per-million", type=float, default=0.13, help="seconds for a million span pairs (default 0.13)"
    )
    parser.add_argument("--fit", type=Path, metavar="FILE.jsonl", help="print the distribution of solutions' lengths")
    return parser.parse_args()


if __name__ == "__main__":
    main()
