"""Time of a forward and backward pass of a small policy on this CPU, with three kinds of products.

They are the CPU's own bfloat16 products, those of `kernels.bfloat16`, and float32. The kinds take turns, in a process
each.

    python benchmarks/bfloat16.py --output benchmarks/results/bfloat16.json
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median

import torch
from measure import print_table, script_parser, write_json

from openrlhf_shear.kernels.bfloat16 import multiply_in_float32
from openrlhf_shear.report.provenance import provenance
from openrlhf_shear.tasks.arithmetic.policy import build_model, build_tokenizer

WAYS = {"own": "bfloat16, the CPU's own", "float32": "float32", "widened": "bfloat16, multiplied in float32"}


def seconds(way: str, sequences: int, tokens: int, repeats: int) -> float:
    """Return the CPU seconds of a forward and a backward pass, the median over the repeats."""
    torch.set_num_threads(1)
    if way == "widened":
        multiply_in_float32()
    tokenizer = build_tokenizer(7)
    model = build_model(tokenizer, 0).to(torch.float32 if way == "float32" else torch.bfloat16)
    ids = torch.randint(3, len(tokenizer), (sequences, tokens))
    taken = []
    for _ in range(repeats + 1):  # the first pass warms up
        began = time.process_time()
        model(input_ids=ids, labels=ids).loss.backward()
        taken.append(time.process_time() - began)
    return median(taken[1:])


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--sequences", type=int, default=32, help="of a pass (default 32)")
    parser.add_argument("--tokens", type=int, default=128, help="of a sequence (default 128)")
    parser.add_argument("--repeats", type=int, default=3, help="passes of a round, whose median counts (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each kind of products (default 3)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(seconds(args.way, args.sequences, args.tokens, args.repeats)))
        return
    taken = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in WAYS:
            line = [sys.executable, __file__, *sys.argv[1:], "--way", way]
            taken[way].append(json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout))
    rows = [
        {"way": title, "seconds": median(taken[way]), "of_float32": median(taken[way]) / median(taken["float32"])}
        for way, title in WAYS.items()
    ]
    capability = torch.backends.cpu.get_cpu_capability()
    print_table(
        f"CPU {capability}: a pass over {args.sequences} x {args.tokens} tokens",
        rows,
        {"way": "", "seconds": "CPU seconds", "of_float32": "in passes of float32"},
    )
    write_json(args.output, {**provenance(), "cpu": capability, "seconds": taken, "rows": rows})


if __name__ == "__main__":
    main()
