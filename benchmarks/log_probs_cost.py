"""The cost of log-probs from the engines, on the same prompts, in three ways that take turns.

The ways are no log-probs, those of the drawn tokens (as in training), and the best token's too (as in OpenRLHF).

    python benchmarks/log_probs_cost.py --output log_probs_cost.json
    python benchmarks/log_probs_cost.py --models Qwen/Qwen2.5-7B --device cuda

One engine runs them all; every prompt has another seed.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

from measure import best_times, environment, pick_device, print_table, script_parser, write_json

from openrlhf_shear.tasks.arithmetic.problems import make_problems
from openrlhf_shear.tasks.arithmetic.smollm2 import write_smollm2

POLICY = Path(__file__).resolve().parents[1] / "openrlhf_shear" / "tasks" / "arithmetic" / "shipped_policy"
SMOLLM2 = "smollm2"
WAYS = {"none": None, "drawn token": 0, "drawn and best token": 1}


def sampled(engine, prompts: list[str], tokens: int, log_probs: int | None) -> list[tuple[int, ...]]:
    """Sample and return the drawn tokens."""
    from vllm import SamplingParams

    common = {"max_tokens": tokens, "ignore_eos": True, "logprobs": log_probs}
    asked = [SamplingParams(seed=number, **common) for number in range(len(prompts))]
    return [tuple(output.outputs[0].token_ids) for output in engine.generate(prompts, asked, use_tqdm=False)]


def measured(model: str, args: argparse.Namespace, device: str) -> list[dict]:
    from vllm import LLM

    more = {"enforce_eager": True, "enable_chunked_prefill": False} if device == "cpu" else {}
    engine = LLM(model, dtype="bfloat16", max_model_len=512, logprobs_mode="processed_logprobs", **more)
    prompts = [problem.prompt for problem in make_problems(args.prompts, seed=0)]
    jobs = {name: partial(sampled, engine, prompts, args.tokens, asked) for name, asked in WAYS.items()}
    drawn = [job() for job in jobs.values()]  # also compiles
    best, every = best_times(jobs, args.rounds, "cpu")
    words = engine.llm_engine.model_config.get_vocab_size()
    return [
        {
            **{"model": Path(model).name, "vocabulary": words, "log_probs": name, "seconds": seconds},
            "tokens_a_second": args.prompts * args.tokens / seconds,
            "times_none": seconds / best["none"],
            "same_tokens": drawn[0] == tokens,
            "rounds": every[name],
        }
        for (name, seconds), tokens in zip(best.items(), drawn, strict=True)
    ]


def main() -> None:
    args = _parser().parse_args()
    device = pick_device(args.device)
    if device == "cpu":
        from openrlhf_shear.train.cpu import backend as cpu_backend

        cpu_backend.install()
    about, rows = environment(device), []
    with tempfile.TemporaryDirectory() as temporary:
        for model in args.models:
            folder = str(write_smollm2(Path(temporary, SMOLLM2))) if model == SMOLLM2 else model
            rows += measured(folder, args, device)
    columns = {
        **{"model": "model", "vocabulary": "vocabulary", "log_probs": "log-probs", "seconds": "seconds"},
        **{"tokens_a_second": "tokens/s", "times_none": "times none", "same_tokens": "same tokens"},
    }
    print_table(f"{args.prompts} prompts, {args.tokens} tokens each, {device}", rows, columns)
    write_json(args.output, {"environment": about, "rows": rows})


def _parser() -> argparse.ArgumentParser:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--models", nargs="+", default=[str(POLICY), SMOLLM2], help="folders, hub ids or smollm2 (the PyPI package's)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: auto)")
    parser.add_argument("--prompts", type=int, default=16, help="concurrent prompts (default: 16)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each response (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way; the best counts (default: 5)")
    return parser


if __name__ == "__main__":
    main()
