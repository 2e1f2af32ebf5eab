"""What a bound that needs no whole matrix product could spare the span search: pairs of spans, and token costs.

    python benchmarks/coarse_bounds.py --output benchmarks/results/coarse_bounds.json

Real hidden states of SmolLM2 rollouts (`hidden_states.py` samples a missing group). Every bound is compared with the
true minima, which a search does not know yet: no order of pairs can drop more. A cost is needed if a pair that is left
covers it. Spans overlap, so far more costs than pairs are left.

- centroids: the distance of the spans' means, at most W_1
- k dimensions: the search's first bound, on tokens projected to their k principal directions, and the norm of the rest
- minima alone: the pairs that are the minimum of one of their spans, which any exact search has to solve

Groups are the first 2, the first 4 and all rollouts: `exponent` is p of costs needed ~ pairs^p over the last two.
"""

import math

import torch
from hidden_states import ensure_group
from measure import environment, print_table, script_parser, write_json
from search_stages import Group

LENGTH = 1000
DIMENSIONS = (8, 32, 64, 128, 256)
COLUMNS = {"bound": "bound", "pairs": "pairs left", "costs": "costs needed", "exponent": "exponent"}
ROUNDING = 1e-5  # eps


def rows_of(states: list[torch.Tensor], correct: list[bool], args) -> tuple[int, list[dict]]:
    """Return the number of pairs, and a row for each bound."""
    group = Group.of(states, correct, args)
    found = group.search(keep=True)
    limits = torch.maximum(found.correct[:, None], found.incorrect) + ROUNDING * group.epsilon
    minima = torch.zeros_like(found.table.solved)
    minima[torch.arange(len(minima)), found.sides[0].nearest] = True
    minima[found.sides[1].nearest, torch.arange(minima.shape[1])] = True
    means = [torch.stack([b.double().mean(0) for b in side.blocks(side.tokens)]) for side in group.sides]
    bounds = {"centroids": torch.cdist(*means) / group.correct.scale}
    tokens = torch.cat(states).double()
    centre = tokens.mean(0)
    directions = torch.linalg.eigh((tokens - centre).T @ (tokens - centre))[1].flip(1)
    for count in DIMENSIONS:
        projected = [_projected(h.double() - centre, directions[:, :count]) for h in states]
        bounds[f"{count} dimensions"] = _first_bounds(Group.of(projected, correct, args, group.correct.scale))
    bounds[f"all {tokens.shape[1]} dimensions"] = _first_bounds(group)
    left = {name: bound <= limits for name, bound in bounds.items()} | {"minima alone": minima}
    return group.pairs, [
        {"bound": name, "pairs": float(pairs.double().mean()), "costs": _costs(group, pairs)}
        for name, pairs in left.items()
    ]


def _projected(tokens: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    inside = tokens @ directions
    rest = (tokens.square().sum(1) - inside.square().sum(1)).clamp(min=0).sqrt()
    return torch.cat([inside, rest[:, None]], 1).float()


def _first_bounds(group: Group) -> torch.Tensor:
    return group.backend(group.tile(), group.epsilon).bounds()


def _costs(group: Group, pairs: torch.Tensor) -> float:
    """Return the fraction of the token costs that these pairs (K_c, K_w) cover."""
    (ends, *of_rows), (other_ends, *of_columns) = (side.parts() for side in group.sides)
    needed = torch.zeros(len(ends) - 1, len(other_ends) - 1, dtype=torch.float64)
    for k, j in pairs.nonzero().tolist():
        needed[slice(*(edge[k] for edge in of_rows)), slice(*(edge[j] for edge in of_columns))] = 1
    return float(ends.diff().double() @ needed @ other_ends.diff().double() / (ends[-1] * other_ends[-1]))


def main() -> None:
    args = script_parser(__doc__).parse_args()
    args.window, args.stride, args.epsilon_rel = 100, 25, 0.015
    states, correct = ensure_group(LENGTH)
    found = {"environment": environment(), "groups": []}
    for rollouts in (2, 4, len(states)):
        pairs, rows = rows_of(states[:rollouts], correct[:rollouts], args)
        before = found["groups"][-1] if found["groups"] else None
        for row, last in zip(rows, before["rows"] if before else (), strict=False):
            row["exponent"] = 1 + math.log(row["costs"] / last["costs"]) / math.log(pairs / before["pairs"])
        found["groups"].append({"rollouts": rollouts, "pairs": pairs, "rows": rows})
        print_table(f"{rollouts} rollouts of T = {LENGTH}: {pairs:,} pairs", rows, COLUMNS)
    write_json(args.output, found)


if __name__ == "__main__":
    main()
