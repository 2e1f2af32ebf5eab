"""The page of a file or a run; above 20 MB, an overview with links to a page for each step."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from openrlhf_shear.report.page import render
from openrlhf_shear.rollouts.page import data
from openrlhf_shear.rollouts.page.page import asset, heading, page_of, summary
from openrlhf_shear.rollouts.record import Rollout, read_groups, run_files

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
