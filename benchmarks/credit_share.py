"""The credit stage as a share of one training step, at the shape of Qwen2.5-7B.

    python benchmarks/credit_share.py --output credit_share.json     # CUDA

A step trains on one group, without the optimizer, sampling and communication, which would only make the share smaller:

- log-probs: a forward pass without gradients, from which the hidden states are captured
- training: forward and backward of a policy-gradient loss weighted by the credit
- credit: `shear_weights` on the captured states

Weights and tokens are random. That does not matter for the time of the model. It matters for the search, whose pruning
uses structure in the states (`span_search.py` measures real ones). So the search is also timed without pruning, as an
upper bound.

Legend: G rollouts of a group, T response tokens each, d hidden size.
"""

from functools import partial
from types import SimpleNamespace

import torch
from measure import best_times, clock, environment, pick_device, print_table, script_parser, write_json
from search_stages import Group
from tqdm import tqdm
from transformers import Qwen2Config, Qwen2ForCausalLM

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit.captured import captured_lm_head_input
from openrlhf_shear.credit.shear import shear_weights

TARGET = 0.01
QWEN2_5_7B = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def build_model(device: str) -> Qwen2ForCausalLM:
    """Return a model with random bf16 weights, made on the device, with gradient checkpointing."""
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Qwen2ForCausalLM(Qwen2Config(**QWEN2_5_7B))
    finally:
        torch.set_default_dtype(default)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()  # no dropout in this family, and checkpointing works in training mode only


def log_probs(model: Qwen2ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Return (B, T - 1) log-probs of the tokens after the first."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    chosen = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return -chosen.float().view(len(tokens), -1)


@torch.no_grad()
def forward(model: Qwen2ForCausalLM, tokens: torch.Tensor, micro_batch: int) -> list[torch.Tensor]:
    """Run the log-prob pass; return the rollouts' hidden states, G tensors (T, d)."""
    with captured_lm_head_input(model) as captured:
        for part in tokens.split(micro_batch):
            log_probs(model, part)
    return [states for part in captured for states in part]


def train(model: Qwen2ForCausalLM, tokens: torch.Tensor, micro_batch: int, weights: torch.Tensor) -> None:
    """Run forward and backward of `-mean(weight * log-prob)`; `weights` is (G, T - 1)."""
    for part, weight in zip(tokens.split(micro_batch), weights.split(micro_batch), strict=True):
        (-(weight * log_probs(model, part)).sum() / weights.numel()).backward()


def measure(args) -> dict:
    model = build_model(args.device)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (args.rollouts, args.tokens), generator=generator).to(args.device)
    correct = [i % 2 == 0 for i in range(args.rollouts)]
    states = forward(model, tokens, args.micro_batch)
    config, search = ShearConfig(), SearchConfig()
    result = shear_weights(states, correct, config, search)  # also compiles
    weights = torch.stack(result.weights)[:, 1:]
    as_search = SimpleNamespace(window=config.window, epsilon_rel=config.epsilon_rel, device=args.device)
    group = Group.of(states, correct, as_search, config.stride)
    found = group.search(keep=True)
    stages = {
        "log-probs": partial(forward, model, tokens, args.micro_batch),
        "training": partial(train, model, tokens, args.micro_batch, weights),
        "credit": partial(shear_weights, states, correct, config, search),
        "search, nothing pruned": partial(group.search, prune=False),
    }
    for stage in tqdm(("log-probs", "training"), desc="warm up", leave=False):
        stages[stage]()
    clock(args.device)
    seconds, every = best_times(stages, args.rounds, args.device, at_least=0)
    step = seconds["log-probs"] + seconds["training"] + seconds["credit"]
    return {
        "model": {**model.config.to_diff_dict(), "parameters": sum(p.numel() for p in model.parameters())},
        "rollouts": args.rollouts, "tokens": args.tokens, "micro_batch": args.micro_batch,
        "gradient_checkpointing": True, "seconds": seconds, "measured_s": every,
        "step_s": step, "credit_share": seconds["credit"] / step, "target": TARGET,
        "met": seconds["credit"] / step < TARGET,
        "credit_share_if_nothing_were_pruned": seconds["search, nothing pruned"] / step,
        "pairs": group.pairs, "solved_share": found.solved_fraction,
        "iterations_per_pair": float(found.table.iterations.double().mean()),
        "unconverged_fraction": result.unconverged_fraction,
        "peak_gpu_gb": torch.cuda.max_memory_allocated() / 1e9,
    }  # fmt: skip


def main() -> None:
    parser = script_parser(__doc__)
    add = parser.add_argument
    add("--rollouts", type=int, default=8, metavar="G", help="rollouts of the group (default 8)")
    add("--tokens", type=int, default=1000, metavar="T", help="tokens of each rollout (default 1000)")
    add("--micro-batch", type=int, default=4, help="rollouts a pass; affects memory more than time (default 4)")
    add("--rounds", type=int, default=3, help="turns of each stage; the best counts (default 3)")
    args = parser.parse_args()
    args.device = pick_device("cuda", "a machine with a CUDA GPU")  # 7B parameters are too many to time on a CPU
    found = {"environment": environment(args.device), **measure(args)}
    shares = [
        {"stage": name, "seconds": s, "share": f"{100 * s / found['step_s']:.3f} %"}
        for name, s in found["seconds"].items()
    ]
    title = f"Qwen2.5-7B, {args.rollouts} x {args.tokens} tokens"
    print_table(title, shares, {"stage": "stage", "seconds": "seconds", "share": "of the step"})
    print(f"credit: {100 * found['credit_share']:.3f} % of the step; < {TARGET:.0%}: {found['met']}")
    print(f"of {found['pairs']:,} span pairs {found['solved_share']:.1%} were solved; random weights, see --help")
    write_json(args.output, found)


if __name__ == "__main__":
    main()
