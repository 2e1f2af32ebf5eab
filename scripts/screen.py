"""The output and the picture of the screen on docs/make-run.md, from a run of `make run` in a terminal of 120 columns.

pip install pyte && python scripts/screen.py      minutes; set up the environment before, with make setup
"""

import io
import os
import pty
import re
import subprocess
import termios
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PAGE, IMAGES = ROOT / "docs/make-run.md", ROOT / "docs/images"
COLUMNS, ROWS, SHOWN = 120, 400, 45  # more rows than the run prints; rows of the picture
STEP = r"^20/40 "  # the picture is of the moment when this line is on the screen
COLOURS = {"default": "default", "brown": "yellow"}  # pyte's names, where they are not rich's


def main() -> None:
    screen = pyte.Screen(COLUMNS, ROWS)
    stream, (ours, theirs) = pyte.ByteStream(screen), pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    kind = {"TERM": "xterm-256color"}
    run = subprocess.Popen(["make", "run"], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | kind)
    os.close(theirs)
    shown = None
    while chunk := _read(ours):
        stream.feed(chunk)
        if shown is None and re.search(STEP, "\n".join(screen.display), re.M):
            shown = _picture(screen)
    if run.wait() or shown is None:
        raise SystemExit(f"make run ended with exit code {run.returncode}")
    lines = [line.rstrip() for line in screen.display]
    text = "\n".join(lines).strip()
    text = text[text.index("examples/scripts/") :]
    text = re.sub(r"\n(?=[\d.]+ s  ETA )", "  ", text)  # the terminal breaks long lines, and the page does not
    text = re.sub(r"(?<=_rate)\n(?=[\d.]+$)", " ", text, flags=re.M)
    text = re.sub(r"(?s)^ +GiB a GPU.*?└[^\n]*\n", "(the estimate of memory)\n", text, count=1, flags=re.M)
    text = re.sub(r"^( 1/40 .*\n)(?: ?\d+/40 .*\n)*(?=40/40 )", r"\1...\n", text, flags=re.M)  # the page needs no more
    text = re.sub(r"(?sm)^ +First and last\n.*?(?=^note: )", "(the report's first and last values)\n", text)
    text = re.sub(r"(?sm)^(left out, for reasons on the page: ).*?(?=^\d+ files in )", r"\1...\n", text)
    PAGE.write_text(re.sub(r"(?<=\n```\n)examples/scripts/.*?(?=\n```)", lambda _: text, PAGE.read_text(), flags=re.S))
    (IMAGES / "console.svg").write_text(shown)
    (report,) = re.findall(r"^(\S+/report)/index\.html$", text, re.M)
    (reward,) = (ROOT / report).glob("rollout_reward_*.png")
    (IMAGES / "arithmetic_reward.png").write_bytes(reward.read_bytes())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the run has closed its end
        return b""


def _picture(screen: pyte.Screen) -> str:
    """Return the last rows of the screen as an SVG."""
    last = max(row for row in range(ROWS) if screen.display[row].strip())
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for row in range(max(0, last + 1 - SHOWN), last + 1):
        line, cells = Text(), [screen.buffer[row][column] for column in range(COLUMNS)]
        for style, same in groupby(cells, _style):
            line.append("".join(cell.data for cell in same), style)
        line.rstrip()
        console.print(line, no_wrap=True)
    return console.export_svg(title="make run")


def _style(cell) -> str:
    colour = COLOURS.get(cell.fg, cell.fg if cell.fg.isalpha() else f"#{cell.fg}")
    return f"{'bold ' if cell.bold else ''}{colour}"


if __name__ == "__main__":
    main()
