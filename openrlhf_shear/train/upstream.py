"""Access to the installed OpenRLHF: version check, parser, main, and the class behind an actor.

OpenRLHF builds its parser under `if __name__ == "__main__"` of a module whose first lines import ray, vllm and
deepspeed. `parser()` reads that module's source and runs only the statements that build the parser. `--help` and early
errors therefore come within a second, and there is no copy of the flags here.
"""

import argparse
import ast
import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path

from packaging.version import Version

OPENRLHF_VERSION = "0.11.2"
ANY_VERSION = "OPENRLHF_SHEAR_ANY_VERSION"  # environment variable: accept versions that were not tried
MAIN = "openrlhf.cli.train_ppo_ray"


def require(package: str, newest: str, extra: str, install: str, oldest: str = "") -> None:
    """Check that a package has a version whose functions are overridden, replaced or called here.

    Args:
        newest, oldest: the versions between which it was tried (default: `newest` alone).
        extra: the extra of this package that has it.
        install: how to install the extra, in words.

    Raises:
        ModuleNotFoundError: the package is not installed.
        RuntimeError: it has another version, and the environment does not set `ANY_VERSION`.
    """
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        problem = f"needs the extra [{extra}]: {package} is not installed; {install}"
        raise ModuleNotFoundError(problem, name=package.lower()) from None
    if not Version(oldest or newest) <= Version(version) <= Version(newest) and not os.environ.get(ANY_VERSION):
        tried = f"{oldest} to {newest}" if oldest else newest
        raise RuntimeError(
            f"{package} must be {tried}, with which openrlhf_shear was tried: got {version}; use: pip install "
            f"{package.lower()}=={newest}, or set {ANY_VERSION}=1 at your own risk"
        )


def parser() -> argparse.ArgumentParser:
    """Return OpenRLHF's parser of `openrlhf.cli.train_ppo_ray`, as built before `parse_args()`."""
    source, origin = _source()
    tree = ast.parse(source, origin)
    statements, parsed = _main(tree)
    body = [*filter(_is_standard_import, tree.body), *statements[:parsed]]
    namespace = {"__name__": "openrlhf_shear.train.upstream.parser"}
    exec(compile(ast.Module(body, type_ignores=[]), origin, "exec"), namespace)
    return namespace["parser"]


def run(args: argparse.Namespace) -> None:
    """Run OpenRLHF's `train_ppo_ray` with a parsed namespace: its validation and everything after it, unchanged."""
    source, origin = _source()
    body, parsed = _main(ast.parse(source, origin))
    module = importlib.import_module(MAIN)
    namespace = vars(module) | {"args": args}
    exec(compile(ast.Module(body[parsed + 1 :], type_ignores=[]), origin, "exec"), namespace)


def _source() -> tuple[str, str]:
    origin = importlib.util.find_spec(MAIN).origin  # imports the parent packages, whose __init__ files are empty
    return Path(origin).read_text(encoding="utf-8"), origin


def _is_standard_import(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        modules = [node.module]
    else:
        return False
    return all(module.split(".")[0] in sys.stdlib_module_names for module in modules)


def _main(tree: ast.Module) -> tuple[list[ast.stmt], int]:
    """Return the statements of upstream's main, and the index of the one that parses."""
    (main,) = (node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))
    return main.body, next(i for i, node in enumerate(main.body) if "parse_args(" in ast.unparse(node))


def plain_class(actor_class) -> type:
    """Return the class behind a `ray.remote` actor class, because Ray refuses to subclass actor classes."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
