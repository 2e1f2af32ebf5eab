"""The optional dependencies `tools`: packages for pictures and rollout files."""

from importlib.util import find_spec

# Modules of requirements/tools.txt.
TOOLS = ("matplotlib", "ot", "pandas", "pyarrow", "tensorboard")
INSTALL_TOOLS = "use: pip install '.[tools]' (docs/install.md)"


def installed(tool: str) -> bool:
    """Return whether one of `TOOLS` is installed, without importing it."""
    assert tool in TOOLS, tool
    try:
        return find_spec(tool) is not None
    except ValueError:  # a test has replaced the module by None or by a module without a spec
        return False
