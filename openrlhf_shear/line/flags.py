"""The parser of training: every flag of OpenRLHF's `train_ppo_ray`, and the flags of this fork."""

import argparse
from dataclasses import fields

from openrlhf_shear.config import RULES, PrmConfig, SearchConfig
from openrlhf_shear.config.names import is_rule, names_file
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.config.spec import CREDIT, OutcomeConfig
from openrlhf_shear.line import frame, prog
from openrlhf_shear.line.run import ESTIMATOR
from openrlhf_shear.line.run_flags import add_flag, add_run_flags
from openrlhf_shear.rewards import graders, settings

PROG = prog("train_ppo_ray")
OF_SEARCHES = {f"--{CREDIT}.{knob.name}" for knob in fields(SearchConfig)}
PRM_RULES = [rule.name for rule in RULES.values() if "prm_scores" in rule.traits.needs]
TRAINED = [rule for rule in RULES.values() if not rule.traits.lab_alone]  # the others are refused, and have no flags
# Knobs by the first part of their flags.
KNOBS: dict[str, tuple[type, ...]] = {rule.name: (rule.config,) for rule in TRAINED if rule.config} | {
    CREDIT: (OutcomeConfig, SearchConfig),
    "prm": (PrmConfig,),
}
ABOUT = {name: f"for --{ESTIMATOR} {name}: {RULES[name].about}" for name in KNOBS if name in RULES} | {
    CREDIT: "for every credit rule: which rollouts are correct, how the span search runs, which rollouts are written",
    "prm": f"the process reward model of --{ESTIMATOR} {', '.join(PRM_RULES)}, and of your rules that need it",
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
    frame.plainly(parser)
    for section, kinds in KNOBS.items():
        group = parser.add_argument_group(section, ABOUT[section])
        for kind in kinds:
            for knob in fields(kind):
                frame.add_knob(group, kind, knob, f"--{section}.{knob.name}")
    _add_reward(parser)
    add_run_flags(parser)
    return parser


def _add_estimator(parser: argparse.ArgumentParser) -> None:
    action = next(action for action in parser._actions if action.dest == ESTIMATOR)
    action.choices = _Estimators([*action.choices, *(rule.name for rule in TRAINED)])
    action.metavar = "ESTIMATOR"
    rules = "; ".join(f"{rule.name}, {rule.about}" + (f" (--{rule.name}.*)" if rule.config else "") for rule in TRAINED)
    action.help = (
        f"{action.help}. One of {', '.join(action.choices)}, or my_package.my_module:MyRule. This fork adds credit "
        f"rules, which start from group_norm's advantages and weight them token by token: {rules}; and a rule of "
        "yours, a CreditRule (openrlhf_shear/credit/rule.py) that every node can import. Knobs can also follow the "
        "rule's name: shear/window=50/stride=10, my_module:MyRule/power=2"
    )


class _Estimators(list):
    """Known names, plus every possible name of a user's rule; `spec_of` and `checks` find out whether it loads."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and bool(is_rule(name) or names_file(name)))


def _add_reward(parser: argparse.ArgumentParser) -> None:
    about = " ".join(f"{name}: {about}." for name, about in graders.ABOUT.items())
    limits = graders.TIME_LIMITS | {"a reward_func call": settings.FUNCTION_SECONDS}
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
    timeout = (
        f"Time limit in seconds of {', '.join(limits)}, or a whole call of a reward server (each try). 0 means "
        f"{', '.join(f'{seconds:g}' for seconds in limits.values())} and {settings.SERVER_SECONDS:g} seconds"
    )
    add_flag(group, "--reward.timeout", 0.0, timeout, metavar="SECONDS")
    add_flag(group, "--reward.retries", settings.RETRIES, "Retries of a failed call of a reward server", metavar="N")
    failed = "Count a step as failed if more than this share of its rollouts has no reward; 1 means never"
    add_flag(group, "--reward.max_failed", settings.MAX_FAILED, failed, metavar="SHARE")
    add_flag(
        group,
        "--reward.max_failed_steps",
        settings.MAX_FAILED_STEPS,
        "Stop training after this many failed steps in a row",
        metavar="N",
    )
    formats = (
        'Where the maths reward looks for the final answer. boxed: the last \\boxed{}, else ####, else "answer is". '
        "tags: <answer>...</answer>. last: the last value of the last line. Separate several by commas; the first that "
        "finds an answer decides"
    )
    add_flag(group, "--reward.answer_format", settings.ANSWER_FORMAT, formats, metavar="FORMAT")
    token = "File with the token for reward servers whose URL has none (default: the environment's"
    group.add_argument("--reward.token_file", metavar="FILE", help=f"{token} {REWARD_TOKEN})")
    cores = "Number of parallel grades on each node with rollout engines; 0 means half of the node's cores"
    add_flag(group, "--reward.cores", 0, cores, metavar="N")
    add_flag(group, "--reward.memory_mb", settings.MEMORY_MB, "Memory limit of a graded program, in MB", metavar="MB")
    add_flag(
        group,
        "--reward.allow_unsandboxed",
        False,
        "If bubblewrap does not work, run the policy's programs without a jail. They can then read, change and send "
        "everything that you can",
    )
