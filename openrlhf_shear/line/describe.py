"""From parsed flags to the description of a run: its credit rule, the file of its reward, and its secrets."""

import argparse
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from openrlhf_shear.config import CreditSpec, SearchConfig
from openrlhf_shear.config.names import is_rule, names_file, parse_rule, split
from openrlhf_shear.config.refusal import Finding, Findings, LineError, Note, Refusal, refuse
from openrlhf_shear.config.secrets import REWARD_TOKEN, WANDB_KEY, Secret, hidden
from openrlhf_shear.config.shear import SpanCut
from openrlhf_shear.config.spec import CREDIT, OutcomeConfig, PrmConfig, credit_spec
from openrlhf_shear.line.flags import KNOBS, OF_SEARCHES, PRM_RULES
from openrlhf_shear.line.run import ESTIMATOR, REWARD, Run
from openrlhf_shear.rewards.files import FILES

_KEY = "logger.wandb.key"
_LEAST = 20  # characters of a key; with a shorter text (as in `--use_wandb True`) the node's login applies


def describe(flags: Mapping[str, object], set_flags: Collection[str], findings: Findings) -> Run:
    """Return the description of a run; note what is wrong with its credit rule and its keys.

    A rule from outside is constructed, so that its errors show before anything starts.
    """
    known = {**flags, REWARD: FILES.get(flags[REWARD], flags[REWARD])}
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


def knob_words(words: Sequence[str]) -> list[str]:
    """Return the words that are flags of credit rules, `--shear.window` or `--shear.window=50`."""
    return [word for word in words if word.startswith(tuple(f"--{section}." for section in KNOBS))]


def twice(run: Run, words: Sequence[str]) -> Iterator[Refusal]:
    """Refuse a knob that is set both by a flag, among `words`, and after the rule's name."""
    rule, *parts = split(run.estimator, "/") if run.spec and "/" in run.estimator else ("",)
    for knob in (part.partition("=")[0] for part in parts):
        flag = f"--{rule}.{knob}"
        if any(word.partition("=")[0] == flag for word in words):
            yield Refusal("", f"{ESTIMATOR} {run.estimator} and {flag} both set {knob}; use one of them")


def idle(run: Run, words: Sequence[str]) -> Iterator[Note]:
    """Warn of rule flags that have no effect with this estimator; with OpenRLHF's estimators none has an effect."""
    rule, unused = run.estimator.partition("/")[0], list(words)
    if run.spec is not None:
        used = {rule, CREDIT} | ({"prm"} if "prm_scores" in run.traits.needs else set())
        of_searches = set() if "hidden_states" in run.traits.needs or rule == "text" else OF_SEARCHES
        flags = [(word, word.partition("=")[0]) for word in words]
        unused = [word for word, flag in flags if flag[2:].split(".")[0] not in used or flag in of_searches]
    if unused:
        sections = dict.fromkeys(word.removeprefix("--").split(".")[0] for word in unused)
        having = {"prm": PRM_RULES, CREDIT: ["shear"]}
        rules = dict.fromkeys(name for section in sections for name in having.get(section, [section]))
        message = f"{', '.join(unused)} has no effect with --{ESTIMATOR} {rule}"
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
