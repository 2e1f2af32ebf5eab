"""The parser of training: every flag of OpenRLHF's `train_ppo_ray`, and the flags of this fork."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import fields

from openrlhf_shear.config import RULES
from openrlhf_shear.config.names import is_rule, names_file
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.config.spec import CREDIT
from openrlhf_shear.line import frame, prog
from openrlhf_shear.line.run import ACCEPT_CHANGES, ESTIMATOR, KNOBS, MAY_CHANGE, PRM_RULES
from openrlhf_shear.line.spelling import PRESET_NAMES
from openrlhf_shear.rewards import graders, settings

PROG = prog("train_ppo_ray")
TRAINED = [rule for rule in RULES.values() if not rule.traits.lab_alone]  # the others are refused
ABOUT = {name: f"for --{ESTIMATOR} {name}: {RULES[name].about}" for name in KNOBS if name in RULES} | {
    CREDIT: "for every credit rule: which rollouts are correct, how the span search runs, which rollouts are written",
    "prm": f"the process reward model of --{ESTIMATOR} {', '.join(PRM_RULES)}, and of your rules that need it",
}

# Transformers' schedules that need no settings beside those of OpenRLHF's flags, and no metric at each step.
SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr"),
)


class _Open(list):
    """Known names, plus all that `accepts` finds possible; whether these can be loaded is checked later."""

    def __init__(self, names: Iterable[str], accepts: Callable[[str], object]) -> None:
        super().__init__(names)
        self._accepts = accepts

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and bool(self._accepts(name)))


_ATTENTION = ("flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention", "sdpa", "eager")
CHOICES = {  # of flags that OpenRLHF leaves open, though its libraries know only these
    **dict.fromkeys(("actor.lr_scheduler", "critic.lr_scheduler"), SCHEDULES),
    "ds.attn_implementation": _Open(_ATTENTION, lambda name: "/" in name),  # a kernel of the hub
    "ds.grad_accum_dtype": ("fp32", "bf16", "fp16"),
    "vllm.sync_backend": ("nccl", "gloo"),
}

_DESCRIPTION = """\
OpenRLHF's train_ppo_ray with SHEAR: GRPO whose credit within a rollout comes from the actor's hidden states.

SHEAR cuts every response into overlapping spans. It measures the distance (by optimal transport) between the hidden
states of each span and those of the opposing rollouts: correct against incorrect rollouts of the same prompt. It then
multiplies the group advantage of each token by that distance, so the tokens where correct and incorrect rollouts
diverge get the credit. Turn it on with --algo.advantage.estimator shear; it needs --rollout.n_samples_per_prompt > 1
and a verifiable reward.
"""

_EPILOG = """\
example (one machine, 8 GPUs):
  python -m openrlhf_shear.cli.train_ppo_ray \\
    --algo.advantage.estimator shear --rollout.n_samples_per_prompt 8 \\
    --actor.model_name_or_path Qwen/Qwen2.5-Math-7B --reward.remote_url math \\
    --data.prompt_dataset prompts.jsonl --data.input_key question --data.label_key answer \\
    --actor.num_gpus_per_node 8 --ref.num_gpus_per_node 8 --vllm.num_engines 8 \\
    --train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.6

The flags of OpenRLHF 0.8 to 0.11.1 (--pretrain, --prompt_max_len, ...) are accepted too, and the new flags are printed.
Wrong or missing models, data sets and columns, and impossible combinations, are reported before Ray starts.
"""


def add_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the fork's flags to OpenRLHF's parser; destinations are dotted ("shear.window"), as in OpenRLHF."""
    parser.prog = PROG
    parser.usage = "%(prog)s --actor.model_name_or_path MODEL --data.prompt_dataset DATA [flags; --help lists them]"
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_estimator(parser)
    for action in parser._actions:
        action.choices = CHOICES.get(action.dest, action.choices)
    frame.plainly(parser)
    for section, kinds in KNOBS.items():
        group = parser.add_argument_group(section, ABOUT[section])
        for kind in kinds:
            for knob in fields(kind):
                frame.add_knob(group, kind, knob, f"--{section}.{knob.name}")
    _add_reward(parser)
    group = parser.add_argument_group("openrlhf_shear", "how a run of this fork starts, logs, stops and resumes")
    for add in (_add_start, _add_output, _add_checkpoints, _add_limits):
        add(group)
    _add_suite(parser)
    return parser


def _add(group: argparse._ArgumentGroup, flag: str, default: object, about: str, **how) -> None:
    """Add a flag of its default's type, and append the default to its help."""
    kind = {"action": "store_true"} if default is False else {"type": type(default)}
    shown = f"{default:g}" if isinstance(default, float) else default
    group.add_argument(flag, default=default, help=f"{about} (default: {shown})", **kind, **how)


def _add_estimator(parser: argparse.ArgumentParser) -> None:
    action = next(action for action in parser._actions if action.dest == ESTIMATOR)
    names = [*action.choices, *(rule.name for rule in TRAINED)]
    action.choices = _Open(names, lambda name: is_rule(name) or names_file(name))  # `spec_of` finds out if it loads
    action.metavar = "ESTIMATOR"
    rules = "; ".join(f"{rule.name}, {rule.about}" + (f" (--{rule.name}.*)" if rule.config else "") for rule in TRAINED)
    action.help = (
        f"{action.help}. One of {', '.join(action.choices)}, or my_package.my_module:MyRule. This fork adds credit "
        f"rules, which start from group_norm's advantages and weight them token by token: {rules}; and a rule of "
        "yours, a CreditRule (openrlhf_shear/credit/rule.py) that every node can import. Knobs can also follow the "
        "rule's name: shear/window=50/stride=10, my_module:MyRule/power=2"
    )


def _add_reward(parser: argparse.ArgumentParser) -> None:
    about = " ".join(f"{name}: {about}." for name, about in graders.ABOUT.items())
    action = next(action for action in parser._actions if action.dest == "reward.remote_url")
    action.help = (
        f"Source of rewards. {about} FILE.py: calls its reward_func(queries, prompts, labels), or a function "
        "of TRL's form, in processes that are killed if they hang. http(s)://...: asks servers of OpenRLHF's remote "
        "reward protocol, e.g. openrlhf_shear.cli.serve_reward; separate several by commas"
    )
    label = next(action for action in parser._actions if action.dest == "data.label_key")
    label.help = (
        "Column of the label, or a field in it, e.g. reward_model.ground_truth. Several, separated by commas, make a "
        "label that is an object; a reward function of TRL's form gets its fields as keywords"
    )
    key = next(action for action in parser._actions if action.dest == "logger.wandb.key")
    key.help = (
        "Log to W&B. env: use the key in WANDB_API_KEY. FILE: use the key in this file. Any other text is the key "
        "itself, which others can then see in the list of processes; a short word uses the node's `wandb login`"
    )
    group = parser.add_argument_group("rewards", "how rewards are made, and what happens when a reward fails")
    for knob in fields(settings.GradingConfig):
        frame.add_knob(group, settings.GradingConfig, knob, f"--reward.{knob.name}")
    _add(group, "--reward.retries", settings.RETRIES, "Retries of a failed call of a reward server", metavar="N")
    failed = "Count a step as failed if more than this share of its rollouts has no reward; 1 means never"
    _add(group, "--reward.max_failed", settings.MAX_FAILED, failed, metavar="SHARE")
    _add(
        group,
        "--reward.max_failed_steps",
        settings.MAX_FAILED_STEPS,
        "Stop training after this many failed steps in a row",
        metavar="N",
    )
    token = "File with the token for reward servers whose URL has none (default: the environment's"
    group.add_argument("--reward.token_file", metavar="FILE", help=f"{token} {REWARD_TOKEN})")


def _add_start(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "--device",
        "auto",
        "Hardware of the training. auto: cuda if there is a GPU, else cpu. cpu: the CPU profile, in which the same "
        "actors, vLLM's CPU build and DeepSpeed run on processor cores over gloo; for small models, tests and trying "
        "out the pipeline",
        choices=("auto", "cuda", "cpu"),
    )
    _add(group, "--trust_remote_code", False, "Run Python code that comes with a model (auto_map in its config.json)")
    size = (
        "Check that the run fits into GPUs with this memory in GiB (docs/memory.md), e.g. 80 to plan for other "
        "machines; 0 means the smallest GPU of this machine"
    )
    _add(group, "--device_memory", 0.0, size, metavar="GIB")
    chunk = (
        "Tokens whose logits the policy makes at a time, e.g. 2048, which bounds their memory; an update then makes "
        "them twice. 0 means the logits of all tokens of a pass"
    )
    _add(group, "--actor.logits_chunk", 0, chunk, metavar="TOKENS")
    group.add_argument(
        "--config",
        nargs="+",
        metavar="FILE",
        help="Read flags from YAML files, or from presets of this package "
        f"({', '.join(PRESET_NAMES)}). Later files win, and flags on the command line win over all files. "
        "A run writes RUN/run.yaml (RUN is the parent folder of --ckpt.path), which starts the same run again",
    )
    verbose = "Print all output of Ray, DeepSpeed and vLLM; without it this output goes only to RUN/logs/train.log"
    _add(group, "--verbose", False, verbose)
    tried = "Check the command line, show the memory that the run takes, and start nothing"
    _add(group, "--dry_run", False, tried)
    listed = "A dry run that prints all problems and warnings as JSON (refusals, told); exit code 0 or 2"
    _add(group, "--json", False, listed)


def _add_output(group: argparse._ArgumentGroup) -> None:
    _add(
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
    _add(group, "--eval.before_train", False, before)


def _add_checkpoints(group: argparse._ArgumentGroup) -> None:
    best = "For the best evaluation save only the model (CKPT_PATH/best_global_stepN_hf), without optimizer state"
    _add(group, "--ckpt.best_weights_only", False, best)
    means = "; ".join(f"{topic}: {meaning}" for topic, meaning in MAY_CHANGE.items())
    group.add_argument(
        f"--{ACCEPT_CHANGES}",
        metavar="TOPICS",
        help="With --ckpt.load_enable, resume from a checkpoint of another run that differs in these topics, separated "
        f"by commas (default: none). {means}",
    )
    restarts = (
        "Restart a failed run (an actor or a node died, the driver was killed) from its last checkpoint, at most this "
        "many times"
    )
    _add(group, "--train.max_restarts", 0, restarts, metavar="N")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    """Add how long a run waits, and what stops it."""
    gap = (
        "Stop if in three steps in a row the mean gap between an engine's log-probs and the policy's exceeds this, in "
        "nats a token. A smaller gap stops the run too if the engine demonstrably has old weights or no adapters; 0 "
        "means never"
    )
    _add(group, "--vllm.max_gap", 0.3, gap, metavar="NATS")
    wait = (
        "If the cluster has fewer GPUs than the run needs (an autoscaler may add some), wait this many seconds before "
        "the run is refused. Restarts by --train.max_restarts wait 600 s for a node to come back"
    )
    _add(group, "--train.wait_for_gpus", 0.0, wait, metavar="SECONDS")
    skipped = "Stop after this many steps in a row without a finite gradient"
    _add(group, "--train.max_skipped_steps", 3, skipped, metavar="N")
    grace = "Seconds after SIGTERM, SIGINT or SIGUSR1 to end the update and save; generation is cancelled"
    _add(group, "--train.grace_seconds", 120.0, grace, metavar="SECONDS")


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
    _add(group, "--eval.k", 0, each, metavar="K")
    _add(group, "--eval.limit", 0, "Use only the first N problems of each benchmark; 0 means all", metavar="N")
