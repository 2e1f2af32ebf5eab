"""The speed of the span search, as ratios to other solvers, to itself unpruned, and to the machine's limits.

    python benchmarks/span_search.py --quick                                  # under a minute, on the tests' sample
    python benchmarks/span_search.py --output span_search.json

One run measures everything, on one machine and on the same problems: real hidden states of SmolLM2 rollouts.
(`hidden_states.py` samples a missing group.) Jobs take turns over --rounds rounds. A turn repeats a job for at least a
second, and a job's best time counts. Other solvers run on a random sample of the pairs, extrapolated to all pairs.
`peers.py` makes each as fast as the common accuracy allows. Our time includes the cost matrices, theirs does not: ours
is the search of `shear_weights`, from packed sides to distances.

Prints a table for each length: the time of each solver in times of our search, against its target; and where our time
goes. --output keeps it all. `gpu_check.py` measures a GPU, and `long_responses.py` growth with the number of pairs.

Legend: T tokens of the longest rollout, K spans of a side, P pairs, n/m tokens of a pair's spans, d hidden size.
"""

import argparse
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import torch
from hidden_states import ensure_group, load_group
from measure import best_times, environment, print_table, script_parser, write_json
from peers import ACCURACY, PEERS, calibrate, fastest, oracle_minimum
from search_stages import PRODUCT, STAGES, Group, counts, physical_limits, profile
from tqdm import tqdm

from openrlhf_shear.transport import SinkhornPairs, SpanSearch

TESTS = Path(__file__).resolve().parents[1] / "tests"
UNPRUNED_TARGET = 5
BATCHES = (8, 64, 256)
MOST_SAMPLED = 20_000
OURS, UNPRUNED, REFERENCE = "ours", "ours, nothing pruned", "ours, nothing pruned, torch backend"

# --- one length: our search against others -------------------------------------------------------------------------


def compare(group: Group, args) -> dict:
    """Return a group's accuracies, times, ratios, and the stages of our time."""
    rng = np.random.default_rng(0)
    entropic = runpy.run_path(str(TESTS / "unit" / "oracle.py"))["entropic"]
    pruned, unpruned = group.search(keep=True), group.search(prune=False, keep=True)
    areas = group.areas().numpy()
    every = np.stack(np.unravel_index(rng.permutation(group.pairs), areas.shape), axis=1)
    whole = every[areas[tuple(every.T)] == areas.max()]  # batches need pairs of one shape: two spans of full length
    nearest = np.stack([np.arange(len(group.correct)), unpruned.sides[0].nearest.numpy()], axis=1)
    nearest = rng.permutation(nearest[areas[tuple(nearest.T)] == areas.max()])
    tried = np.concatenate([whole[: 3 * args.calibration // 4], nearest[: args.calibration // 4]])
    costs = group.blocks(tried)
    oracle = np.array([entropic(cost, group.epsilon) for cost in tqdm(costs, desc="oracle", leave=False)])
    accuracy = _accuracy(group, pruned, unpruned, tried, oracle, entropic, args.oracle_spans)

    reference = SinkhornPairs(group.tile(), group.epsilon)
    some = torch.from_numpy(every[: args.torch_pairs])
    error = np.abs(reference.solve(torch.from_numpy(tried)).value.numpy() - oracle).max() / group.epsilon
    rows = {
        OURS: {"worst_error_eps": accuracy["spans_against_oracle_eps"], "accurate": True},
        UNPRUNED: {"worst_error_eps": accuracy["values_against_oracle_eps"], "target": UNPRUNED_TARGET},
        REFERENCE: {"worst_error_eps": float(error), "sample_pairs": len(some)},
    }
    jobs = {
        OURS: group.search,
        UNPRUNED: partial(group.search, prune=False),
        REFERENCE: partial(reference.solve, some),
    }
    scale = {OURS: 1, UNPRUNED: 1, REFERENCE: group.pairs / len(some)}
    bar = tqdm(PEERS, leave=False)
    for peer in bar:
        bar.set_description(f"calibrating {peer.name}")
        settings = calibrate(peer, costs, oracle, group.epsilon, args.batches)
        sample = whole if peer.batched else every
        trial = group.blocks(sample[: max(args.calibration, settings[-1].batch)])
        setting, per_pair = fastest(peer, settings, trial, group.epsilon)
        sample = sample[: min(MOST_SAMPLED, max(args.calibration, setting.batch, int(args.peer_seconds / per_pair)))]
        inputs = peer.inputs(group.blocks(sample), setting)
        jobs[peer.name] = partial(peer.run, inputs, group.epsilon, setting)
        # Batches are extrapolated by cost entries, as if shorter spans filled batches just as well.
        scale[peer.name] = areas.sum() / areas[tuple(sample.T)].sum() if peer.batched else group.pairs / len(sample)
        rows[peer.name] = {
            "target": peer.target, "sample_pairs": len(sample), "rule": peer.rule, "stop": setting.stop,
            "dtype": str(setting.dtype).removeprefix("torch."), "batch": setting.batch if peer.batched else None,
            "worst_error_eps": setting.error,
        }  # fmt: skip
    seconds, every_round = best_times(jobs, args.rounds, args.repeat_seconds)
    for name, row in rows.items():
        row["seconds_all_pairs"] = seconds[name] * float(scale[name])
        row["us_per_pair"] = 1e6 * row["seconds_all_pairs"] / group.pairs
        row["ratio"] = row["seconds_all_pairs"] / seconds[OURS]
        row["met"] = bool(row["ratio"] >= row["target"]) if row.get("target") else None
        row["accurate"] = None if row["worst_error_eps"] is None else bool(row["worst_error_eps"] <= ACCURACY)
        row["measured_s"] = every_round[name]
    stages = {
        which: profile(group, prune, args.repeat_seconds) for which, prune in (("pruned", True), ("unpruned", False))
    }
    without = {which: spent["total"] - spent["kernel"] for which, spent in stages.items()}
    return {
        "tokens": [len(group.correct.tokens), len(group.incorrect.tokens)],
        "spans": [len(group.correct), len(group.incorrect)], "pairs": group.pairs, "backend": group.backend.__name__,
        "solvers": [{"solver": name, **row} for name, row in rows.items()], "accuracy": accuracy,
        "counts": counts(pruned, unpruned), "profile_s": stages,
        "unpruned_ratio_without_kernel": without["unpruned"] / without["pruned"],
        "rates": physical_limits(group, stages["pruned"], pruned),
    }  # fmt: skip


def _accuracy(group: Group, pruned: SpanSearch, unpruned: SpanSearch, tried, oracle, entropic, spans: int) -> dict:
    """Return our worst errors, in eps: of values, of span distances, and of pruning."""
    values = unpruned.table.lower_bound[tuple(tried.T)].numpy()
    solved = pruned.table.solved[tuple(tried.T)].numpy()
    kept = np.abs(pruned.table.lower_bound[tuple(tried.T)].numpy() - oracle)[solved]
    chosen = np.random.default_rng(1).permutation(len(group.correct))[:spans]
    columns = np.arange(len(group.incorrect))
    errors = []
    for k in tqdm(chosen, desc="oracle minima of spans", leave=False):
        costs = group.blocks(np.stack([np.full_like(columns, k), columns], axis=1))
        errors.append(abs(float(pruned.correct[k]) - oracle_minimum(costs, entropic, group.epsilon)))
    sides = [((a - b).abs().max() / group.epsilon).item() for a, b in zip(
        (pruned.correct, pruned.incorrect), (unpruned.correct, unpruned.incorrect), strict=True)]  # fmt: skip
    return {
        "contract_eps": ACCURACY, "pairs": len(tried), "spans": len(chosen),
        "values_against_oracle_eps": float(np.abs(values - oracle).max() / group.epsilon),
        "pruned_values_against_oracle_eps": float(kept.max() / group.epsilon) if len(kept) else None,
        "spans_against_oracle_eps": max(errors) / group.epsilon, "pruned_against_unpruned_eps": max(sides),
    }  # fmt: skip


# --- the command ---------------------------------------------------------------------------------------------------


def report(name: str, found: dict) -> None:
    """Print the tables of one length."""
    for row in found["solvers"]:
        batch = f", batches of {row['batch']}" if row.get("batch") else ""
        row["setting"] = f"{row['rule']} {row['stop']:g}, {row['dtype']}{batch}" if row.get("rule") else None
    columns = {
        "solver": "solver",
        "setting": "setting",
        "worst_error_eps": "worst error / eps",
        "us_per_pair": "us a pair",
    }
    columns |= {"seconds_all_pairs": "s, all pairs", "ratio": "times ours", "target": "target", "met": "met"}
    print_table(f"{name}: {found['pairs']:,} pairs, {found['backend']}", found["solvers"], columns)
    stages = [
        {"stage": s, **{which: found["profile_s"][which][s] for which in found["profile_s"]}}
        for s in (*STAGES, PRODUCT)
    ]
    print_table(
        "where our time goes, in processor seconds",
        stages,
        {"stage": "stage", "pruned": "pruned", "unpruned": "unpruned"},
    )
    rows = {
        **{f"pairs {name}" if "pair" not in name else name: n for name, n in found["counts"].items()},
        "unpruned / pruned, both without costs and kernel": found["unpruned_ratio_without_kernel"],
        **{name.replace("_", " ").replace("gflops", "GFLOP/s"): rate for name, rate in found["rates"].items()},
        **{name.replace("_", " "): value for name, value in found["accuracy"].items()},
    }
    print_table("counts, rates and accuracy", [{"what": k, "value": v} for k, v in rows.items()],
                {"what": "", "value": "value"})  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    args.batches = BATCHES
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.quick:
        args.rounds, args.calibration, args.oracle_spans, args.torch_pairs, args.batches = 1, 8, 1, 64, (16,)
        args.peer_seconds, args.repeat_seconds = 0.3, 0.1
        groups = {"sample": load_group(TESTS / "data" / "smollm2_states.safetensors")}
    else:
        groups = {f"T={length}": ensure_group(length) for length in args.lengths}
    found = {"environment": environment(), "settings": {k: str(v) for k, v in vars(args).items()}}
    found["lengths"] = {}
    for name, (states, correct) in groups.items():
        found["lengths"][name] = compare(Group.of(states, correct, args), args)
        report(name, found["lengths"][name])
    write_json(args.output, found)


def _parser() -> argparse.ArgumentParser:
    parser = script_parser(__doc__)
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", default=[200, 500, 1000], metavar="T", help="groups (default 200 500 1000)")
    add("--window", type=int, default=100, help="span length, in tokens (default 100)")
    add("--stride", type=int, default=25, help="tokens between the starts of spans (default 25)")
    add("--epsilon-rel", type=float, default=0.015, help="regularisation, in mean norms (default 0.015)")
    add("--threads", type=int, default=0, metavar="N", help="torch threads, ours and the peers' (default all cores)")
    add("--rounds", type=int, default=3, help="turns of each job (default 3)")
    add("--repeat-seconds", type=float, default=1.0, metavar="S", help="shortest time of a job's turn (default 1)")
    add("--peer-seconds", type=float, default=2.0, metavar="S", help="size of a peer's sample, in time (default 2)")
    add("--calibration", type=int, default=32, metavar="P",
        help="pairs that choose the peers' stopping rules, a quarter of them nearest pairs (default 32)")  # fmt: skip
    add("--oracle-spans", type=int, default=2, metavar="K", help="spans whose minimum the oracle checks (default 2)")
    add("--torch-pairs", type=int, default=1000, metavar="P", help="sample for the torch backend (default 1000)")
    add("--quick", action="store_true", help="smoke test: the tests' sample, few pairs, one round; ratios are rough")
    return parser


if __name__ == "__main__":
    main()
