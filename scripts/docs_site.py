"""Of mkdocs.yml: the README as first page, and the files of the repository that pages link to, as part of the site."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(\]\()\.\./([^)#\s]+)")
_FOLDER = "repository"


def on_files(files, config):
    """Add them. A link to what is not there stays as it is, which strict mode refuses."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = re.sub(r"\]\((?!https?:|#)(?!docs/)", "](../", readme).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    sources = [readme, *(file.content_string for file in files.documentation_pages())]
    for name in sorted({name for text in sources for _, name in _LINK.findall(text)}):
        if (ROOT / name).is_file():
            files.append(File.generated(config, _place(name), abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown, page, config, files):
    return _LINK.sub(lambda link: link[1] + (_place(link[2]) if (ROOT / link[2]).is_file() else link[0]), markdown)


def _place(name: str) -> str:
    """In the site; a page of Markdown stays the text that it is."""
    return posixpath.join(_FOLDER, name + (".txt" if name.endswith(".md") else ""))
