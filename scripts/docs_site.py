"""Hooks of mkdocs.yml: the README as first page, linked repository files as part of the site, and texts of fields."""

import ast
import posixpath
import re
from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\(\.\./([^)#\s]+)")
_FOLDER = "repository"


def on_files(files, config):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = re.sub(r"\]\((?!https?:|#)(?!docs/)", "](../", readme).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    sources = [readme, *(file.content_string for file in files.documentation_pages())]
    for name in sorted({name for text in sources for name in _LINK.findall(text)}):
        if (ROOT / name).is_file():
            files.append(File.generated(config, _place(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrite links to repository files. A link to a missing file stays broken, so that strict mode refuses it."""
    return _LINK.sub(lambda link: f"]({_place(link[1])}", markdown)


def _place(name: str) -> str:
    """Return a file's place in the site; Markdown files get .txt, so that they are not rendered."""
    return posixpath.join(_FOLDER, name + (".txt" if name.endswith(".md") else ""))


class Fields(griffe.Extension):
    """Document a field by the comment after it, or a `knob` by its help and its default."""

    def on_attribute_instance(self, *, node, attr, **kwargs):
        if attr.docstring or not isinstance(node, ast.AnnAssign):
            return
        text = attr.source.partition("  # ")[2]
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "knob":
            default, about = node.value.args[:2]
            attr.value, text = ast.unparse(default), getattr(about, "value", "")  # no help that a name holds
        if text:
            attr.docstring = griffe.Docstring(text, parent=attr)
