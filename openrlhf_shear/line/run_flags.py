"""Flags of this fork for how a run starts, logs, stops and resumes, and for benchmarks during training."""

import argparse

from openrlhf_shear.line import accepted, run_file


def add_flag(group: argparse._ArgumentGroup, flag: str, default: object, about: str, **how) -> None:
    """Add a flag of its default's type, and append the default to its help."""
    kind = {"action": "store_true"} if default is False else {"type": type(default)}
    shown = f"{default:g}" if isinstance(default, float) else default
    group.add_argument(flag, default=default, help=f"{about} (default: {shown})", **kind, **how)


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a run that OpenRLHF does not have, except those of rewards and of credit rules."""
    group = parser.add_argument_group("openrlhf_shear", "how a run of this fork starts, logs, stops and resumes")
    _add_start(group)
    _add_output(group)
    _add_checkpoints(group)
    _add_limits(group)
    _add_suite(parser)


def _add_start(group: argparse._ArgumentGroup) -> None:
    add_flag(
        group,
        "--device",
        "auto",
        "Hardware of the training. auto: cuda if there is a GPU, else cpu. cpu: the CPU profile, in which the same "
        "actors, vLLM's CPU build and DeepSpeed run on processor cores over gloo; for small models, tests and trying "
        "out the pipeline",
        choices=("auto", "cuda", "cpu"),
    )
    add_flag(
        group, "--trust_remote_code", False, "Run Python code that comes with a model (auto_map in its config.json)"
    )
    size = (
        "Check that the run fits into GPUs with this memory in GiB (docs/memory.md), e.g. 80 to plan for other "
        "machines; 0 means the smallest GPU of this machine"
    )
    add_flag(group, "--device_memory", 0.0, size, metavar="GIB")
    group.add_argument(
        "--config",
        nargs="+",
        metavar="FILE",
        help="Read flags from YAML files, or from presets of this package "
        f"({', '.join(run_file.PRESET_NAMES)}). Later files win, and flags on the command line win over all files. "
        "A run writes RUN/run.yaml (RUN is the parent folder of --ckpt.path), which starts the same run again",
    )
    verbose = "Print all output of Ray, DeepSpeed and vLLM; without it this output goes only to RUN/logs/train.log"
    add_flag(group, "--verbose", False, verbose)
    tried = "Check the command line, show the memory that the run takes, and start nothing"
    add_flag(group, "--dry_run", False, tried)
    listed = "A dry run that prints all problems and warnings as JSON (refusals, told); exit code 0 or 2"
    add_flag(group, "--json", False, listed)


def _add_output(group: argparse._ArgumentGroup) -> None:
    add_flag(
        group,
        "--credit.dump_rollouts_every",
        0,
        "Write all rollouts of the first step and of every N-th step to CKPT_PATH/rollouts/step000020.parquet; 0 means "
        "never. The file has tokens, weights and advantages. With shear it also has the spans, the nearest opposing "
        "span of each span, and the distances between the spans of every two rollouts of a prompt. Works for every "
        "credit rule that acts before the update, also uniform (GRPO). openrlhf_shear.cli.rollout_page makes a page "
        "from a file",
        dest="dump_rollouts_every",
        metavar="N",
    )
    before = "Also evaluate on --eval.dataset before the first step, so that curves start at the base model"
    add_flag(group, "--eval.before_train", False, before)


def _add_checkpoints(group: argparse._ArgumentGroup) -> None:
    best = "For the best evaluation save only the model (CKPT_PATH/best_global_stepN_hf), without optimizer state"
    add_flag(group, "--ckpt.best_weights_only", False, best)
    means = "; ".join(f"{topic}: {meaning}" for topic, meaning in accepted.TAKEN.items())
    group.add_argument(
        f"--{accepted.FLAG}",
        metavar="TOPICS",
        help="With --ckpt.load_enable, resume from a checkpoint of another run that differs in these topics, separated "
        f"by commas (default: none). {means}",
    )
    restarts = (
        "Restart a failed run (an actor or a node died, the driver was killed) from its last checkpoint, at most this "
        "many times"
    )
    add_flag(group, "--train.max_restarts", 0, restarts, metavar="N")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    """Add how long a run waits, and what stops it."""
    gap = (
        "Stop if in three steps in a row the mean gap between an engine's log-probs and the policy's exceeds this, in "
        "nats a token. A smaller gap stops the run too if the engine demonstrably has old weights or no adapters; 0 "
        "means never"
    )
    add_flag(group, "--vllm.max_gap", 0.3, gap, metavar="NATS")
    wait = (
        "If the cluster has fewer GPUs than the run needs (an autoscaler may add some), wait this many seconds before "
        "the run is refused. Restarts by --train.max_restarts wait 600 s for a node to come back"
    )
    add_flag(group, "--train.wait_for_gpus", 0.0, wait, metavar="SECONDS")
    skipped = "Stop after this many steps in a row without a finite gradient"
    add_flag(group, "--train.max_skipped_steps", 3, skipped, metavar="N")
    grace = "Seconds after SIGTERM or SIGINT in which the run ends its update and saves; generation is cancelled"
    add_flag(group, "--train.grace_seconds", 120.0, grace, metavar="SECONDS")


def _add_suite(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "benchmarks during training",
        "run every --eval.steps steps at --eval.temperature, on the training engines; logged as eval/suite/..., and "
        "the checkpoint with the best average is kept",
    )
    group.add_argument(
        "--eval.suite",
        metavar="NAMES",
        help="Benchmarks to run (default: none). math or code: the paper's five. Names separated by commas: "
        "openrlhf_shear.cli.evaluate --help lists them. A .jsonl file with the --data.input_key and --data.label_key "
        "columns: --reward.remote_url grades it",
    )
    group.add_argument("--eval.data_dir", metavar="DIR", help="Folder with the benchmarks' files (default: the hub)")
    each = "Completions a problem; 0 means the benchmark's standard number, e.g. 32 for AIME24"
    add_flag(group, "--eval.k", 0, each, metavar="K")
    add_flag(group, "--eval.limit", 0, "Use only the first N problems of each benchmark; 0 means all", metavar="N")
