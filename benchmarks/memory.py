"""Memory of an actor on the CPU profile in every phase, measured and as memory/estimate.py estimates it.

The strategy, the actor and DeepSpeed are those of training, in two processes without Ray. The measure is the peak of
each process's resident memory, less that before its model was loaded. flash-attn's cross entropy needs CUDA, so a
stand-in allocates what it does: a gradient as large as the logits. Steps are not compared: torch's AdamW has
temporaries that DeepSpeed's fused AdamW does not have.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import types
from functools import partial
from pathlib import Path

MIB = 2**20
RANKS = 2
SIZES = {  # hidden size, layers, MLP, vocabulary
    "small": (384, 6, 1024, 16384),
    "middle": (640, 10, 1792, 32768),
    "large": (1024, 14, 2816, 32768),
    "wide": (384, 6, 1024, 152064),
}
CASES = (  # size, ZeRO stage, whether activations are checkpointed, tokens of --actor.logits_chunk
    *(("small", 3, True, 0), ("middle", 3, True, 0), ("large", 3, True, 0), ("large", 2, True, 0)),
    *(("middle", 3, False, 0), ("wide", 3, True, 0), ("wide", 3, True, 64)),
)


def write_model(folder: Path, size: str) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    hidden, layers, mlp, vocabulary = SIZES[size]
    heads = {"num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 128}
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": mlp, "vocab_size": vocabulary}
    config = Qwen2Config(**sizes, **heads, tie_word_embeddings=False, torch_dtype="bfloat16")
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")


def flags(folder: Path, stage: int, checkpointing: bool, chunk: int, tokens: int) -> list[str]:
    (folder / "prompts.jsonl").write_text('{"prompt": "x"}\n')
    (folder / "reward.py").write_text("def reward_func(queries, prompts, labels): return {'rewards': 0.0}\n")
    values = {"actor.model_name_or_path": folder, "data.prompt_dataset": folder / "prompts.jsonl"}
    values |= {"data.input_key": "prompt", "reward.remote_url": folder / "reward.py", "device": "cpu"}
    values |= {"actor.num_gpus_per_node": RANKS, "vllm.num_engines": 1, "algo.kl.init_coef": 0, "ds.zero_stage": stage}
    values |= {"algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 2, "data.max_len": tokens}
    values |= {"actor.logits_chunk": chunk}
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return words + ["--actor.gradient_checkpointing_enable"] * checkpointing


def resident(what: str = "VmRSS") -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(what))


class Peak:
    """The peak of resident memory inside a block, by the kernel's high-water mark, which it resets at the start."""

    def __enter__(self):
        Path("/proc/self/clear_refs").write_text("5")
        return self

    def __exit__(self, *raised):
        self.bytes = resident("VmHWM")


def install_cross_entropy() -> None:
    """Allocate as flash_attn.ops.triton.cross_entropy does: nothing large forward, `empty_like(logits)` backward."""
    import torch

    class CrossEntropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, labels):
            lse = torch.cat([part.logsumexp(-1) for part in logits.split(16)])
            ctx.save_for_backward(logits, labels, lse)
            return lse - logits.gather(-1, labels[:, None])[:, 0]

        @staticmethod
        def backward(ctx, upstream):
            logits, labels, lse = ctx.saved_tensors
            gradient = torch.empty_like(logits)
            for i in range(0, len(logits), 16):
                rows = slice(i, i + 16)
                part = (logits[rows] - lse[rows, None]).exp_()
                part.scatter_add_(-1, labels[rows, None], -torch.ones_like(part[:, :1]))
                gradient[rows] = part.mul_(upstream[rows, None])
            return gradient, None

    module = types.ModuleType("flash_attn.ops.triton.cross_entropy")
    module.cross_entropy_loss = lambda logits, labels: (CrossEntropy.apply(logits, labels), None)
    for name in ("flash_attn.ops", "flash_attn.ops.triton"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules[module.__name__] = module


def work(words: list[str], tokens: int) -> dict[str, int]:
    """Run a rank; return the bytes of each phase beyond those before the model."""
    from openrlhf_shear.train.cpu import backend as cpu_backend

    cpu_backend.install()
    install_cross_entropy()
    import gc

    import torch
    from openrlhf.models import Actor
    from openrlhf.utils.config import hierarchize

    from openrlhf_shear.cli.train_ppo_ray import parse
    from openrlhf_shear.train.update.losses import ChunkedActor
    from openrlhf_shear.train.update.strategy import ShearStrategy

    torch.set_num_threads(1)
    args = hierarchize(parse(words))
    strategy = type("Strategy", (cpu_backend.CpuStrategy, ShearStrategy), {})(
        zero_stage=args.ds.zero_stage, train_batch_size=RANKS, micro_train_batch_size=1, args=args
    )
    strategy.setup_distributed()
    name, dtype = args.actor.model_name_or_path, args.ds.param_dtype
    torch.nn.functional.linear(torch.ones(64, 64).bfloat16(), torch.ones(64, 64).bfloat16())  # oneDNN's buffers
    gc.collect()
    before, found = resident(), {}

    config = strategy.get_ds_train_config()
    chunk = args.actor.logits_chunk
    kind = partial(ChunkedActor, chunk) if chunk else Actor
    actor = kind(name, attn_implementation=args.ds.attn_implementation, param_dtype=dtype, ds_config=config)
    if args.actor.gradient_checkpointing_enable:
        actor.gradient_checkpointing_enable({"use_reentrant": False})
    settings = {"optim": "adam", "muon": {}, "adam": vars(args.actor.adam), "scheduler_steps": 10, "max_norm": 1.0}
    actor, optimizer, _ = strategy.prepare((actor, settings))
    gc.collect()

    sequences = torch.randint(0, 1000, (1, tokens), generator=torch.Generator().manual_seed(0))
    masks = torch.ones_like(sequences), torch.ones(1, tokens - 1, dtype=torch.int64)

    def log_probs(**kwargs):
        return actor(sequences, masks[1], attention_mask=masks[0], **kwargs)

    for _ in range(2):  # the first update makes Adam's moments, and ZeRO-3 learns the order of its parameters
        actor.train()
        with Peak() as backward:
            values, output = log_probs(return_output=True)
            strategy.backward((values * torch.linspace(-1, 1, tokens - 1)).mean(), actor, optimizer)
        del values, output
        with Peak() as step:
            strategy.optimizer_step(optimizer, actor, None)
        gc.collect()
        found |= {"backward": backward.bytes, "step": step.bytes, "idle": resident()}
    actor.eval()
    with Peak() as forward, torch.no_grad():
        log_probs()
    found["log-probs"] = forward.bytes
    return {phase: size - before for phase, size in found.items()}


def measure(words: list[str], tokens: int) -> dict[str, int]:
    """Return the largest of the ranks' bytes, by phase."""
    from measure import free_port

    # Every large tensor gets separate pages, which go back when it is freed.
    memory = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    group |= {"OMP_NUM_THREADS": "1"}
    line = [sys.executable, __file__, "--tokens", str(tokens), "--rank", "--", *words]
    ranks = []
    for rank in range(RANKS):
        environment = os.environ | memory | group | {"RANK": str(rank), "LOCAL_RANK": str(rank), "HF_HUB_OFFLINE": "1"}
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(line, env=environment, **piped))
    said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("\n".join(said))
    found = [json.loads(next(line for line in text.splitlines() if line.startswith('{"'))) for text in said]
    return {phase: max(sizes[phase] for sizes in found) for phase in found[0]}


def estimated(words: list[str]) -> dict[str, float]:
    """Return the estimated bytes by phase, without GPU-only parts (contexts, engines, the allocator's fragments)."""
    from openrlhf_shear.cli.train_ppo_ray import read
    from openrlhf_shear.preflight.memory import plan

    verdict = read(words)
    phases = {phase.name: phase.parts for phase in plan(verdict.run, verdict.models).estimate().phases}
    found = {
        name: sum(size for part, size in parts.items() if part not in ("reserve", "vLLM"))
        for name, parts in phases.items()
    }
    return found | {"idle": found["generation"]}


def main() -> None:
    from measure import environment, print_table, script_parser, write_json

    parser = script_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the single sequence of a pass (default 512)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        print(json.dumps(work(args.words, args.tokens)))
        return
    rows = []
    for size, *how in CASES:
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), size)
            words = flags(Path(folder), *how, args.tokens)
            found, expected = measure(words, args.tokens), estimated(words)
        for phase in ("idle", "log-probs", "backward"):
            sizes = {"measured_mib": found[phase] / MIB, "estimated_mib": expected[phase] / MIB}
            case = dict(zip(("zero_stage", "checkpointing", "logits_chunk"), how, strict=True)) | {"phase": phase}
            rows.append({"size": size} | case | sizes | {"ratio": expected[phase] / found[phase]})
    headings = {"size": "size", "zero_stage": "ZeRO", "checkpointing": "checkpointing"}
    headings |= {"logits_chunk": "tokens of logits", "phase": "phase"}
    headings |= {"measured_mib": "measured, MiB", "estimated_mib": "estimated, MiB", "ratio": "ratio"}
    print_table(f"{RANKS} ranks, {args.tokens} tokens a pass", rows, headings)
    if args.output:
        write_json(args.output, {"environment": environment(), "tokens": args.tokens, "rows": rows})


if __name__ == "__main__":
    main()
