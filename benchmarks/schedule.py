"""The time that ranks wait for each other's credit, simulated with the fork's own schedule, before and after.

    python benchmarks/schedule.py --output schedule.json
    python benchmarks/schedule.py --spare 20 --rate 0.63           # GiB to spare on a rank; GB/s between ranks
    python benchmarks/schedule.py --fit DATA/math_train/math_train_7500.jsonl.gz   # fit the lengths' distribution again

A step has 128 groups. Its forward passes are dealt to the ranks as in training (`plan_micro_batches`, dynamic batches).
They are collectives: in each slot all ranks wait for the slowest. The table compares three ways to place the credit
stage, in units of an even share of its whole work:

- in the passes: every group is weighed in the pass that completes it (as the fork did until now)
- at the owner: after the passes, on the rank that made the group's rollouts
- shared: after the passes, by `share_credit`, large groups in parts, as if every group could wait
- limited: the same, within both limits of a rank's memory. Groups wait in half of what is to spare after a forward pass
  (`credit.max_waiting_bytes`). Others are weighed in the pass that completes them, and the passes' delay counts. A
  borrowed group needs room too. The search takes `credit.max_cost_bytes` of what is left, and copies a group

The last two count the transfer of moved states. "4 GiB" is `limited` with the limit on waiting groups of before.

Lengths are lognormal within each level of MATH, as the tokens of its solutions are (`--fit`). They are scaled so that
the mean over levels is a third of the limit, and cut there. The share of correct rollouts is assumed for each level.
Times are those of a 7B model: 2 x 7.6e9 FLOP a token at 400 TFLOP/s. A million span pairs take `--per-million` seconds,
and states of 3584 bfloat16 numbers move at `--rate`.
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
from openrlhf_shear.train.experience.schedule import Schedule, plan_micro_batches, share_credit

# level of MATH: mean and deviation of log(tokens), share of its problems, share of correct rollouts (assumed)
LEVELS = {1: (3.98, 0.64, 0.075, 0.9), 2: (4.31, 0.66, 0.180, 0.8), 3: (4.61, 0.64, 0.212, 0.65)}
LEVELS |= {4: (4.85, 0.65, 0.225, 0.5), 5: (5.28, 0.63, 0.307, 0.3)}
GROUPS, STRIDE = 128, ShearConfig().stride
TOKEN_SECONDS = 2 * 7.6e9 / 400e12
STATE_BYTES = 3584 * 2  # a token
GIB = 2**30
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
                    simulate(np.random.default_rng(seed), limit, group_size, ranks, args)
                    for seed in tqdm(range(args.steps), f"{limit} tokens, G {group_size}, {ranks} ranks", leave=False)
                ]
                mean = {name: float(np.mean([trial[name] for trial in trials])) for name in trials[0]}
                rows.append({"tokens": limit, "G": group_size, "ranks": ranks} | mean)
    columns = {"tokens": "tokens", "G": "G", "ranks": "ranks", "even": "even share [s]"}
    columns |= {
        "in the passes": "in the passes",
        "at the owner": "at the owner",
        "with transfers": "shared",
        "limited": "limited",
        "4 GiB": "4 GiB",
        "in passes": "groups in passes",
        "peak": "peak [GiB]",
    }
    columns |= {"moved": "groups moved", "forward": "forward [s]", "before": "experience before", "after": "and after"}
    print_table("credit in even shares; experience making in forward passes without credit", rows, columns)
    if args.output:
        settings = {"per million": args.per_million, "spare": args.spare, "rate": args.rate}
        write_json(args.output, {"environment": environment("cpu"), **settings, "rows": rows})


def simulate(rng: np.random.Generator, limit: int, group_size: int, ranks: int, args: argparse.Namespace) -> dict:
    """Simulate one step as the module describes."""
    lengths, right = drawn(rng, limit, group_size)
    flat = [int(n) for group in lengths for n in group]
    schedule = plan_micro_batches(flat, group_size, ranks, max_tokens=max(PASS_TOKENS, limit))
    sides = [
        [int(group[mask].sum()) // STRIDE for mask in (good, ~good)] for group, good in zip(lengths, right, strict=True)
    ]
    work = [args.per_million * a * b / 1e6 for a, b in sides]
    even = sum(work) / ranks
    tokens = [sum(flat[i] for i in batch) * TOKEN_SECONDS for batch in schedule.micro_batches]
    sizes = [int(group.sum()) * STATE_BYTES for group in lengths]
    tolls = [size / (1e9 * args.rate) for size in sizes]
    last = _last_passes(schedule, group_size)
    forward = _passes(schedule, tokens, [0.0] * GROUPS, last, ranks)
    joint = _passes(schedule, tokens, work, last, ranks)

    def placed(most: float) -> dict:
        """Weigh the groups that do not fit into `most` bytes in the passes, and share out the others."""
        waits = waiting(schedule, sizes, last, ranks, most)
        at_once = [0.0 if wait else amount for wait, amount in zip(waits, work, strict=True)]
        left = [amount if wait else 0.0 for wait, amount in zip(waits, work, strict=True)]
        shares = share_credit(left, schedule.owners, ranks, True, tolls, sizes, [most] * ranks)
        loads, moved, held = [0.0] * ranks, 0, [0.0] * ranks
        for rank, units in enumerate(shares):
            foreign = {group for group, _, _ in units if schedule.owners[group] != rank}
            alone = {group for group, _, parts in units if parts == 1} - foreign
            loads[rank] = sum(left[g] / parts for g, _, parts in units) + sum(tolls[g] for g in foreign)
            moved += len(foreign)
            mine = [g for g, owner in enumerate(schedule.owners) if owner == rank and waits[g]]
            stays = sum(sizes[g] for g in mine if g not in alone)
            held[rank] = max(sum(sizes[g] for g in mine), stays + max((sizes[g] for g in foreign), default=0))
        slower = _passes(schedule, tokens, at_once, last, ranks) - forward
        return {"seconds": slower + max(loads), "moved": moved, "held": max(held), "at once": waits.count(False)}

    free, limited, before = (placed(most) for most in (np.inf, args.spare * GIB / 2, 4 * GIB))
    room = args.spare * GIB - limited["held"]
    search = 2 ** int(np.log2(room / 4))  # as `transport.tiles.search_bytes`
    peak = limited["held"] + max(sizes) + search  # the search copies a group
    assert peak <= args.spare * GIB, f"{peak / GIB:.1f} GiB do not fit into {args.spare:g}; use a larger --spare"
    return {
        "even": even,
        "in the passes": (joint - forward) / even,
        "at the owner": max(sum(w for w, o in zip(work, schedule.owners, strict=True) if o == r) for r in range(ranks))
        / even,
        "with transfers": free["seconds"] / even,
        "limited": limited["seconds"] / even,
        "4 GiB": before["seconds"] / even,
        "in passes": limited["at once"],
        "in passes, 4 GiB": before["at once"],
        "peak": peak / GIB,
        "largest group": max(work) / even,
        "moved": limited["moved"],
        "forward": forward,
        "before": joint / forward,
        "after": 1 + limited["seconds"] / forward,
    }


def waiting(schedule: Schedule, sizes: list[int], last: list[int], ranks: int, most: float) -> list[bool]:
    """Say of each group whether it waits: whether it fits beside its rank's earlier groups (`GroupCollector`)."""
    held, waits = [0] * ranks, [False] * len(sizes)
    for group in sorted(range(len(sizes)), key=lambda group: last[group]):
        owner = schedule.owners[group]
        waits[group] = held[owner] + sizes[group] <= most
        held[owner] += sizes[group] * waits[group]
    return waits


def _last_passes(schedule: Schedule, group_size: int) -> list[int]:
    """Return the micro-batch that completes each group."""
    last = [0] * GROUPS
    for number, batch in enumerate(schedule.micro_batches):
        for i in batch:
            last[i // group_size] = number
    return last


def _passes(schedule: Schedule, tokens: list[float], work: list[float], last: list[int], ranks: int) -> float:
    """Return the seconds of the passes, where each group's work follows the pass that completes it."""
    taken = list(tokens)
    for group, number in enumerate(last):
        taken[number] += work[group]
    slots, each = schedule.slots, len(schedule.slots) // ranks
    seconds = 0.0
    for k in range(each):
        now = [slots[rank * each + k] for rank in range(ranks)]
        seconds += max((tokens if slot.is_filler else taken)[slot.micro_batch] for slot in now)
    return seconds


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
    parser.add_argument(
        "--spare", type=float, default=40, help="GiB to spare on a rank, after its forward pass (default 40)"
    )
    parser.add_argument("--rate", type=float, default=10, help="GB/s at which states move (default 10)")
    parser.add_argument("--fit", type=Path, metavar="FILE.jsonl", help="print the distribution of solutions' lengths")
    return parser.parse_args()


if __name__ == "__main__":
    main()
