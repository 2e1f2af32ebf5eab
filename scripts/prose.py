"""Check the English of docs, docstrings, comments and messages: long sentences, riddles, and `one` as a name.

python scripts/prose.py [PATH ...]     default: the whole repository; exit 1 if anything is found
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
PLACES = (*PAGES, "docs", "benchmarks", "examples", "openrlhf_shear", "scripts", "tests")
MOST_WORDS = 30
RIDDLES = (  # what stands for a plain word, with _ for white space; the fix depends on the sentence
    r"what_becomes_of",
    r"whatever_becomes_of",
    r"(?:who|which|that)_(?:has|have)_died",
    r"(?:is|are|was|were)_gone_on_with",
    r"(?:of|a|an)_(?:its|their|his|one's|my|our|your)_own\b(?!_(?:\w+))",
    r"(?:default|child)_of_nothing",
    r"who_calls\b",
    r"what_(?:\w+_){1,3}stands?_on",
    r"\bkept_runs?\b",
    r"(?:have|take|takes|has|at)_a_look\b",
    r"\ba_rest\b",
    r"\bthe_rest_of_it\b",
    r"that_are_there\b",
    r"in_place_of_which\b",
    r"of_what_(?:it|they|that)_(?:is|are|was|were)\b",
    r"\bnobody_(?:asked|asks)_for\b",
    r"\bwithout_(?:one|them|it)_(?:it|they)\b",
    r"\bwho_(?:has|have|lacks|asks|reads|wants|would)\b",
    r"\bsay(?:s)?_(?:it_)?of_(?:it|them|another|one)\b",
    r"\bit_is_told_of\b",
    r"\bis_told_of\b",
)
_RIDDLE = re.compile("|".join(f"(?:{riddle})" for riddle in RIDDLES).replace("_", r"\s+"), re.IGNORECASE)
_END = re.compile(r"(?<=[.!?])[)\"'*_`]*\s+|:\s*\n|\n\s*\n|\n\s*(?:[-*>]|\d+\.)\s")
_WORD = re.compile(r"[^\W\d_][\w'’-]*|\d[\w.,%]*")
_CODE = re.compile(r"```.*?(?:```|\Z)|<!--.*?-->|^ {4}[^\n]*$|^::: [^\n]*$|^\s*<[^>]*>\s*$", re.DOTALL | re.MULTILINE)
_PRINTED = re.compile(r"<!-- printed by [^>]*-->\n+(?:\|[^\n]*\n)+")  # a table that a script prints
_INLINE = (re.compile(r"``?[^`]*``?"), re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), re.compile(r"\$[^$\n]*\$"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (default: the repository's)")
    paths = parser.parse_args().paths or [ROOT / place for place in PLACES]
    found = [finding for path in paths for file in files_of(path.resolve()) for finding in check(file)]
    for finding in found:
        print(finding)
    if found:
        print(f"{len(found)} findings; shared rules: subject, verb, object; one idea a sentence; things have names")
    return 1 if found else 0


def check(file: Path) -> list[str]:
    """Return the findings of a file: `path:line: what`."""
    source = file.read_text()
    texts = _prose_of_markdown(source) if file.suffix == ".md" else _prose_of_python(source, "tests" not in file.parts)
    found = [(line, what) for line, text in texts for what in problems(text)]
    if file.suffix == ".py":
        found += [(line, "`one` is a name: call the thing what it is") for line in _ones(source)]
    place = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    return [f"{place}:{line}: {what}" for line, what in sorted(set(found))]


def problems(text: str) -> Iterator[str]:
    """Say what is wrong with a paragraph of plain text."""
    for sentence in _END.split(text):
        words = _WORD.findall(sentence)
        if len(words) > MOST_WORDS:
            yield f"{len(words)} words in a sentence (at most {MOST_WORDS}): {' '.join(words[:8])} ..."
    for riddle in _RIDDLE.finditer(text):
        yield f"a riddle: {' '.join(riddle.group().split())!r}"


def files_of(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return [file for file in files if file.suffix in (".md", ".py")]


def _plain(text: str) -> str:
    """Return Markdown without code, addresses and formulas; inline code counts as a word."""
    code, link, formula = _INLINE
    return formula.sub("X", link.sub(r"\1", code.sub("X", text)))


def _prose_of_markdown(source: str) -> Iterator[tuple[int, str]]:
    source = _PRINTED.sub(lambda table: "\n" * table.group().count("\n"), source)
    blanked = _CODE.sub(lambda code: "\n" * code.group().count("\n"), source)
    line = 1
    for block in re.split(r"(\n\s*\n)", blanked):
        rows = [row for row in block.splitlines() if row.lstrip().startswith("|")]
        prose = "\n".join(row for row in block.splitlines() if row not in rows)
        yield line + len(block) - len(block.lstrip("\n")), _plain(prose)
        for row in rows:
            for cell in row.split("|"):
                yield line, _plain(cell)
        line += block.count("\n")


def _prose_of_python(source: str, messages: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield node.body[0].lineno, _plain(_CODE.sub("", text))
        elif messages and isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            yield node.lineno, _plain(node.value)
    comment, first = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            first = first or token.start[0]
            comment += " " + token.string.lstrip("# ")
        elif token.type != tokenize.NL and comment:
            yield first, _plain(comment)
            comment, first = "", 0


def _ones(source: str) -> Iterator[int]:
    """Yield the lines that bind the name `one`, as a variable, a parameter or a function."""
    for node in ast.walk(ast.parse(source)):
        bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id
        bound = bound or (isinstance(node, ast.arg) and node.arg) or (isinstance(node, ast.FunctionDef) and node.name)
        if bound == "one":
            yield node.lineno


if __name__ == "__main__":
    sys.exit(main())
