"""Run TRL's own tests of GRPOTrainer with TRL's trainer and with ours, and print the differences.

    .venv-trl/bin/python scripts/trl_own_tests.py FOLDER [--credit RULE] [--steps N] [--output FILE.json] [pytest words]

FOLDER is a clone of TRL, of any version. Its package is tested, or with `--installed` that of the environment. Tiny
models with random weights take the place of those on the hub, and TRL's own script makes the data. Where a test trains
with both, the sums of the final weights are compared. Exit code 1: a test passes with TRL's trainer alone.
"""

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
TESTS = "tests/test_grpo_trainer.py"
TINY = re.compile(r"trl-internal-testing/(tiny-(\w+For(?:CausalLM|SequenceClassification))[\w.-]*)")
# TRL's tests write down ids of Qwen's tokenizer: special tokens, and the pieces of their tool calls.
VOCABULARY, PAD, END = 151936, 151643, 151645
SPECIAL = {PAD: "<|endoftext|>", 151644: "<|im_start|>", END: "<|im_end|>", 151646: "<|finetune_right_pad_id|>"}
PIECES = """
    330 Ġ" 4913 {" 5212 Ġ{" 788 ": 497 ", 11248 }}Ċ 95642 "}}Ċ 314 Ġ{ 397 >Ċ 522 </ 606 name 16370 arguments 6659 call
    64648 multiply 93054 _multiply 22785 _tool 7692 async 293 Ġb 35744 increment 16252 Ġincrement 450 dec 13477 rement
    9520 step 927 sh 411 out 1318 text 6023 hi 14172 tool 17453 Done 1513 Ġdon 2765 Ġwon 944 't 1414 Ġknow 894 Ġany
    5392 Ġtool 151657 <tool_call> 151658 </tool_call>
"""
SMALL = {
    **{"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": PAD, "num_labels": 1},
    **{"hidden_size": 8, "intermediate_size": 32, "moe_intermediate_size": 32, "head_dim": 2, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2},
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),  # one of them, as each class names it
}


def make_models(trl: Path, hub: Path) -> None:
    """Save a small model and a tokenizer for every name in the tests, in the form of the hub's cache."""
    import torch
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    templates = {name: (trl / f"trl/chat_templates/{name}.jinja").read_text("utf-8") for name in ("qwen2_5", "qwen3")}
    tests = (trl / TESTS).read_text("utf-8")
    pieces = {int(i): piece for i, piece in re.findall(r"(\d+) (\S+)", PIECES)}
    seen = {word for text in (tests, *templates.values()) for word, _ in byte_level.pre_tokenize_str(text)}
    seen -= {*byte_level.alphabet(), *pieces.values()}
    words = dict(enumerate(sorted(byte_level.alphabet()))) | dict(enumerate(sorted(seen), 1000)) | pieces | SPECIAL
    vocabulary = {words.get(i, f"w{i}"): i for i in range(VOCABULARY)}
    bpe = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))  # a word of the tests is one token
    bpe.pre_tokenizer, bpe.decoder = byte_level, decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL.values()])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=SPECIAL[PAD], eos_token=SPECIAL[END], padding_side="left"
    )
    torch.manual_seed(0)
    for name, kind in sorted(set(TINY.findall(tests))):
        if (architecture := getattr(transformers, kind, None)) is None:
            continue
        model = architecture(architecture.config_class(**SMALL))
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.xavier_uniform_(layer.weight)  # else the reward models' scores hardly differ
        repo = hub / f"models--trl-internal-testing--{name}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs/main").write_text("tiny")
        tokenizer.chat_template = templates["qwen3" if "Qwen3" in name else "qwen2_5"]
        model.save_pretrained(repo / "snapshots/tiny")
        tokenizer.save_pretrained(repo / "snapshots/tiny")


class Results:
    """Plugin of pytest: {test: [outcome, first line of the reason or None, sums of the weights after training]}."""

    def __init__(self):
        self.rows: dict[str, list] = {}
        self.weights: list[str] = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(report.longrepr if crash is None else crash.message).strip().splitlines()
            self.rows[report.nodeid] = [report.outcome, reason[0] if report.longrepr else None, self.weights]
        self.weights = []


def run(args: argparse.Namespace, words: list[str]) -> None:
    """Run the tests in this process, with one of the trainers, and write their results as JSON."""
    if not args.installed:
        sys.path.insert(0, str(args.trl))
    import datasets
    import pytest
    import trl

    zen, results = {}, Results()

    def push_to_hub(data, _, config_name):
        zen[config_name] = data

    with patch.object(datasets.DatasetDict, "push_to_hub", push_to_hub):
        runpy.run_path(str(args.trl / "scripts/generate_zen_dataset.py"))["main"](0.1, True, "")

    def load_dataset(_, name, split=None, streaming=False):
        data = zen[name]
        if streaming:
            data = datasets.IterableDatasetDict({key: value.to_iterable_dataset() for key, value in data.items()})
        return data if split is None else data[split]

    def train(trainer, *values, **named):
        trainer.args.max_steps = args.steps or trainer.args.max_steps
        output = theirs(trainer, *values, **named)
        total = sum(weight.detach().double().sum() for weight in trainer.model.parameters())
        results.weights.append(float(total).hex())
        return output

    datasets.load_dataset = load_dataset
    theirs, trl.GRPOTrainer.train = trl.GRPOTrainer.train, train
    if args.run == "ours":
        from openrlhf_shear.integrations.trl import ShearGRPOTrainer

        class Ours(ShearGRPOTrainer):
            def __init__(self, *values, **named):
                super().__init__(*values, credit=args.credit, **named)

        trl.GRPOTrainer = Ours
    os.chdir(args.trl)
    code = pytest.main(["-q", "-p", "no:cacheprovider", TESTS, *words], plugins=[results])
    args.output.write_text(json.dumps(results.rows))
    sys.exit(code if code > 1 else 0)


def report(theirs: dict, ours: dict) -> bool:
    """Print both counts and every difference; return whether a test passes with TRL's trainer alone."""
    for name, rows in (("TRL's trainer", theirs), ("ShearGRPOTrainer", ours)):
        counts = Counter(outcome for outcome, *_ in rows.values())
        print(f"{name:16}", *(f"{counts[each]:5} {each}" for each in ("passed", "failed", "skipped")))
    trained = [test for test in theirs if theirs[test][2] and ours.get(test, [[]])[-1]]
    other = {test for test in trained if theirs[test][2] != ours[test][2]}
    print(f"{len(trained)} tests train with both, {len(trained) - len(other)} of them to the same sum of weights")
    lost = False
    for test in sorted(theirs | ours):
        (before, why, _), (after, reason, _) = (rows.get(test, ["missing", None, []]) for rows in (theirs, ours))
        if before != after or test in other or before == "failed":
            what = "other weights" if test in other else reason or why
            print(f"  {test.partition('::')[2]}: {before} / {after}; {what}")
        lost |= before == "passed" != after
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("trl", type=Path, metavar="FOLDER")
    parser.add_argument("--credit", default="uniform", help="rule of our trainer (default: uniform)")
    parser.add_argument("--steps", type=int, help="end each training after so many; tests that count them fail")
    parser.add_argument("--installed", action="store_true", help="test the environment's TRL")
    parser.add_argument("--output", type=Path, help="JSON file")
    parser.add_argument("--run", choices=("trl", "ours"), help=argparse.SUPPRESS)
    args, words = parser.parse_known_args()
    args.trl = args.trl.resolve()
    if not (args.trl / TESTS).is_file():
        parser.error(f"FOLDER must be a clone of TRL: got {args.trl}, without {TESTS}")
    if args.run:
        run(args, words)
    both = {}
    with tempfile.TemporaryDirectory() as folder:
        # TRL's tests of tools import jmespath; some of its versions import requests.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", f"{folder}/packages"]
        subprocess.run([*pip, "jmespath", "requests"], check=True)
        make_models(args.trl, Path(folder, "hub"))
        env = os.environ | {"HF_HOME": folder, "HF_HUB_OFFLINE": "1", "OPENRLHF_SHEAR_ANY_VERSION": "1"}
        env["PYTHONPATH"] = os.pathsep.join([f"{folder}/packages", str(ROOT), os.environ.get("PYTHONPATH", "")])
        for which in ("trl", "ours"):
            line = [sys.executable, __file__, *sys.argv[1:], "--run", which, "--output", f"{folder}/{which}.json"]
            subprocess.run(line, env=env, check=True)
            both[which] = json.loads(Path(folder, f"{which}.json").read_text())
    if args.output:
        args.output.write_text(json.dumps(both, indent=1))
    sys.exit(report(both["trl"], both["ours"]))


if __name__ == "__main__":
    main()
