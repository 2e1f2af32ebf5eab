"""Fingerprint of a run: detects a resume with other data, another seed, another layout or another model.

Each checkpoint of the policy has a `fingerprint.json`, sorted by topic. A difference in a topic of `MAY_CHANGE` is
refused unless `--ckpt.accept_changes` names the topic. A checkpoint cannot be loaded into another layout or shape.
Everything else may change.
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from openrlhf_shear.config.refusal import Note, refuse
from openrlhf_shear.config.spec import CREDIT
from openrlhf_shear.data.training_rows import CONTENTS, COUNT
from openrlhf_shear.line.run import ACCEPT_CHANGES, ESTIMATOR, MAY_CHANGE, Run
from openrlhf_shear.preflight.models import Models
from openrlhf_shear.rewards.function_workers import file_digest
from openrlhf_shear.train.checkpoints import folders
from openrlhf_shear.train.checkpoints.folders import changed

FILE, STATE = "fingerprint.json", "fingerprint"  # the file, and the key in DeepSpeed's client state
_LAYOUT = "layout"
_CONVERTER = "DeepSpeed's converter for another number of ranks (docs/reliability.md#not-promised)"
_VOLATILE = ("_name_or_path", "transformers_version")  # keys of config.json that differ between copies of a model


@dataclass(frozen=True)
class Change:
    """Difference between a run and the checkpoint that it resumes from."""

    topic: str
    what: str
    before: object
    now: object

    def __str__(self) -> str:
        before, now = ("unset" if value is None else value for value in (self.before, self.now))
        return f"{self.what} was {before}, is {now}"


@dataclass(frozen=True)
class Fingerprint:
    """Settings and data of a run as JSON values, by topic and description."""

    topics: dict[str, dict[str, object]]

    def with_data(self, data: dict[str, object]) -> "Fingerprint":
        """Return a copy with the facts that come from the rows (`training_rows.of_digests`)."""
        return Fingerprint(self.topics | {"data": self.topics["data"] | data})

    def changes(self, saved: dict[str, dict[str, object]], converted: bool = False) -> list[Change]:
        """Return the differences from a checkpoint's topics, among values that both have.

        Args:
            converted: whether DeepSpeed's converter has made the checkpoint fit any layout.
        """
        found = [
            Change(topic, what, saved[topic][what], now)
            for topic, values in self.topics.items()
            for what, now in values.items()
            if saved.get(topic, {}).get(what, now) != now and not (topic == _LAYOUT and converted)
        ]
        counted = any(change.what == COUNT for change in found)
        return [change for change in found if not (counted and change.what == CONTENTS)]


def of_run(run: Run, models: Models) -> Fingerprint:
    """Return the fingerprint of a run, without its data rows."""

    def flags(*names: str) -> dict[str, object]:
        return {name: run.flags[name] for name in names}

    name, actor = "actor.model_name_or_path", models["actor"]
    topics = {
        "data": flags("data.apply_chat_template", "data.input_template"),
        "seed": flags("train.seed"),
        "rule": _rule(run),
        "batch": flags("rollout.batch_size", "train.batch_size", "train.max_epochs"),
        "model": {name: _last_part(run.flags[name])} | flags("ds.lora.alpha"),
        "shape": flags("rollout.n_samples_per_prompt", "ds.lora.rank", "ds.lora.target_modules"),
        _LAYOUT: {"ranks of the policy": run.ranks["actor"]}
        | ({"ranks of the critic": run.ranks["critic"]} if run.estimator == "gae" else {})
        | flags("ds.zero_stage", "ds.tensor_parallel_size", "ds.ring_attn_size"),
    }
    reward = run.reward.remote_url
    if reward and reward.endswith(".py") and Path(reward).is_file():
        topics["reward"] = {"digest of the reward file and of those that it imports": file_digest(reward)}
    if actor.path and not actor.invalid:
        stable = {name: value for name, value in actor.config.items() if name not in _VOLATILE}
        digest = hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:16]
        topics["model"]["digest of the model's config.json"] = digest
    for who, model in (("model", actor), ("critic", models.get("critic"))):
        if model and model.shape:
            topics["shape"] |= {f"the {who}'s number of {name}": size for name, size in asdict(model.shape).items()}
    return Fingerprint(json.loads(json.dumps(topics)))


def _rule(run: Run) -> dict[str, object]:
    spec = run.spec
    if spec is None:
        return {ESTIMATOR: run.estimator}
    outcome = {f"{CREDIT}.{name}": value for name, value in asdict(spec.outcome).items() if value is not None}
    rule = {ESTIMATOR: spec.estimator} | outcome
    if entry := spec.name.built_in:
        knobs = spec.config if spec.config is not None or entry.config is None else entry.config()
        rule |= {f"{entry.name}.{name}": value for name, value in (asdict(knobs) if knobs else {}).items()}
    if "prm_scores" in run.traits.needs:
        rule["prm.model_name_or_path"] = _last_part(spec.prm.model_name_or_path)
    return rule


def _last_part(model: str) -> str:
    """Return the last part of a path or hub id, because a model may move."""
    return Path(model).name


def accepted_topics(topics: str | None) -> list[str]:
    """Return the topics that --ckpt.accept_changes names. Raises LineError: a topic is unknown."""
    names = [topic.strip() for topic in topics.split(",")] if topics else []
    for topic in names:
        if topic not in MAY_CHANGE:
            refuse(ACCEPT_CHANGES, "must name what may differ", topic, f"some of {','.join(MAY_CHANGE)}")
    return names


def check(run: Run, now: Fingerprint, rows: dict[str, object] | None) -> Iterator[Note]:
    """Compare the newest checkpoint with this run before anything starts, if the run resumes.

    Args:
        rows: the facts of the training rows (`training_rows.of_digests`); None if only the trainer can read them.

    Raises:
        ValueError: the newest checkpoint belongs to a run other than `now`.
    """
    accepted, path = accepted_topics(run.flags[ACCEPT_CHANGES]), run.ckpt.path
    if not run.ckpt.load_enable:
        return
    converted = run.ds.use_universal_ckpt
    try:
        tag = _newest(Path(path), run.estimator == "gae", converted)
        saved = tag and read(Path(path, folders.ACTOR, tag))
    except (OSError, json.JSONDecodeError) as error:
        refuse("ckpt.path", f"has checkpoints that cannot be read ({error})", path, "one that you may read")
    if tag is None and (problem := folders.no_fresh_start(Path(path, folders.ACTOR))):
        raise ValueError(f"ckpt.path {path}: {problem}")
    if tag is None or saved is None:
        return
    now = now.with_data(rows) if rows else now
    for line in judged(now, saved, accepted, f"{path}: {tag}", converted):
        yield Note(line, "Info")


def judged(
    now: Fingerprint, saved: dict, accepted: Collection[str], checkpoint: str, converted: bool = False
) -> list[str]:
    """Return a line about accepted changes; no line without changes.

    Raises:
        ValueError: there are changes that `accepted` does not name.
    """
    changes = now.changes(saved, converted)
    refused = [change for change in changes if change.topic not in accepted]
    if not refused:
        return [f"taken as asked (--{ACCEPT_CHANGES}): {'; '.join(map(str, changes))}"] if changes else []
    topics = list(dict.fromkeys(change.topic for change in refused))
    message = f"ckpt.path {checkpoint} is of another run: {'; '.join(map(str, refused))}; use what it was"
    if not {*topics} <= MAY_CHANGE.keys():
        raise ValueError(f"{message}{f', {_CONVERTER},' if _LAYOUT in topics else ''} or another --ckpt.path")
    means = "; ".join(f"{topic}: {MAY_CHANGE[topic]}" for topic in topics)
    wider = ",".join(dict.fromkeys([*accepted, *topics]))
    raise ValueError(f"{message}, another --ckpt.path, or --{ACCEPT_CHANGES} {wider} ({means})")


def read(checkpoint: Path) -> dict | None:
    """Read the topics of a checkpoint; None if they are gone, as after DeepSpeed's converter. The trainer compares."""
    file = checkpoint / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _newest(folder: Path, critic: bool, converted: bool) -> str | None:
    """Return the newest checkpoint that looks complete by file sizes; ranks check every byte before they load it."""
    actor = folder / folders.ACTOR
    if converted:
        tag = folders.named_in(actor, folders.UNIVERSAL)
        return tag and tag.removesuffix("_universal")
    both, broken = [actor, *([folder / folders.CRITIC] if critic else [])], []
    while (tag := folders.find(both, broken)[0]) and changed(filter(Path.is_file, [actor / tag / FILE])):
        broken.append(tag)
    return tag
