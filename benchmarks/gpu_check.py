"""Is the GPU path correct on this machine, and how fast is it? Under ten minutes on one CUDA GPU.

    python benchmarks/gpu_check.py --output gpu_check.json          # scripts/gpu_check.sh installs and calls it

Needs torch, triton, numpy, rich, tqdm and transformers, and neither vllm nor ray nor deepspeed:

- right: values of Triton's solves against Sinkhorn in float64, written here, on hard costs
- together: weights of groups that are searched at once, against those of each group on the CPU; and the time saved
- launches: warps and registers of a solve for spans of 50 and 100 tokens, the default beside the fastest
- fast: seconds for a million problems, all iterations solved, beside the chip's limits
- memory: of `shear_weights` at 3k, 8k and 32k tokens a rollout, beside `--credit.max_cost_bytes`
- share: of the credit in a training step on a group of 8 x 1000 tokens, at the shape of Qwen2.5-7B, on a GPU of 60 GB

Each row says whether it holds; the exit status is 0 if all do.
"""

import math
from unittest.mock import patch

import torch
from measure import best_times, environment, print_table, script_parser, write_json
from tqdm import tqdm
from transformers import Qwen2Config, Qwen2ForCausalLM

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.credit.captured import captured_lm_head_input
from openrlhf_shear.credit.shear import shear_groups, shear_weights
from openrlhf_shear.kernels.triton_sinkhorn import LAUNCH, TritonSinkhorn
from openrlhf_shear.transport import Spans, search_bytes
from openrlhf_shear.transport.tiles import Tile, tiles

EPSILON = 0.015
ACCURACY = 1e-2  # of epsilon, as in the tests
# Limits for 1e6 problems of 100 x 100 with 50 iterations, at an H100's peak. The first counts fp32 multiplications and
# additions. The second counts reads of shared memory by a solver whose blocks do not stay in registers.
FMA_SECONDS, SHARED_SECONDS = 0.030, 0.060
SHARED_GOAL = 0.5  # of the shared-memory limit
QWEN2_5_7B = {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
QWEN2_5_7B |= {"num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False}
SHARE_GOAL = 0.01
_SHARE_BYTES = 60e9  # that weights, gradients and a pass take at most


def main() -> None:
    args = script_parser(__doc__).parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no CUDA device; use a machine and a torch with one")
    device = torch.device("cuda")
    rows = [right(device)]
    rows += together(device)
    rows += [check(device, window) for check in (launches, fast) for window in (50, 100)]
    rows += [memory(device, tokens) for tokens in (3_000, 8_000, 32_000)]
    if torch.cuda.get_device_properties(device).total_memory > _SHARE_BYTES:
        rows.append(share(device))
    print_table("GPU check", rows, {"what": "what", "measured": "measured", "wanted": "wanted", "holds": "holds"})
    if args.output:
        write_json(args.output, {"environment": environment(), "rows": rows})
    raise SystemExit(0 if all(row["holds"] for row in rows) else 1)


def sides(device: torch.device, window: int, spans: int, hidden: int = 64, seed: int = 0) -> tuple[Spans, Spans]:
    """Return two sides of random walks with as many near as far spans."""
    generator = torch.Generator().manual_seed(seed)
    stride = min(10, window)
    tokens = window + (spans - 1) * stride
    walks = [torch.randn(tokens, hidden, generator=generator).cumsum(0) for _ in range(2)]
    scale = torch.cat(walks).norm(dim=1).mean().item()
    return tuple(Spans.pack([walk.to(device)], SpanCut(window, stride), scale) for walk in walks)


def right(device: torch.device) -> dict:
    """Check the largest error of a value, in epsilon."""
    worst = 0.0
    for window in (7, 50, 100, 128):
        a, b = sides(device, window, 12)
        tile = next(tiles(a, b, 2**28))
        pairs = tile.all_pairs()
        values = TritonSinkhorn(tile, EPSILON).solve(pairs).value.double()
        worst = max(worst, float((values - sinkhorn(costs_of(a, b, pairs))).abs().max()))
    return _row("values, worst error [epsilon]", worst / EPSILON, f"<= {ACCURACY}", worst <= ACCURACY * EPSILON)


def together(device: torch.device, groups: int = 16, tokens: int = 500, hidden: int = 512) -> list[dict]:
    """Check bf16 groups of 8 rollouts at once: the largest error of a weight [epsilon], and the time one by one."""
    generator = torch.Generator().manual_seed(0)
    outcomes, config = [i % 2 == 0 for i in range(8)], ShearConfig()
    given = [[torch.randn(tokens, hidden, generator=generator).bfloat16() for _ in outcomes] for _ in range(groups)]
    there = [([h.to(device) for h in states], outcomes) for states in given]
    found = shear_groups(there, config)
    worst = 0.0
    for states, result in list(zip(given, found, strict=True))[:2]:  # the CPU takes a second a group
        expected = torch.cat(shear_weights(states, outcomes, config).weights)
        worst = max(worst, float((torch.cat(result.weights).cpu() - expected).abs().max()))
    jobs = {
        "at once": lambda: shear_groups(there, config),
        "one by one": lambda: [shear_weights(*each, config) for each in there],
    }
    best, _ = best_times(jobs, 3, 0.2, device.type, quiet=True)
    ratio = best["one by one"] / best["at once"]
    what, holds = "weights of groups at once, worst error [epsilon]", worst <= ACCURACY * EPSILON
    faster = _row(f"{groups} groups at once, times as fast as one by one", ratio, ">= 1", ratio >= 1)
    return [_row(what, worst / EPSILON, f"<= {ACCURACY}", holds), faster]


def costs_of(a: Spans, b: Spans, pairs: torch.Tensor) -> torch.Tensor:
    """Return the costs of pairs (P, 2) of spans that all have the same size, (P, n, m) float64."""
    x, y = (side.tokens.double().unfold(0, int(side.sizes[0]), int(side.starts[1])).mT / side.scale for side in (a, b))
    return torch.cdist(x[pairs[:, 0]], y[pairs[:, 1]])


def sinkhorn(cost: torch.Tensor, epsilon: float = EPSILON, iterations: int = 2000) -> torch.Tensor:
    """Return the dual values (P,) of uniform masses on costs (P, n, m) float64, in the log domain."""
    _, n, m = cost.shape
    g = cost.new_zeros(len(cost), 1, m)
    for _ in range(iterations):
        f = -epsilon * (torch.logsumexp((g - cost) / epsilon, 2, keepdim=True) - math.log(m))
        g = -epsilon * (torch.logsumexp((f - cost) / epsilon, 1, keepdim=True) - math.log(n))
    return f.mean((1, 2)) + g.mean((1, 2))


def launches(device: torch.device, window: int) -> dict:
    """Check the time of the default launch, over that of the fastest."""
    tile, pairs = problem(device, window, 160)
    times = {}
    options = [{"rows_a_warp": rows, "maxnreg": most} for rows in (8, 16, 32) for most in (None, 128, 168, 255)]
    for chosen in tqdm(options, f"launches, spans of {window}", leave=False):
        try:
            with patch.dict(LAUNCH, chosen):
                times[tuple(chosen.values())] = seconds_of(tile, pairs, device)
        except Exception as error:  # a launch that the chip refuses
            print(f"{chosen}: {type(error).__name__}: {str(error)[:120]}")
    best = min(times, key=times.get)
    ratio = times[tuple(LAUNCH.values())] / times[best]
    what = f"spans of {window}: default launch over the fastest, {best[0]} rows a warp and maxnreg {best[1]}"
    return _row(what, ratio, "<= 1.2", ratio <= 1.2)


def problem(device: torch.device, window: int, spans: int) -> tuple[Tile, torch.Tensor]:
    """Return a tile and all of its pairs."""
    tile = next(tiles(*sides(device, window, spans), 2**30))
    return tile, tile.all_pairs()


def seconds_of(tile: Tile, pairs: torch.Tensor, device: torch.device) -> float:
    solver = TritonSinkhorn(tile, EPSILON)
    solver.solve(pairs, max_iterations=50)  # compiles
    best, _ = best_times({"solve": lambda: solver.solve(pairs, max_iterations=50)}, 3, 0.2, device.type, quiet=True)
    return best["solve"]


def fast(device: torch.device, window: int) -> dict:
    """Check the seconds for a million problems of `window` x `window`, at most 50 iterations each."""
    tile, pairs = problem(device, window, 400)
    million = seconds_of(tile, pairs, device) * 1e6 / len(pairs)
    smaller = (window / 100) ** 2
    wanted = SHARED_SECONDS * smaller / SHARED_GOAL
    limits = f"{FMA_SECONDS * smaller:.3g} arithmetic, {SHARED_SECONDS * smaller:.3g} shared memory"
    note = f"<= {wanted:.3g} (limits: {limits})"
    return _row(f"a million problems of {window} x {window} [s]", million, note, million <= wanted)


def memory(device: torch.device, tokens: int, hidden: int = 3584, rollouts: int = 8) -> dict:
    """Check the extra GPU memory of a group's weights, in GiB."""
    generator = torch.Generator(device).manual_seed(0)
    states = [
        torch.randn(tokens, hidden, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(rollouts)
    ]
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    shear_weights(states, [i % 2 == 0 for i in range(rollouts)], ShearConfig())
    peak = (torch.cuda.max_memory_allocated(device) - before) / 2**30
    group = sum(h.nbytes for h in states) / 2**30
    most = search_bytes(0, device) / 2**30 + group  # each side in one piece
    return _row(f"memory of a group of 8 x {tokens} [GiB]", peak, f"<= {most:.2f}", peak <= most)


def share(device: torch.device, rollouts: int = 8, tokens: int = 1000, shape: dict = QWEN2_5_7B) -> dict:
    """Check the credit's share of a step: a log-prob pass that captures the states, an update, and `shear_weights`.

    The optimizer, sampling and communication would make it smaller. Weights and tokens are random, which matters to the
    search alone: it prunes by structure in the states (`span_search.py` measures real ones).
    """
    torch.manual_seed(0)
    with device:
        model = Qwen2ForCausalLM(Qwen2Config(**shape)).bfloat16().train()  # without dropout
    model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(model.config.vocab_size, (rollouts, tokens), device=device)

    def losses(part: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=part, use_cache=False).logits[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="none")

    @torch.no_grad()
    def read() -> list[torch.Tensor]:
        with captured_lm_head_input(model) as captured:
            for part in ids.split(4):
                losses(part)
        return [states for part in captured for states in part]

    states, correct = read(), [i % 2 == 0 for i in range(rollouts)]
    weights = torch.stack(shear_weights(states, correct).weights)[:, 1:]

    def update() -> None:
        for part, weight in zip(ids.split(4), weights.split(4), strict=True):
            (weight.flatten() * losses(part)).mean().backward()

    jobs = {"read": read, "update": update, "credit": lambda: shear_weights(states, correct)}
    best, _ = best_times(jobs, 3, 0.0, device.type)
    measured = best["credit"] / sum(best.values())
    what = f"credit in a step of {sum(best.values()):.2f} s, {rollouts} x {tokens} tokens"
    return _row(what, measured, f"< {SHARE_GOAL}", measured < SHARE_GOAL)


def _row(what: str, measured: float, wanted: str, holds: bool) -> dict:
    return {"what": what, "measured": measured, "wanted": wanted, "holds": bool(holds)}


if __name__ == "__main__":
    main()
