"""A run as its command line describes it: every flag, its credit rule, and its secrets. Nothing changes it.

run.vllm.num_engines           a flag, by the name that it has in OpenRLHF's own code
run.flags["vllm.num_engines"]  the same flag, where its name is computed
"""

import argparse
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

from openrlhf_shear.config.names import is_rule, names_file, parse_rule, split
from openrlhf_shear.config.refusal import Finding, Findings, LineError, Note, Refusal, refusal, refuse
from openrlhf_shear.config.rules import RULES, Traits
from openrlhf_shear.config.secrets import REWARD_TOKEN, WANDB_KEY, Secret, hidden
from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.config.spec import CREDIT, CreditSpec, OutcomeConfig, PrmConfig, SearchConfig, credit_spec
from openrlhf_shear.rewards.files import FILES

INSTALL = "use scripts/install_cluster.sh, or on a CPU machine scripts/setup_cpu.sh (docs/install.md)"
ESTIMATOR = "algo.advantage.estimator"
REWARD = "reward.remote_url"
OF_GROUPS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")  # OpenRLHF's that compare rollouts of a prompt
ACCEPT_CHANGES = "ckpt.accept_changes"
MAY_CHANGE = {  # topics of that flag, with the effect of a change
    "data": "the current episode starts again from its first prompt: no prompt is left out, some are trained on twice",
    "seed": "the same as for data, in the order of the new seed",
    "rule": "later steps use the new credit rule",
    "reward": "later steps are graded by the new file",
    "batch": "later steps have the new sizes, and the learning rate's schedule has another length",
    "model": "training goes on with the checkpoint's weights, and the new model's reference, tokenizer and settings",
}
# Knobs of training, by the section of their flags. Rules that training refuses have no flags.
KNOBS: dict[str, tuple[type, ...]] = {
    rule.name: (rule.config,) for rule in RULES.values() if rule.config and not rule.traits.lab_alone
} | {CREDIT: (OutcomeConfig, SearchConfig), "prm": (PrmConfig,)}
PRM_RULES = [rule.name for rule in RULES.values() if "prm_scores" in rule.traits.needs]
_MODELS = ("actor", "ref", "critic", "reward", "prm")
_KEY = "logger.wandb.key"
_LEAST = 20  # characters of a key; with a shorter text (as in `--use_wandb True`) the node's login applies


def used_models(flags: Mapping[str, object]) -> list[str]:
    """Return the models that a run places on GPUs, the actor first."""
    graded = flags[REWARD] or flags["train.agent_func_path"]
    used = {"actor": True, "ref": True, "critic": flags[ESTIMATOR] == "gae", "reward": not graded}
    return [model for model, is_used in used.items() if is_used]


def placement_flags(flags: Mapping[str, object]) -> list[str]:
    """Return the flags of the nodes and GPUs of all models that a run uses."""
    return [f"{model}.{name}" for model in used_models(flags) for name in ("num_nodes", "num_gpus_per_node")]


class Section(SimpleNamespace):
    """Flags of a part of the command line, as attributes that cannot be set."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the description of a run does not change: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"the description of a run does not change: {name}")


class Run(Section):
    """Description of a run. Its flags are attributes, in sections by the dots in their names."""

    flags: Mapping[str, object]  # every flag by its dotted name
    set_flags: frozenset[str]  # the flags that the command line sets
    estimator: str  # as the command line names it, with knobs behind its name
    has_rule: bool  # the estimator is a credit rule rather than OpenRLHF's
    spec: CreditSpec | None  # the credit rule; None without one, or if it cannot be made
    traits: Traits  # of the credit rule; without a rule it has no needs
    spans: SpanCut | None  # of a credit rule that searches spans
    graded: bool  # rewards come from code or a service rather than from a reward model
    ranks: Mapping[str, int]  # by model, its nodes times the GPUs of each

    def __init__(
        self,
        flags: Mapping[str, object],
        set_flags: Collection[str] = (),
        spec: CreditSpec | None = None,
        traits: Traits | None = None,
        spans: SpanCut | None = None,
    ) -> None:
        sizes = {model: (f"{model}.num_nodes", f"{model}.num_gpus_per_node") for model in _MODELS}
        ranks = {model: flags[nodes] * flags[gpus] for model, (nodes, gpus) in sizes.items() if nodes in flags}
        super().__init__(
            **_tree(flags),
            flags=MappingProxyType(dict(flags)),
            set_flags=frozenset(set_flags),
            estimator=flags.get(ESTIMATOR, ""),
            has_rule=spec is not None or is_rule(flags.get(ESTIMATOR, "")),
            spec=spec,
            traits=traits or Traits(),
            spans=spans,
            graded=bool(flags.get(REWARD) or flags.get("train.agent_func_path")),
            ranks=MappingProxyType(ranks),
        )

    def refusal(self, flag: str, problem: str, use: str) -> Refusal:
        """Return the refusal of a flag's value."""
        return refusal(flag, problem, self.flags[flag], use)

    def with_flags(self, flags: Mapping[str, object]) -> "Run":
        """Return a description with other values of some flags."""
        return Run({**self.flags, **flags}, self.set_flags, self.spec, self.traits, self.spans)


def _tree(flags: Mapping[str, object]) -> dict[str, object]:
    """Return flags nested by the dots in their names, each level a `Section`."""
    tree: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {}
    for flag, value in flags.items():
        section, dot, name = flag.partition(".")
        if dot:
            sections.setdefault(section, {})[name] = value
        else:
            tree[flag] = value
    return tree | {section: Section(**_tree(inner)) for section, inner in sections.items()}


def describe(flags: Mapping[str, object], set_flags: Collection[str], findings: Findings) -> Run:
    """Return the description of a run; note what is wrong with its credit rule and its keys.

    A rule from outside is constructed, so that its errors show before anything starts.
    """
    known = {**flags, REWARD: FILES.get(flags[REWARD], flags[REWARD]), "dry_run": flags["dry_run"] or flags["json"]}
    spec = rule = None
    try:
        spec = spec_of(known)
        if spec and not spec.name.built_in:
            from openrlhf_shear.credit.registry import load_rule  # late: torch

            rule = load_rule(spec)
    except ValueError as error:
        findings.note(error)
    traits, spans = spec and spec.traits, spec and spec.config
    if rule is not None:
        from openrlhf_shear.credit.registry import traits_of

        traits, spans = traits_of(rule), getattr(rule, "config", None)
    searches = traits and "hidden_states" in traits.needs and isinstance(spans, SpanCut)
    findings.take(_hide(known))
    return Run(known, set_flags, spec, traits, spans if searches else None)


def spec_of(flags: Mapping[str, object]) -> CreditSpec | None:
    """Return the `CreditSpec` of parsed flags, by dotted name; None for an estimator of OpenRLHF.

    Raises:
        ValueError: a value is out of its range, or the rule has no such knob.
    """
    estimator = flags[ESTIMATOR]
    if not (is_rule(estimator) or names_file(estimator)):
        return None

    def read(section: str, kind: type) -> dict:
        values = {}
        for knob in fields(kind):
            value, fallback = flags[f"{section}.{knob.name}"], knob.metadata["fallback"]
            values[knob.name] = flags[fallback] if value is None and fallback else value
        return values

    try:
        name = parse_rule(estimator)
        entry = name.built_in
        knobs = read(name.rule, entry.config) if entry and name.rule in KNOBS else {}
        search, outcome, prm = read(CREDIT, SearchConfig), read(CREDIT, OutcomeConfig), read("prm", PrmConfig)
        return credit_spec(name, knobs, search, outcome, prm)
    except LineError:
        raise
    except ValueError as error:
        raise ValueError(f"{ESTIMATOR} {estimator}: {error}") from error


def for_openrlhf(run: Run, **more: object) -> argparse.Namespace:
    """Return the flat namespace that OpenRLHF's main takes for its parsed flags, with `more`.

    `credit` is the run's `CreditSpec` or None. The flags that it holds are left out, and the estimator is "group_norm"
    in place of a rule's name, since OpenRLHF's own branches know that name.
    """
    flags = {name: value for name, value in run.flags.items() if name.split(".")[0] not in KNOBS}
    # OpenRLHF's default clip of -10 to 10 is meant for PPO's rewards. In earlier versions estimators with a baseline
    # clipped only the rewards after the baseline, so without the flag they keep raw rewards unclipped.
    if "reward.clip_range" not in run.set_flags and run.estimator not in ("gae", "reinforce"):
        flags["reward.clip_range"] = None
    if run.spec:
        flags[ESTIMATOR] = "group_norm"
        if run.actor.entropy_coef is None and run.traits.kind == "update" and "entropies" in run.traits.needs:
            flags["actor.entropy_coef"] = 0.0  # OpenRLHF computes entropies, and adds them with weight 0 to the loss
    return argparse.Namespace(**flags, credit=run.spec, **more)


def twice(run: Run) -> Iterator[Refusal]:
    """Refuse a knob that is set both by a flag and after the rule's name."""
    rule, *parts = split(run.estimator, "/") if run.spec else ("",)
    for knob in (part.partition("=")[0] for part in parts):
        if f"{rule}.{knob}" in run.set_flags:
            yield Refusal("", f"{ESTIMATOR} {run.estimator} and --{rule}.{knob} both set {knob}; use one of them")


def idle(run: Run) -> Iterator[Note]:
    """Warn of rule flags that have no effect with this estimator; with OpenRLHF's estimators none has an effect."""
    rule, used, searches = run.estimator.partition("/")[0], set(), True
    if run.spec is not None:
        used = {rule, CREDIT} | ({"prm"} if "prm_scores" in run.traits.needs else set())
        searches = "hidden_states" in run.traits.needs or rule == "text"
    of_searches = set() if searches else {f"{CREDIT}.{knob.name}" for knob in fields(SearchConfig)}
    sections = {flag: flag.split(".")[0] for flag in sorted(run.set_flags)}
    unused = [flag for flag, its in sections.items() if its in KNOBS and (its not in used or flag in of_searches)]
    if unused:
        having = {"prm": PRM_RULES, CREDIT: ["shear"]}
        rules = dict.fromkeys(name for flag in unused for name in having.get(sections[flag], [sections[flag]]))
        message = f"{', '.join(f'--{flag}' for flag in unused)} has no effect with --{ESTIMATOR} {rule}"
        yield Note(f"{message}; use --{ESTIMATOR} {' or '.join(rules)}")


def _hide(flags: dict[str, object]) -> Iterator[Finding]:
    """Read W&B's key from the place that the command line names, and turn each text with a secret into a `Secret`.

    Warn of secrets on the command line itself. Refuse a place without a key.
    """
    for name, value in flags.items():
        if type(value) is str and (shown := hidden(value)) != value:
            flags[name] = Secret(value, shown)
            if name == REWARD:
                yield _seen(f"a token in --{name}", f"--reward.token_file or the environment's {REWARD_TOKEN}")
    if key := flags[_KEY]:
        flags[_KEY] = Secret(_wandb_key(key))
        if flags[_KEY] == key and len(key) >= _LEAST:
            yield _seen(f"--{_KEY}", f"--{_KEY} env with {WANDB_KEY} set, or a file that holds it")


def _wandb_key(key: str) -> str:
    if key == "env":
        if not os.environ.get(WANDB_KEY):
            problem = f"is to come from the environment, which has no {WANDB_KEY}"
            refuse(_KEY, problem, key, "a file that holds the key")
        return os.environ[WANDB_KEY]
    if not os.path.isfile(key):
        if os.sep in key or os.path.splitext(key)[1]:  # no key has a slash or a dot
            refuse(_KEY, "names a file that is not there", key, "a file that holds the key")
        return key
    try:
        text = Path(key).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        refuse(_KEY, f"names a file that cannot be read ({type(error).__name__})", key, "a file that holds the key")
    if len(text.split()) != 1:
        refuse(_KEY, "names a file that does not hold one key", key, "a file with the key in its first line")
    return text


def _seen(what: str, instead: str) -> Note:
    return Note(f"`ps` and Ray's list of jobs show {what} to others; use {instead}")
