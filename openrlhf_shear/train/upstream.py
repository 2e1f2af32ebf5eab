"""Access to the installed OpenRLHF: version check, parser, main, and the class behind an actor.

OpenRLHF builds its parser under `if __name__ == "__main__"` of a module whose first lines import ray, vllm and
deepspeed. `parser()` reads that module's source and runs only the statements that build the parser. `--help` and early
errors therefore come within a second, and the flags of any 0.11.x release work without a copy of them.
"""

import argparse
import ast
import importlib.util
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from openrlhf_shear.line.run import FORCE, INSTALL
from openrlhf_shear.train import contract

OPENRLHF_VERSION = "0.11.2"
MAIN = "openrlhf.cli.train_ppo_ray"
_REMEDY = f"use: pip install openrlhf=={OPENRLHF_VERSION}"


def check_version(force: bool = False) -> str:
    """Return the installed OpenRLHF version if the fork supports it.

    It supports `OPENRLHF_VERSION`, and prints a line for another 0.11 release whose functions all match the contract
    (`contract.json`). With `force` it accepts any version, and warns about the changes.

    Raises:
        RuntimeError: OpenRLHF is not installed, or the fork is not known to fit its version.
    """
    try:
        version = metadata.version("openrlhf")
    except metadata.PackageNotFoundError:
        raise RuntimeError(f"needs the extra [cluster]: OpenRLHF is not installed; {INSTALL}") from None
    if version == OPENRLHF_VERSION:
        return version
    changed = contract.changes({name: term for name, term in contract.read().items() if name.startswith("openrlhf.")})
    series = OPENRLHF_VERSION.rpartition(".")[0]
    about = f"openrlhf_shear is made for OpenRLHF {OPENRLHF_VERSION}, not {version}"
    if version.startswith(f"{series}.") and not changed:
        print(f"[openrlhf_shear] {about}; what it relies on is the same there", file=sys.stderr)
        return version
    listed = "".join(f"\n  {line}" for line in changed or ["nothing that openrlhf_shear relies on"])
    if not force:
        raise RuntimeError(
            f"OpenRLHF must be {OPENRLHF_VERSION}, or another {series} release that has all that openrlhf_shear relies "
            f"on: got {version}; {_REMEDY}, or use {FORCE} at your own risk. Changed there:{listed}"
        )
    print(f"[Warning] {about}; {_REMEDY}. Changed there:{listed}", file=sys.stderr)
    return version


def forced(argv: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether a command line has `FORCE`, and the line without it; no parser exists yet at that point."""
    return FORCE in argv, [word for word in argv if word != FORCE]


def parser(source: str | None = None) -> argparse.ArgumentParser:
    """Return OpenRLHF's parser of `openrlhf.cli.train_ppo_ray`, as built before `parse_args()`.

    Args:
        source: the text of that module in another version; None for the installed version.

    Raises:
        RuntimeError: OpenRLHF is missing, or its module no longer builds a `parser` the way 0.11 does.
    """
    source, origin = (source, MAIN) if source is not None else _source()
    tree = ast.parse(source, origin)
    statements, parsed = _main(tree)
    body = [*_standard_imports(tree), *statements[:parsed]]
    namespace = {"__name__": "openrlhf_shear.train.upstream.parser"}
    try:
        exec(compile(ast.Module(body, type_ignores=[]), origin, "exec"), namespace)
    except NameError as error:
        raise RuntimeError(_unexpected(f"its parser needs more than the standard library ({error})")) from error
    built = namespace.get("parser")
    if not isinstance(built, argparse.ArgumentParser):
        raise RuntimeError(_unexpected("it builds no `parser`"))
    return built


def run(args: argparse.Namespace) -> None:
    """Run OpenRLHF's `train_ppo_ray` with a parsed namespace: its validation and everything after it, unchanged."""
    source, origin = _source()
    body, parsed = _main(ast.parse(source, origin))
    module = importlib.import_module(MAIN)
    namespace = vars(module) | {"args": args}
    exec(compile(ast.Module(body[parsed + 1 :], type_ignores=[]), origin, "exec"), namespace)


def _source() -> tuple[str, str]:
    try:
        # Imports the parent packages; their __init__ files are empty.
        spec = importlib.util.find_spec(MAIN)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{MAIN} is not installed; {_REMEDY}")
    return Path(spec.origin).read_text(encoding="utf-8"), spec.origin


def _standard_imports(tree: ast.Module) -> list[ast.stmt]:
    def standard(name: str | None) -> bool:
        return (name or "").split(".")[0] in sys.stdlib_module_names

    def standard_import(node: ast.stmt) -> bool:
        if isinstance(node, ast.Import):
            return all(standard(alias.name) for alias in node.names)
        return isinstance(node, ast.ImportFrom) and node.level == 0 and standard(node.module)

    return [node for node in tree.body if standard_import(node)]


def _main(tree: ast.Module) -> tuple[list[ast.stmt], int]:
    """Return the statements of upstream's main, and the index of the one that parses."""
    for node in tree.body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            for index, statement in enumerate(node.body):
                if "parse_args(" in ast.unparse(statement):
                    return node.body, index
    raise RuntimeError(_unexpected('it has no `if __name__ == "__main__"` that calls `parser.parse_args()`'))


def _unexpected(problem: str) -> str:
    version = metadata.version("openrlhf")
    return f"{MAIN} of OpenRLHF {version} is not what openrlhf_shear knows: {problem}; {_REMEDY}"


def plain_class(actor_class) -> type:
    """Return the class behind a `ray.remote` actor class, because Ray refuses to subclass actor classes."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__
