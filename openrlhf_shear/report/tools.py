"""The extra `tools`: what pictures, tables on the console, files of rollouts and models of others need."""

from importlib.util import find_spec

# Modules of requirements/tools.txt.
TOOLS = ("matplotlib", "ot", "pandas", "pyarrow", "rich", "scipy", "tensorboard", "transformers")
INSTALL_TOOLS = "use: pip install '.[tools]' (docs/install.md)"


def installed(tool: str) -> bool:
    """Whether one of `TOOLS` is there, without importing it."""
    assert tool in TOOLS, tool
    try:
        return find_spec(tool) is not None
    except ValueError:  # a test has put None, or a module without a spec, in its place
        return False
