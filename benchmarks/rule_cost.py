"""The cost of `error_odds` beside `shear`: its windows have 8 tokens, SHEAR's have 100.

    python benchmarks/rule_cost.py --output rule_cost.json
    python benchmarks/rule_cost.py runs/hidden_states/*.safetensors --device cuda

Both rules get the same hidden states of SmolLM2 rollouts, as in training: files of `hidden_states.py`, or the tests'
sample of them. Log-probs and entropies are random: no cost depends on them.

Legend: T response tokens of the longest rollout of a group.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from hidden_states import load_group
from measure import best_times, environment, pick_device, print_table, script_parser, write_json

from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit import CreditRule, RolloutGroup
from openrlhf_shear.credit.rules.error_odds import ErrorOddsRule
from openrlhf_shear.credit.rules.shear import ShearRule

STRIDES = (1, 4, 8)
SAMPLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "smollm2_states.safetensors"


def rules() -> dict[str, CreditRule]:
    ours = {f"error_odds, stride {stride}": ErrorOddsRule(ErrorOddsConfig(stride=stride)) for stride in STRIDES}
    return {"shear": ShearRule(), **ours}


def group_of(file: Path, device: str) -> RolloutGroup:
    states, correct = load_group(file)
    generator = torch.Generator().manual_seed(0)
    lengths = tuple(len(h) for h in states)
    log_probs, entropies = (tuple(torch.rand(n, generator=generator) for n in lengths) for _ in range(2))
    rewards = tuple(map(float, correct))
    return RolloutGroup(
        *(0, rewards, tuple(correct), lengths, tuple(h.to(device) for h in states)),
        log_probs=tuple(-values for values in log_probs),
        entropies=entropies,
    )


def main(argv: list[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    device = pick_device(args.device)
    about, rows = environment(device), []
    for file in args.states:
        group = group_of(file, device)
        jobs = {name: partial(rule.credit, group) for name, rule in rules().items()}
        for job in jobs.values():  # compiles
            job()
        seconds, every = best_times(jobs, args.rounds, device)
        of = {"file": file.name, "rollouts": len(group.lengths), "tokens": max(group.lengths)}
        rows += [
            {**of, "rule": name, "seconds": best, "times_shear": best / seconds["shear"], "rounds": every[name]}
            for name, best in seconds.items()
        ]
    columns = {
        "rule": "rule",
        "rollouts": "rollouts",
        "tokens": "T",
        "seconds": "seconds a group",
        "times_shear": "times shear",
    }
    print_table(f"credit of a group, {device}", rows, columns)
    write_json(args.output, {"environment": about, "rows": rows})


def _parser() -> argparse.ArgumentParser:
    parser = script_parser(__doc__)
    parser.add_argument("states", type=Path, nargs="*", default=[SAMPLE], help="files of hidden_states.py")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: auto)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each job; the best counts (default: 3)")
    return parser


if __name__ == "__main__":
    main()
