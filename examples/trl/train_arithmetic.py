"""Train the built-in arithmetic policy with TRL's GRPO and SHEAR, on a CPU in minutes (docs/trl.md).

pip install '.[trl]'
python examples/trl/train_arithmetic.py --steps 40 --credit shear/window=16/stride=4
ACCELERATE_USE_CPU=true torchrun --standalone --nproc-per-node 2 examples/trl/train_arithmetic.py
"""

import argparse

import torch
from datasets import Dataset
from trl import GRPOConfig

from openrlhf_shear.integrations.trl import ShearGRPOTrainer
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems, parse_problem
from openrlhf_shear.tasks.arithmetic.sampling import Accuracy, sampled_checks
from openrlhf_shear.tasks.arithmetic.solutions import MAX_RESPONSE_TOKENS, check
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask

GROUP = 8  # rollouts a problem


def right(prompts: list[str], completions: list[str], **_) -> list[float]:
    """TRL's reward interface: 1 for the right final answer, else 0."""
    return [
        float(check(parse_problem(prompt), text).correct) for prompt, text in zip(prompts, completions, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--credit", default="shear/window=16/stride=4", help="a rule, as docs/credit-rules.md names it")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=8, help="problems a step and process")
    parser.add_argument("--heldout", type=int, default=256, help="problems of the accuracy before and after")
    parser.add_argument("--output", default="runs/trl")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = [{"prompt": problem.prompt} for problem in make_problems(4096, 10_000 + args.seed)]
    config = GRPOConfig(
        args.output,
        max_steps=args.steps,
        seed=args.seed,
        num_generations=GROUP,
        per_device_train_batch_size=args.prompts * GROUP // 2,
        gradient_accumulation_steps=2,
        max_completion_length=MAX_RESPONSE_TOKENS,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=5,
        save_strategy="no",
        report_to=[],
    )
    trainer = ShearGRPOTrainer(str(POLICY_DIR), right, config, Dataset.from_list(rows), credit=args.credit)
    heldout = make_problems(args.heldout, 0, "heldout")

    def accuracy() -> float:
        model = trainer.accelerator.unwrap_model(trainer.model).eval()
        checks = sampled_checks(model, trainer.processing_class, ArithmeticTask(), heldout, args.seed)
        return Accuracy.of(checks).correct

    before = accuracy()
    trainer.train()
    after = accuracy()
    if trainer.accelerator.is_main_process:
        print(f"{args.credit}: {before:.1%} right before, {after:.1%} after {args.steps} steps")


if __name__ == "__main__":
    main()
