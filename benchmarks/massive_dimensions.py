"""What massive dimensions of hidden states do to SHEAR's epsilon, and what `--shear.epsilon_spread` does about it.

    python benchmarks/massive_dimensions.py
    python benchmarks/massive_dimensions.py --output benchmarks/results/massive_dimensions.json

Some language models have a few hidden dimensions that are huge in every token. This script adds such dimensions to
real states: the six rollouts of SmolLM2-135M-Instruct in tests/data, with alternating outcomes. The mean norm then
grows, and the costs between tokens hardly do. So an epsilon relative to the norm exceeds the costs' differences.

- std(C)/eps: the metric `shear/cost_spread` with --shear.epsilon_rel 0.015
- rank: Spearman's correlation of the spans' distances with those of the same states without massive dimensions
- omega: the mean of the weights; "varies": their standard deviation, relative to the mean

A second table compares the metric's costs, of at most 256 tokens a side, with all costs, and times it on one thread.
"""

from pathlib import Path

import torch
from measure import best_times, environment, print_table, script_parser, write_json
from safetensors.torch import load_file
from scipy.stats import spearmanr

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import ShearResult, shear_weights
from openrlhf_shear.transport import cost_spread
from openrlhf_shear.transport.geometry import token_costs

SAMPLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "smollm2_states.safetensors"
DIMENSIONS, SIZES, JITTER = 3, (0, 100, 500, 2000), 0.01  # the last: deviation between tokens, relative to the size


def main() -> None:
    args = script_parser(__doc__).parse_args()
    torch.set_num_threads(1)  # on a shared machine, threads that wait for each other hide the metric's time
    states = [h.float() for _, h in sorted(load_file(SAMPLE).items())]
    rows = [row for size in SIZES for row in rows_of(states, size)]
    columns = {"size": "size", "knob": "knob", "mean norm": "mean norm", "spread": "std(C)/eps", "rank": "rank"}
    print_table(f"{DIMENSIONS} massive dimensions", rows, columns | {"omega": "omega", "varies": "varies"})
    checks = [check("SmolLM2, 6 x 180", states), *(check(f"clusters, 8 x {n}", clusters(n)) for n in (250, 500, 1000))]
    names = {"states": "states", "all": "std of all costs", "sampled": "of the metric", "off": "difference"}
    print_table("at most 256 tokens a side", checks, names | {"seconds": "seconds", "share": "share of the rule"})
    write_json(args.output, {"environment": environment(), "rows": rows, "checks": checks})


def rows_of(states: list[torch.Tensor], size: float) -> list[dict]:
    """Measure the states with massive dimensions of a size, for each knob."""
    huge, rows = massive(states, size), []
    for knob in ({"epsilon_rel": 0.015}, {"epsilon_spread": 0.1}):
        plain, result = (shear_weights(h, outcomes(h), ShearConfig(**knob)) for h in (states, huge))
        rank = spearmanr(*(torch.cat(each.span_distances).numpy() for each in (plain, result))).statistic
        rows.append({"size": size, "knob": " ".join(f"{k} {v}" for k, v in knob.items())} | _facts(result, float(rank)))
    return rows


def _facts(result: ShearResult, rank: float) -> dict:
    omega = torch.cat(result.weights)
    facts = {"mean norm": result.mean_norm, "spread": result.cost_spread, "rank": rank}
    return facts | {"omega": float(omega.mean()), "varies": float(omega.std() / omega.mean())}


def massive(states: list[torch.Tensor], size: float) -> list[torch.Tensor]:
    """Add `size`, with a relative deviation of `JITTER` between tokens, to the first dimensions of all states."""
    generator = torch.Generator().manual_seed(0)
    made = [h.clone() for h in states]
    for h in made:
        h[:, :DIMENSIONS] += size * (1 + JITTER * torch.randn(len(h), DIMENSIONS, generator=generator))
    return made


def outcomes(states: list[torch.Tensor]) -> list[bool]:
    return [i % 2 == 0 for i in range(len(states))]


def clusters(length: int) -> list[torch.Tensor]:
    """Eight rollouts whose tokens lie around 200 points, as words do: (length, 576) each."""
    generator = torch.Generator().manual_seed(length)
    centres = torch.randn(200, 576, generator=generator)
    which = torch.randint(200, (8, length), generator=generator)
    return [centres[row] + 0.5 * torch.randn(length, 576, generator=generator) for row in which]


def check(name: str, states: list[torch.Tensor]) -> dict:
    """Compare the metric's spread with that of all costs, and its time with the rule's."""
    result = shear_weights(states, outcomes(states))
    rights = outcomes(states)
    sides = [torch.cat([h for h, right in zip(states, rights, strict=True) if right is side]) for side in (True, False)]
    everything = token_costs(*sides, result.mean_norm, 2**28).double().std(correction=0).item()
    spread = cost_spread(*sides, result.mean_norm)
    jobs = {
        "metric": lambda: cost_spread(*sides, result.mean_norm),
        "rule": lambda: shear_weights(states, outcomes(states)),
    }
    best, _ = best_times(jobs, rounds=2)
    return {
        "states": name,
        "all": everything,
        "sampled": spread,
        "off": spread / everything - 1,
        "seconds": best["metric"],
        "share": best["metric"] / best["rule"],
    }


if __name__ == "__main__":
    main()
