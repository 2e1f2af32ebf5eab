"""The shared frame of our pages: one design, light and dark, and a policy that runs the page's script alone."""

import base64
import hashlib
from pathlib import Path

HERE = Path(__file__).parent


def sorting() -> str:
    """Return the script of pages with tables to sort: a click on a button in a column's head sorts by that column.

    A cell sorts by its `data-value`, or by its text.
    """
    return (HERE / "sort.js").read_text(encoding="utf-8")


def render(template: str, style: str, script: str, heading: str, **values: object) -> str:
    """Return a page as one self-contained HTML file; every value in it is escaped.

    Args:
        template: jinja2 that extends `base.html`, with the blocks `skip` and `body`.
        style: CSS, after the shared CSS.
        script: the only script that the page's policy lets run.
        heading: the heading and the title.
    """
    # Imported late: a command line is checked before this loads.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.from_string(template).render(
        style=(HERE / "base.css").read_text(encoding="utf-8") + style,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        heading=heading,
        **values,
    )
