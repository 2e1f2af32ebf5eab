"""The parser: every flag of OpenRLHF's `train_ppo_ray`, and the fork's own."""

import argparse
from dataclasses import fields

from openrlhf_shear.cli import frame, prog, run_file
from openrlhf_shear.config import RULES, CreditSpec, PrmConfig, SearchConfig
from openrlhf_shear.config.names import ALIASES, is_rule, names_file, parse_rule
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.config.spec import CREDIT, OutcomeConfig, credit_spec
from openrlhf_shear.fork import fingerprint, upstream
from openrlhf_shear.rewards import settings

PROG = prog("train_ppo_ray")
ESTIMATOR = "algo.advantage.estimator"
DUMP = f"--{CREDIT}.dump_rollouts_every"
OF_SEARCHES = {f"--{CREDIT}.{knob.name}" for knob in fields(SearchConfig)}
PRM_RULES = [rule.name for rule in RULES.values() if "prm_scores" in rule.traits.needs]
# Knobs by the section of their flags.
KNOBS: dict[str, tuple[type, ...]] = {rule.name: (rule.config,) for rule in RULES.values() if rule.config} | {
    CREDIT: (OutcomeConfig, SearchConfig),
    "prm": (PrmConfig,),
}
ABOUT = {name: f"of --{ESTIMATOR} {name}: {RULES[name].about}" for name in KNOBS if name in RULES} | {
    CREDIT: "of every credit rule: what counts as correct, how the span search runs, what is written",
    "prm": f"the process reward model of --{ESTIMATOR} {', '.join(PRM_RULES)}, and of rules that need it",
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

The spellings of OpenRLHF 0.8 to 0.11.1 (--pretrain, --prompt_max_len, ...) are accepted too; the new ones are printed.
Wrong or missing models, datasets, columns and impossible combinations are reported before Ray starts.
"""


def build_parser() -> argparse.ArgumentParser:
    """OpenRLHF's parser with the fork's flags added; destinations are dotted ("shear.window"), as OpenRLHF's are.

    Raises:
        RuntimeError: OpenRLHF is missing or not of the known shape (`upstream.parser`).
    """
    parser = upstream.parser()
    parser.prog = PROG
    parser.usage = "%(prog)s --actor.model_name_or_path MODEL --data.prompt_dataset DATA [flags; --help lists them]"
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    frame.plainly(parser)
    _add_estimator(parser)
    for section, kinds in KNOBS.items():
        group = parser.add_argument_group(section, ABOUT[section])
        for kind in kinds:
            for knob in fields(kind):
                frame.add_knob(group, kind, knob, f"--{section}.{knob.name}")
    _add_reward(parser)
    _add_run(parser)
    return parser


def spec_of(values: dict) -> CreditSpec | None:
    """The `CreditSpec` of parsed flags, `values` by destination; None for an estimator of OpenRLHF's own.

    Raises:
        ValueError: a value is out of its range, or the rule has no such knob.
    """

    rule = values[ESTIMATOR].partition("/")[0]

    def read(section: str, kind: type) -> dict:
        given = {}
        for knob in fields(kind):
            value, fallback = values[f"{section}.{knob.name}"], knob.metadata["fallback"]
            given[knob.name] = values[fallback] if value is None and fallback and section == rule else value
        return given

    made = {(section, kind): kind(**read(section, kind)) for section, kinds in KNOBS.items() for kind in kinds}
    if not (is_rule(values[ESTIMATOR]) or names_file(values[ESTIMATOR])):
        return None
    try:
        name = parse_rule(values[ESTIMATOR])
        entry = name.built_in
        knobs = read(name.rule, entry.config) if entry and entry.config else {}
        others = {"outcome": made[CREDIT, OutcomeConfig], "prm": made["prm", PrmConfig]}
        return credit_spec(name, knobs, made[CREDIT, SearchConfig], **others)
    except ValueError as error:
        raise ValueError(f"{ESTIMATOR} {values[ESTIMATOR]}: {error}") from error


def _add_estimator(parser: argparse.ArgumentParser) -> None:
    action = next(action for action in parser._actions if action.dest == ESTIMATOR)
    action.choices = _Estimators([*action.choices, *RULES, *ALIASES])
    action.metavar = "ESTIMATOR"
    rules = "; ".join(
        f"{rule.name}, {rule.about}" + (f" (--{rule.name}.*)" if rule.config else "") for rule in RULES.values()
    )
    action.help = (
        f"{action.help}. One of {', '.join(action.choices)}, or my_package.my_module:MyRule. Of this fork, credit "
        f"rules, which start from group_norm's advantages and weigh them token by token: {rules}; and a rule of yours, "
        "a CreditRule (openrlhf_shear/credit/rule.py) that every node can import. A rule's knobs can stand behind its "
        "name too: shear/window=50/stride=10, my_module:MyRule/power=2"
    )


class _Estimators(list):
    """Names, and whatever may name a rule from outside; `spec_of` and `checks` say whether that one can be had."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and bool(is_rule(name) or names_file(name)))


def _add_reward(parser: argparse.ArgumentParser) -> None:
    action = next(action for action in parser._actions if action.dest == "reward.remote_url")
    action.help = (
        "What gives rewards. math: the answer in the last \\boxed{} against the label. code: the response's program "
        "against the label's tests, in a jail. FILE.py: its reward_func(queries, prompts, labels), in processes that "
        "are killed when they hang. http(s)://...: servers of OpenRLHF's remote reward protocol, e.g. "
        "openrlhf_shear.cli.serve_reward; several are separated by commas"
    )
    key = next(action for action in parser._actions if action.dest == "logger.wandb.key")
    key.help = (
        "Log to W&B. env: with the key in WANDB_API_KEY. FILE: with the key that it holds. Anything else is the key, "
        "which others then see in the list of processes; a short word leaves it to the node's `wandb login`"
    )
    group = parser.add_argument_group("rewards", "how rewards are made, and what becomes of those that are not")
    waits = f"{settings.DEFAULT_SECONDS['math']:g}, {settings.DEFAULT_SECONDS['code']:g}, {settings.FUNCTION_SECONDS:g}"
    timeout = (
        "A maths grade, a test of a program, a call of reward_func or a call of a reward server (all of it, each try) "
        f"may take this long; 0 for {waits} and {settings.SERVER_SECONDS:g}"
    )
    _add(group, "--reward.timeout", 0.0, timeout, metavar="SECONDS")
    _add(group, "--reward.retries", settings.RETRIES, "Further tries of a call of a reward server", metavar="N")
    failed = "Share of a step's rollouts without a reward above which the step counts as failed; 1 for never"
    _add(group, "--reward.max_failed", settings.MAX_FAILED, failed, metavar="SHARE")
    _add(
        group,
        "--reward.max_failed_steps",
        settings.MAX_FAILED_STEPS,
        "Training stops after this many failed steps in a row",
        metavar="N",
    )
    token = "File that holds the token of reward servers whose URL has none (default: the environment's"
    group.add_argument("--reward.token_file", metavar="FILE", help=f"{token} {REWARD_TOKEN})")
    cores = "Grades at a time on each node with rollout engines; 0 for half of its cores"
    _add(group, "--reward.cores", 0, cores, metavar="N")
    _add(group, "--reward.memory_mb", settings.MEMORY_MB, "Memory of a program that is graded", metavar="MB")
    _add(
        group,
        "--reward.allow_unsandboxed",
        False,
        "Run the programs that the policy writes without a jail where bubblewrap does not work. They can then "
        "read, change and send whatever you can",
    )


def _add(group: argparse._ArgumentGroup, flag: str, default: object, about: str, **how) -> None:
    """A flag of the type of its default, which its help tells."""
    kind = {"action": "store_true"} if default is False else {"type": type(default)}
    shown = f"{default:g}" if isinstance(default, float) else default
    group.add_argument(flag, default=default, help=f"{about} (default: {shown})", **kind, **how)


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("openrlhf_shear", "how this fork runs")
    _add(
        group,
        "--device",
        "auto",
        "Where training runs. auto: cuda if there is a GPU, else cpu. cpu: the CPU profile, where the "
        "same actors, vLLM's CPU build and DeepSpeed run on processor cores over gloo; for small models, tests and a "
        "first look at the pipeline",
        choices=("auto", "cuda", "cpu"),
    )
    _add(group, "--trust_remote_code", False, "Run Python code that comes with a model (auto_map in its config.json)")
    size = (
        "Memory of a GPU that the run must fit into (docs/memory.md), e.g. 80 to plan for GPUs that are elsewhere; 0 "
        "for what the smallest GPU here has"
    )
    _add(group, "--device_memory", 0.0, size, metavar="GIB")
    group.add_argument(
        "--config",
        nargs="+",
        metavar="FILE",
        help="YAML files of flags, or presets that come with the package "
        f"({', '.join(run_file.presets_there())}); later ones win, and flags of the line win over all. A run leaves "
        "RUN/run.yaml (RUN is the folder that --ckpt.path is in), which starts it again",
    )
    verbose = "Print everything that Ray, DeepSpeed and vLLM print, which else goes to RUN/logs/train.log alone"
    _add(group, "--verbose", False, verbose)
    tried = "Check the line, show the memory that it takes, and start nothing"
    _add(group, "--dry_run", False, tried)
    listed = "With --dry_run: print all that is wrong with the line as JSON (refusals, told), exit code 0 or 2"
    _add(group, "--json", False, listed)
    forced = "Go on with an OpenRLHF that the fork's hooks may not fit; what changed in it is listed"
    _add(group, upstream.FORCE, False, forced)
    _add(
        group,
        DUMP,
        0,
        "Write all rollouts of the first step and of every N-th to CKPT_PATH/rollouts/step000020.parquet: tokens, "
        "weights and advantages, and with shear the spans, the opposing span that each is nearest to, and the "
        "distances between the spans of every two rollouts of a prompt; for any credit rule that acts before the "
        "update, also uniform (GRPO). openrlhf_shear.cli.rollout_page makes a page of a file; 0 for never",
        dest="dump_rollouts_every",
        metavar="N",
    )
    before = "Evaluate on --eval.dataset before the first step too, so that curves start at the base model"
    _add(group, "--eval.before_train", False, before)
    best = "Of the best evaluation keep the model alone (CKPT_PATH/best_global_stepN_hf), without optimizer state"
    _add(group, "--ckpt.best_weights_only", False, best)
    means = "; ".join(f"{topic}: {meaning}" for topic, meaning in fingerprint.TAKEN.items())
    group.add_argument(
        f"--{fingerprint.FLAG}",
        metavar="TOPICS",
        help="With --ckpt.load_enable, go on from a checkpoint of another run that differs in these, separated by "
        f"commas. {means}",
    )
    restarts = (
        "When the run fails (an actor or a node dies, the driver is killed), start it again from its last checkpoint, "
        "as often as this"
    )
    _add(group, "--train.max_restarts", 0, restarts, metavar="N")
    gap = (
        "Stop when in three steps in a row an engine's log-probs are off the policy's by more than this (nats a token, "
        "mean), or by less if it is shown to have old weights or no adapters; 0 for never"
    )
    _add(group, "--vllm.max_gap", 0.3, gap, metavar="NATS")
    unasked = "Do not ask the engines for log-probs: no vllm_kl, and nobody sees when they have other weights"
    _add(group, "--vllm.no_logprobs", False, unasked)
    wait = (
        "Wait as long for a cluster that has fewer GPUs than the run needs (an autoscaler's) before the run is "
        "refused; what --train.max_restarts starts again waits 600 s for a node to come back"
    )
    _add(group, "--train.wait_for_gpus", 0.0, wait, metavar="SECONDS")
    skipped = "Stop after as many steps in a row in which no gradient was finite"
    _add(group, "--train.max_skipped_steps", 3, skipped, metavar="N")
    grace = "After SIGTERM or SIGINT, the time in which the run ends its update and saves; generation is broken off"
    _add(group, "--train.grace_seconds", 120.0, grace, metavar="SECONDS")
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
    each = "Completions a problem; 0 for each benchmark's own, e.g. 32 for AIME24"
    _add(group, "--eval.k", 0, each, metavar="K")
    _add(group, "--eval.limit", 0, "The first N problems of each; 0 for all", metavar="N")
