"""`scripts/prose.py` finds what it names, passes what is plain, and finds nothing in this repository."""

from pathlib import Path

import prose
import pytest

ROOT = Path(__file__).parents[3]
LONG = " ".join(["word"] * 31)


def test_every_page_and_module_is_read():
    """What it finds there is for `make test`, which runs it, as `make lint` does."""
    files = [file for place in prose.PLACES for file in prose.files_of(ROOT / place)]
    below = {file for place in prose.PLACES for ending in ("md", "py") for file in (ROOT / place).rglob(f"*.{ending}")}
    assert set(files) == below | {ROOT / page for page in prose.PAGES}, "nothing is left out"
    assert {*prose.PAGES, "CHANGELOG.md"} == {file.name for file in ROOT.glob("*.md")}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.md", f"{LONG}.", ["31 words"]),
        ("a.md", f"Short. Two of them, `{LONG}`.\n\n    {LONG}\n\n```\n{LONG}\n```\n", []),
        ("a.md", "::: a.b.c.d.e.f\n" * 6, []),
        ("a.md", f"- {LONG[:-5]}\n- {LONG[:-5]}\n", []),
        ("a.md", f"| a | b |\n| --- | --- |\n| {LONG} | x |\n", ["31 words"]),
        ("a.md", f"<!-- printed by a script -->\n| a |\n| --- |\n| {LONG} |\n\n{LONG}\n", ["31 words"]),
        ("a.md", "This is what becomes of\nthe run.", ["a riddle: 'what becomes of'"]),
        ("a.md", "This is what\nbecomes of the run.", ["a riddle: 'what becomes of'"]),
        ("a.py", f'"""{LONG}."""\n# {LONG}\nx = "{LONG}"\n', ["31 words", "31 words", "31 words"]),
        ("tests/a.py", f'x = "{LONG}"\n', []),
        ("a.py", "for one in (1, 2):\n    print(one)\n", ["`one` is a name"]),
        ("a.py", "def f(one):\n    return [one for one in (1,)]\n", ["`one` is a name", "`one` is a name"]),
    ],
)
def test_what_is_found(tmp_path, name, text, found):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    said = prose.check(file)
    assert len(said) == len(found) and all(part in line for part, line in zip(found, said, strict=True)), said
