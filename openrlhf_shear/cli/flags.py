"""The parser: every flag of OpenRLHF's `train_ppo_ray`, and the fork's own."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace

from openrlhf_shear.cli.knobs import add_knob
from openrlhf_shear.config import (
    PRM_RULES,
    RULES,
    CreditSpec,
    EntropyAdvConfig,
    ErrorOddsConfig,
    PrmConfig,
    PureConfig,
    ShearConfig,
    is_rule,
)
from openrlhf_shear.fork import upstream

PROG = "python -m openrlhf_shear.cli.train_ppo_ray"
ESTIMATOR = "algo.advantage.estimator"
SHEAR = "shear"
THRESHOLD = f"--{SHEAR}.correct_threshold"  # for every credit rule
DUMP = f"--{SHEAR}.dump_rollouts_every"  # likewise; how a run goes, not what SHEAR computes
SEARCH = (f"--{SHEAR}.backend", f"--{SHEAR}.max_cost_bytes")  # for every rule of config.SEARCH_RULES
# Sections of flags, one a field of `CreditSpec`, and what --help says of them.
SECTIONS: dict[str, tuple[type, str]] = {
    "shear": (ShearConfig, f"what --{ESTIMATOR} shear computes, and how"),
    "error_odds": (ErrorOddsConfig, f"what --{ESTIMATOR} error_odds computes"),
    "entropy_adv": (EntropyAdvConfig, f"what --{ESTIMATOR} entropy_adv adds"),
    "pure": (PureConfig, f"what --{ESTIMATOR} pure computes"),
    "prm": (PrmConfig, f"the process reward model of --{ESTIMATOR} {', '.join(PRM_RULES)}, and of rules that need it"),
}

_DESCRIPTION = """\
OpenRLHF's train_ppo_ray with SHEAR: GRPO whose credit within a rollout comes from the actor's hidden states.

SHEAR cuts every response into overlapping spans, measures how far the hidden states of each span lie (by optimal
transport) from the spans of the opposing rollouts of the same prompt (correct against wrong), and multiplies the
group advantage of each token by that distance: tokens where right and wrong rollouts part ways get the credit.
Turn it on with --algo.advantage.estimator shear; it needs --rollout.n_samples_per_prompt > 1 and a verifiable reward.
"""

_EPILOG = """\
example (one machine, 8 GPUs):
  python -m openrlhf_shear.cli.train_ppo_ray \\
    --algo.advantage.estimator shear --rollout.n_samples_per_prompt 8 \\
    --actor.model_name_or_path Qwen/Qwen2.5-Math-7B --reward.remote_url math \\
    --data.prompt_dataset prompts.jsonl --data.input_key question --data.label_key answer \\
    --actor.num_gpus_per_node 8 --ref.num_gpus_per_node 8 --vllm.num_engines 8 \\
    --train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.6

The spellings of OpenRLHF 0.9 (--pretrain, --advantage_estimator, ...) are accepted too; the new ones are printed.
Wrong or missing models, datasets, columns and impossible combinations are reported before Ray starts.
"""


def build_parser() -> argparse.ArgumentParser:
    """OpenRLHF's parser with the fork's flags added; destinations are dotted ("shear.window"), as OpenRLHF's are.

    Raises:
        RuntimeError: OpenRLHF is missing or not of the known shape (`upstream.parser`).
    """
    parser = upstream.parser()
    parser.prog = PROG
    # The generated usage lists some two hundred flags and would bury every error message.
    parser.usage = "%(prog)s --actor.model_name_or_path MODEL --data.prompt_dataset DATA [flags; --help lists them]"
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_estimator(parser)
    for section, (config, about) in SECTIONS.items():
        _add_knobs(parser, section, about, config)
    _add_reward(parser)
    _add_run(parser)
    return parser


def credit_spec(values: dict) -> CreditSpec:
    """The `CreditSpec` of parsed flags, `values` by destination, for any estimator.

    Raises:
        ValueError: a value is out of its range.
    """

    read = {
        section: config(**{knob.name: values[f"{section}.{knob.name}"] for knob in fields(config)})
        for section, (config, _) in SECTIONS.items()
    }
    if read["pure"].width is None:
        read["pure"] = replace(read["pure"], width=values["rollout.max_new_tokens"])
    return CreditSpec(values[ESTIMATOR], **read)


def _add_estimator(parser: argparse.ArgumentParser) -> None:
    action = next(action for action in parser._actions if action.dest == ESTIMATOR)
    action.choices = _Estimators([*action.choices, *RULES])
    action.metavar = "ESTIMATOR"
    action.help = (
        f"{action.help}. One of {', '.join(action.choices)}, or my_package.my_module:MyRule. Of this fork, "
        f"credit rules, which multiply group_norm's advantages, token by token, by weights: {SHEAR}, "
        "from the hidden states, see --shear.*; uniform, 1 everywhere (GRPO itself); error_odds, this project's "
        "own, which blames an incorrect rollout where its first error seems to be (--error_odds.*); prm_reshape, how "
        "right a process reward model (--prm.*) finds the token's step; entropy_adv, which adds to the advantages in "
        "the update (--entropy_adv.*); pure, with advantages of its own from that model's worst step (--pure.*); and a "
        "rule of yours, a CreditRule (openrlhf_shear/credit/rule.py) that every node can import"
    )


class _Estimators(list):
    """Names, and whatever may name a rule from outside; `checks` says whether that one can be had."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and is_rule(name))


def _add_knobs(parser: argparse.ArgumentParser, section: str, about: str, config: type) -> None:
    group = parser.add_argument_group(section, about)
    for knob in fields(config):
        add_knob(group, config, knob, f"--{section}.{knob.name}")


def _add_reward(parser: argparse.ArgumentParser) -> None:
    action = next(action for action in parser._actions if action.dest == "reward.remote_url")
    action.help = (
        "What gives rewards. math: the answer in the last \\boxed{} against the label. code: the response's program "
        "against the label's tests, in a jail. FILE.py: its reward_func(queries, prompts, labels), in processes that "
        "are killed when they hang. http(s)://...: servers of OpenRLHF's remote reward protocol, e.g. "
        "openrlhf_shear.cli.serve_reward; several are separated by commas"
    )
    group = parser.add_argument_group("rewards", "how --reward.remote_url math, code and FILE.py are run")
    group.add_argument(
        "--reward.timeout",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="A maths grade, a test of a program, or a call of reward_func may take this long; 0 for 5, 10 and 60 "
        "(default: 0)",
    )
    group.add_argument(
        "--reward.cores",
        type=int,
        default=0,
        metavar="N",
        help="Grades at a time on each node with rollout engines; 0 for half of its cores (default: 0)",
    )
    group.add_argument(
        "--reward.memory_mb",
        type=int,
        default=1024,
        metavar="MB",
        help="Memory of a program that is graded (default: 1024)",
    )
    group.add_argument(
        "--reward.allow_unsandboxed",
        action="store_true",
        default=False,
        help="Run the programs that the policy writes without a jail where bubblewrap does not work. They can then "
        "read, change and send whatever you can (default: False)",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("openrlhf_shear", "how this fork runs")
    group.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="Where training runs. auto: cuda if torch sees a CUDA device, else cpu. cpu: the CPU profile, where the "
        "same actors, vLLM's CPU build and DeepSpeed run on processor cores over gloo; for small models, tests and a "
        "first look at the pipeline (default: auto)",
    )
    _add_suite(parser)
    group.add_argument(
        DUMP,
        dest="dump_rollouts_every",
        type=int,
        default=0,
        metavar="N",
        help="Write all rollouts of the first step and of every N-th to CKPT_PATH/rollouts/step000020.parquet: tokens, "
        "weights and advantages, and with shear the spans, the opposing span that each is nearest to, and the "
        "distances between the spans of every two rollouts of a prompt; for any credit rule that acts before the "
        "update, also uniform (GRPO). openrlhf_shear.cli.rollout_page makes a page of a file; 0 for never (default: 0)",
    )
    group.add_argument(
        "--eval.before_train",
        action="store_true",
        default=False,
        help="Evaluate on --eval.dataset before the first step too, so that curves start at the base model "
        "(default: False)",
    )


def _add_suite(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "benchmarks during training",
        "every --eval.steps steps, at --eval.temperature, through the training engines; logged as eval/suite/..., and "
        "the checkpoint with the best average is kept",
    )
    group.add_argument(
        "--eval.suite",
        metavar="NAMES",
        help="math or code (the paper's five), names of benchmarks separated by commas (openrlhf_shear.cli.evaluate "
        "--help lists them), or a .jsonl file with the --data.input_key and --data.label_key columns, which "
        "--reward.remote_url grades",
    )
    group.add_argument("--eval.data_dir", metavar="DIR", help="folder with the benchmarks' files (default: the hub)")
    group.add_argument(
        "--eval.k",
        type=int,
        default=0,
        metavar="K",
        help="Completions a problem; 0 for each benchmark's own, e.g. 32 for AIME24 (default: 0)",
    )
    group.add_argument(
        "--eval.limit", type=int, default=0, metavar="N", help="The first N problems of each; 0 for all (default: 0)"
    )
