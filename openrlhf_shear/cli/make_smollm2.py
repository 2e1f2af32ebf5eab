"""Write SmolLM2-135M-Instruct as a Hugging Face folder, with GSM8K-style training problems."""

import argparse
from pathlib import Path

from openrlhf_shear.line import frame


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="folder to write policy/ and train.jsonl into"
    )
    parser.add_argument("--problems", type=int, default=512, help="number of problems (default: 512)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems (default: 0)")
    parser.add_argument("--easy", action="store_true", help="write one-step problems, some of which the model solves")


@frame.command(_flags, __doc__)
def main(args: argparse.Namespace) -> None:
    frame.at_least(args, problems=1)
    # Imported late, so that --help is instant.
    from openrlhf_shear.tasks.smollm2 import write_smollm2, write_word_problems

    print(f"model:    {write_smollm2(args.out / 'policy')}")
    print(f"problems: {write_word_problems(args.out / 'train.jsonl', args.problems, args.seed, args.easy)}")


if __name__ == "__main__":
    main()
