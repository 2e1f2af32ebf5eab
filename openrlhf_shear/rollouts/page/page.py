"""The rollout page: rollouts of a training step or a diagnosis as one HTML file, which loads nothing else.

Above 20 MB it is an overview with links to a page for each step.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

import numpy as np

from openrlhf_shear.config.names import titled
from openrlhf_shear.report.page import render
from openrlhf_shear.rollouts.page import data
from openrlhf_shear.rollouts.record import Rollout, is_mixed, read_groups, run_files

HERE = Path(__file__).parent
SCRIPTS = ("data", "tokens", "list", "group", "profiles", "selection", "heatmap", "keys")  # joined in this order
SHEAR = "shear"


def make_page(
    rollouts: Sequence[Rollout],
    settings: Mapping[str, Any],
    title: str | None = None,
    limit: int | None = None,
    steps: Mapping[str, int] | None = None,
) -> str:
    """Return the page's HTML; all text of rollouts and settings in it is escaped.

    Args:
        rollouts: at least one.
        settings: of these rollouts, as `write_rollouts` keeps them.
        title: the heading (default: made of the steps and the model).
        limit: the most groups to show of a step (default: all).
        steps: the step of each group, if the rollouts are of several steps.
    """
    groups = data.group_rollouts(rollouts, limit, steps)
    left_out = len({rollout.group for rollout in rollouts}) - len(groups)
    return page_of(
        groups, [data.to_json(data.block(group)) for group in groups], settings, title, steps or {}, left_out
    )


def page_of(
    groups: Sequence[Sequence[Rollout]],
    blocks: Sequence[str],
    settings: Mapping[str, Any],
    title: str | None,
    steps: Mapping[str, int],
    left_out: int,
    overview: str | None = None,
) -> str:
    """Return the HTML of whole groups.

    Args:
        blocks: of each group, its data (`data.block`) as JSON.
        left_out: groups that the page does not show.
        overview: the address of a page that leads here.
    """
    window = settings.get("window")
    window = window if isinstance(window, int) and window > 0 else None
    rule, estimator = settings.get("rule"), settings.get("estimator")
    shown = [rollout for group in groups for rollout in group]
    return render(
        asset("page.html"),
        style=data.css() + asset("page.css"),
        script='"use strict";\n' + "".join(asset(f"{name}.js") for name in SCRIPTS),
        heading=title or heading(settings, _steps(settings.get("step"), sorted({*steps.values()}))),
        rule=titled([estimator])[0] if isinstance(estimator, str) and ":" in estimator else rule,
        has_spans=any(rollout.span_starts for rollout in shown),
        has_distances=any(rollout.heatmaps for rollout in shown),
        symbol="ω" if rule == SHEAR else "weight",
        levels=data.LEVELS,
        colours=len(data.LIGHT),
        facts=summary(groups),
        settings={name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()},
        left_out=left_out,
        overview=overview,
        has_steps=len({*steps.values()}) > 1,
        has_errors=any(rollout.first_error is not None for rollout in shown),
        index=data.to_json(data.index(groups, window, steps)),
        blocks=blocks,
    )


def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _steps(step: int | None, steps: Sequence[int]) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if steps else "" if step is None else f"step {step}"


def heading(settings: Mapping[str, Any], of: str = "") -> str:
    """Return the default heading of rollouts `of` some steps."""
    model = settings.get("model")
    return f"Rollouts{of and f' of {of}'}{'' if model is None else f', {model_name(str(model))}'}"


def model_name(model: str) -> str:
    """Return the name of a model: the last part of a path or hub id. The settings have all of it.

    >>> model_name("Qwen/Qwen2.5-Math-7B"), model_name("/data/policies/small/"), model_name("arithmetic policy")
    ('Qwen2.5-Math-7B', 'small', 'arithmetic policy')
    """
    return PurePath(model).name or model


def summary(groups: Sequence[Sequence[Rollout]]) -> list[tuple[str, str]]:
    """Return the page's facts about all its rollouts: names and values."""
    rollouts = [rollout for group in groups for rollout in group]
    verdicts = [rollout.correct for rollout in rollouts]
    facts = [
        ("Rollouts", f"{len(rollouts)}"),
        ("Groups", f"{len(groups)}, {sum(map(is_mixed, groups))} mixed"),
        ("Correct", f"{verdicts.count(True)} of {len(verdicts) - verdicts.count(None)}"),
        ("Mean length", f"{np.mean([len(rollout.tokens) for rollout in rollouts]):.0f} tokens"),
    ]
    if verdicts.count(None):
        facts.append(("Without a reward", f"{verdicts.count(None)}"))
    if any(rollout.truncated for rollout in rollouts):
        facts.append(("Truncated", f"{sum(rollout.truncated for rollout in rollouts)}"))
    mixed = [rollout for group in groups if is_mixed(group) for rollout in group if rollout.weights]
    for name, outcome in (("correct", True), ("incorrect", False)):
        weights = [rollout.weights for rollout in mixed if rollout.correct is outcome]
        if weights:
            facts.append((f"Mean weight, {name}", f"{np.mean(np.concatenate(weights)):.4g}"))
    parts = [_around_error(rollout) for rollout in mixed if rollout.first_error and rollout.correct is False]
    parts = [part for part in parts if part is not None]
    if parts:
        before, after = np.mean(parts, axis=0)
        facts.append(("Mean weight, before and from the first error", f"{before:.4g} and {after:.4g}"))
    return facts


def _around_error(rollout: Rollout) -> tuple[float, float] | None:
    before, after = rollout.weights[: rollout.first_error], rollout.weights[rollout.first_error :]
    return (float(np.mean(before)), float(np.mean(after))) if before and after else None


MOST = 20e6  # bytes of a page
_FRAME, _ROW = 100_000, 300  # bytes, at most: of a page's script and style; of a rollout's row in the index


@dataclass
class _Part:
    """Groups of a step, as many as fit on a page."""

    step: int | None
    number: int  # within the step, from 1
    groups: list[list[Rollout]] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)  # of each group, as `page_of` takes them
    size: int = 0

    @property
    def name(self) -> str:
        """`step 12`, `step 12, part 2`, or `part 1` of a file without a step."""
        words = [f"step {self.step}"] * (self.step is not None)
        return ", ".join([*words, f"part {self.number}"] if self.number > 1 or not words else words)


def write_pages(path: Path, output: Path, title: str | None = None, limit: int | None = None) -> list[Path]:
    """Write the page of a file, or of the steps of a run's folder, and return its path.

    Where the page would be larger than `MOST`, write an overview and the pages to which it leads, and return all paths.

    Args:
        title: the heading (default: made of the steps and the model).
        limit: the most groups to show of a step (default: all); of the others only the names are read.

    Raises:
        TableError: as `run_files` does.
        ValueError: there is no rollout.
        OSError: a page cannot be written.
    """
    files, settings = run_files(path)
    waiting: list[_Part] = []
    pages: list[dict] = []
    left_out = size = 0
    output.parent.mkdir(parents=True, exist_ok=True)
    for file, step in files.items():
        groups, count = read_groups(file, limit)
        left_out += max(0, count - (limit or count))
        for part in _parts(groups, settings.get("step") if step is None else step, of_run=step is not None):
            waiting.append(part)
            size += part.size
            while size + _FRAME > MOST and waiting:
                pages.append(_write(waiting.pop(0), output, settings, title))
    if not size:
        raise ValueError(f"{path} holds no rollouts, so there is nothing to show; use a file with rollouts")
    if pages:
        names = list(dict.fromkeys(name for page in pages for name in page["facts"]))
        template, style = asset("overview.html"), asset("overview.css")
        text = render(template, style, "", title or heading(settings), pages=pages, names=names, left_out=left_out)
    else:
        shown = [group for part in waiting for group in part.groups]
        steps = {group[0].group: part.step for part in waiting for group in part.groups} if len(files) > 1 else {}
        text = page_of(shown, [block for part in waiting for block in part.blocks], settings, title, steps, left_out)
    output.write_text(text, encoding="utf-8")
    return [output, *(page["path"] for page in pages)]


def _parts(groups: Iterable[list[Rollout]], step: int | None, of_run: bool) -> Iterator[_Part]:
    part = _Part(step, 1)
    for group in groups:
        group.sort(key=lambda rollout: rollout.sample)
        block = data.to_json(data.block(group))
        size = len(block) + _ROW * len(group)
        if part.groups and part.size + size + _FRAME > MOST:
            yield part
            part = _Part(step, part.number + 1)
        named = [replace(rollout, group=f"{rollout.group} of step {step}") for rollout in group] if of_run else group
        part.groups.append(named)
        part.blocks.append(block)
        part.size += size
    if part.groups:
        yield part


def _write(part: _Part, output: Path, settings: Mapping, title: str | None) -> dict:
    """Write a part's page beside `output`, and return its row of the overview."""
    path = output.with_name(f"{output.stem}_steps") / f"{part.name.replace(', ', '_').replace(' ', '')}.html"
    path.parent.mkdir(exist_ok=True)
    heads, back = f"{title}, {part.name}" if title else heading(settings, part.name), f"../{quote(output.name)}"
    path.write_text(page_of(part.groups, part.blocks, settings, heads, {}, 0, back), encoding="utf-8")
    address, facts = f"{quote(path.parent.name)}/{path.name}", dict(summary(part.groups))
    return {"path": path, "address": address, "name": part.name, "size": path.stat().st_size, "facts": facts}
