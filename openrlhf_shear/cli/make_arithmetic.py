"""Write the built-in arithmetic task to a folder: training problems, held-out problems and the start policy."""

import argparse
import shutil
from pathlib import Path

from openrlhf_shear.line import frame
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems, write_dataset

EPILOG = """\
Each row of the two files is a problem with its answer:

  {"prompt": "37a+45bx7c-12d+08ex3f-31g+77=", "answer": "56", "datasource": "arithmetic"}

No problem of heldout.jsonl can occur in train.jsonl, whatever the seeds. The policy is a 0.64M-parameter Qwen2 model
that answers a little under half of the problems when sampled at temperature 1. To train on it, give OpenRLHF

  --data.prompt_dataset DIR/train.jsonl --data.input_key prompt --data.label_key answer
  --actor.model_name_or_path DIR/policy --reward.remote_url openrlhf_shear/tasks/arithmetic/arithmetic.py

The same options always write the same files.
"""


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder to write; created if missing")
    parser.add_argument("--train", type=int, default=4096, help="number of training problems (default: 4096)")
    parser.add_argument("--heldout", type=int, default=256, help="number of held-out problems (default: 256)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems (default: 0)")
    about = "also write prm/, a process reward model with random weights and meaningless scores, for "
    about += "--prm.model_name_or_path DIR/prm --prm.separator ';'"
    parser.add_argument("--prm", action="store_true", help=about)


@frame.command(_flags, __doc__, EPILOG)
def main(args: argparse.Namespace) -> None:
    frame.at_least(args, train=0, heldout=0)
    for name, n in (("train", args.train), ("heldout", args.heldout)):
        path = write_dataset(args.out / f"{name}.jsonl", n, args.seed, split=name)
        print(f"{path}: {n} problems")
    policy = args.out / "policy"
    shutil.copytree(POLICY_DIR, policy, dirs_exist_ok=True)
    size = sum(file.stat().st_size for file in policy.iterdir())
    print(f"{policy}: the warmed-up policy ({size / 1e6:.1f} MB)")
    if args.prm:
        from openrlhf_shear.tasks.arithmetic.prm import write_prm

        print(f"{write_prm(args.out / 'prm', args.seed)}: a process reward model with random weights")
    if args.train:
        example = make_problems(1, args.seed)[0]
        print(f"the first problem: {example.prompt} (answer {example.answer})")


if __name__ == "__main__":
    main()
