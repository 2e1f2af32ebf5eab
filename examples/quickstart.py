"""SHEAR in a minute, with `pip install .` alone: a group of rollouts, their weights, a heatmap, a page.

    python examples/quickstart.py --output runs/quickstart

The policy is the small one that ships with the package; its task is chain arithmetic, one character a token.
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

import torch

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.credit.heatmaps import group_evidence
from openrlhf_shear.lab.policy import Policy
from openrlhf_shear.lab.rollouts import sample
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.rollouts.columns import span_columns, token_columns
from openrlhf_shear.rollouts.page import make_page
from openrlhf_shear.rollouts.record import Rollout
from openrlhf_shear.tasks.arithmetic import arithmetic
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems

START = time.perf_counter()
GROUP = 6
SHADES = " ░▒▓█"  # small to large


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), help="folder of the page")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    doing("loading the policy")
    # A group: several responses of the policy to one problem, some right, some wrong.
    settings = LabSettings(precision="float32", samples_per_prompt=GROUP)
    policy = Policy(POLICY_DIR, settings)
    problems = make_problems(8, args.seed, "heldout")
    doing(f"sampling {GROUP} responses to each of {len(problems)} problems")
    rollouts = sample(policy, problems, GROUP, settings, args.seed)
    number, group = next((n, g) for n, g in enumerate(rollouts.groups) if len(set(rollouts.correct[g])) == 2)
    correct, prompt = list(rollouts.correct[group]), problems[number].prompt
    with torch.no_grad():
        reading = policy.read(rollouts.sequences[group], rollouts.mask[group], states=True)

    doing("SHEAR's weights (the first call compiles loops)")
    # SHEAR: a token weighs as much as its spans are far from the rollouts of the other outcome.
    config = ShearConfig(window=16, stride=4)
    result = shear_weights(reading.states, correct, config)
    advantages = group_advantages(torch.tensor(correct).float(), GROUP)

    ids = [row[1:][mask].tolist() for row, mask in zip(rollouts.sequences[group], rollouts.mask[group], strict=True)]
    print(f"{prompt}  {sum(correct)} of {GROUP} are right (+). Darker tokens have more of the credit:\n")
    for is_right, row, weights, first_error in zip(
        correct, ids, result.weights, rollouts.first_errors[group], strict=True
    ):
        print("+" if is_right else "-", policy.tokenizer.decode(row, skip_special_tokens=True))
        print(" ", shaded(weights), "" if first_error is None else f"  first error at {first_error}")

    doing("the distances of all spans")
    # How far spans of two rollouts are from each other, whatever their outcomes.
    evidence = group_evidence(reading.states, result, config, SearchConfig())
    i, j = sorted((correct.index(True), correct.index(False)))
    print(f"\nspans of rollout {i} (down) and of rollout {j} (across), darker is farther:\n")
    for line in evidence.rollouts[i].heatmaps[j]:
        print(" ", shaded(line))

    # The page shows all of it: tokens, nearest spans side by side, heatmaps.
    rows = [
        Rollout(
            group=str(number),
            sample=k,
            prompt=prompt,
            label=problems[number].answer,
            correct=correct[k],
            reward=float(correct[k]),
            advantage=advantages[k].item(),
            truncated=ids[k][-1] != policy.tokenizer.eos_token_id,
            weights=result.weights[k].tolist(),
            token_advantages=(advantages[k] * result.weights[k]).tolist(),
            **token_columns(policy.tokenizer, prompt, ids[k], arithmetic.first_error),
            **span_columns(evidence.rollouts[k], range(GROUP)),
        )
        for k in range(GROUP)
    ]
    page = make_page(
        rows, {"rule": "shear", "model": "the shipped policy", **asdict(config)}, "SHEAR in a minute", None
    )
    args.output.mkdir(parents=True, exist_ok=True)
    path = args.output / "rollouts.html"
    path.write_text(page, encoding="utf-8")
    print(f"\n{path}: open it in a browser")


def doing(what: str) -> None:
    """Show a stage, after the seconds since the program's start."""
    print(f"[{time.perf_counter() - START:5.1f} s] {what} ...", flush=True)


def shaded(values: torch.Tensor) -> str:
    """A sign for each value."""
    low, high = values.min(), values.max()
    scaled = (values - low) / (high - low).clamp(min=1e-9)
    return "".join(SHADES[int(value * (len(SHADES) - 1) + 0.5)] for value in scaled.tolist())


if __name__ == "__main__":
    main()
