"""What our pages share: one look, light and dark, and a policy: a page runs its own script alone and asks nothing."""

import base64
import hashlib
from pathlib import Path

HERE = Path(__file__).parent


def render(template: str, style: str, script: str, heading: str, **values: object) -> str:
    """A page, one file that needs no other; every value in it is escaped.

    Args:
        template: jinja2, extending `base.html`, with the blocks `skip` and `body`.
        style: CSS, after the shared one.
        script: the only one that the page's policy lets run.
        heading: its title too.
    """
    # Late: a command line is checked before this loads.
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
