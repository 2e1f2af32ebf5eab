"""docs/questions.md names a page and a heading that exist for each of a reader's questions."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
QUESTION = re.compile(r"^- .*\? \[[^\]]+\]\(([\w-]+\.md)#([\w-]+)\)$", re.M)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as the site makes them."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def missing(questions: str) -> list[str]:
    """Return the links whose page or heading does not exist."""
    found = QUESTION.findall(questions)
    files = {name: DOCS / name for name, _ in found}
    known = {name: anchors(file.read_text()) if file.is_file() else set() for name, file in files.items()}
    return [f"{name}#{anchor}" for name, anchor in found if anchor not in known[name]]


def test_thirty_questions_have_an_answer():
    page = (DOCS / "questions.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("- ")]
    assert len(QUESTION.findall(page)) == len(lines) >= 30, "each line: - Question? [text](page.md#heading)"
    assert len(set(lines)) == len(lines) and missing(page) == []


@pytest.mark.parametrize("link", ["house.md#no-such-heading", "no-such-page.md#words"])
def test_a_wrong_link_is_seen(link):
    assert missing(f"- Where is it? [there]({link})") == [link]
    assert missing("- Where is it? [there](house.md#words)") == []


def test_anchors_are_those_of_the_site():
    markdown = pytest.importorskip("markdown")
    titles = "## The afternoon's reading\n\n## On a GPU: modelled, not measured\n\n## `a_b`, or c\n"
    made = re.findall(r'id="([^"]+)"', markdown.markdown(titles, extensions=["toc"]))
    assert anchors(titles) == set(made)
