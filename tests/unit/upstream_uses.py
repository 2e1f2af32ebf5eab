"""Find every upstream function that we override, replace or call, by parsing our files and the installed ones.

For the fork these are functions of OpenRLHF, DeepSpeed, vLLM and Ray, for the integrations of TRL and verl.

    python tests/unit/upstream_uses.py

writes anew the files of tests/data/contract, each in an environment that has its packages. Do it after reading what has
changed there, and what that means here.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import contract
import yaml
from contract import package

from openrlhf_shear.train import hooks

TRAIN = Path(hooks.__file__).parent
INTEGRATIONS = TRAIN.parent / "integrations"
PACKAGES = ("openrlhf", "deepspeed", "vllm", "ray")
OTHERS = ("trl", "verl")  # of one integration each, whose file is called as the package
OURS = "openrlhf_shear."
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
UNPARSED = yaml.safe_load((contract.CONTRACTS / "unparsed.yaml").read_text(encoding="utf-8"))


def uses(folder: Path = TRAIN) -> dict[str, str]:
    """Return every function or class that the files of the fork rely on, and how which file uses it."""
    paths = sorted(folder.rglob("*.py"), key=lambda path: path.stem)
    return _uses(paths, PACKAGES, UNPARSED["cluster"], hooks.patches())


def uses_of(other: str) -> dict[str, str]:
    """Likewise the integration of a package."""
    return _uses([INTEGRATIONS / f"{other}.py"], (other,), UNPARSED[other], [])


def _uses(
    paths: list[Path], packages: tuple[str, ...], also: dict[str, str], patches: list[hooks.Patch]
) -> dict[str, str]:
    files = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    sources = contract.Sources()
    seen: dict[str, dict[str, list[str]]] = {}

    def note(name: str, verb: str, user: str = "") -> None:
        if package(name) in packages and sources.definition(name) is not None:
            users = seen.setdefault(name, {}).setdefault(verb, [])
            users += [user] * (user not in users)

    for patch in patches:
        note(patch.place, "replaced by", patch.by)
    for file, tree in files.items():
        for name in calls(tree):
            note(name, "called by", file)
    for name, verb, user in methods(files):
        note(name, verb, user)
    for name, use in also.items():
        assert sources.folder(package(name)) is None or sources.definition(name), f"{name} is gone: {use}"
        note(name, use)
    return {
        name: "; ".join(f"{verb} {', '.join(users)}".strip() for verb, users in verbs.items())
        for name, verbs in seen.items()
    }


def imported(tree: ast.Module) -> dict[str, str]:
    """Local names, wherever they are imported, and what they stand for: "module:name", or "module" alone."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name if alias.asname else "" for alias in node.names}
    return {name: of for name, of in names.items() if package(of) in (*PACKAGES, *OTHERS, "openrlhf_shear")}


def calls(tree: ast.Module) -> Iterator[str]:
    """Functions that a file imports and calls: f(...), module.f(...), Class(...), Class.f(...)."""
    names = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func, names)
        # Of the others' functions, which are documented, only those whose parameters' order counts.
        if package(name) == "openrlhf" or (package(name) in ("deepspeed", "vllm", *OTHERS) and node.args):
            yield name
            yield f"{name}.__init__"


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value, names)):
        return f"{owner}.{node.attr}" if ":" in owner else f"{owner}:{node.attr}"
    return ""


def methods(files: dict[str, ast.Module]) -> Iterator[tuple[str, str, str]]:
    """Methods of upstream's classes that a subclass of the fork overrides or calls: name, which of the two, who."""
    nodes, bases_of = _classes(files)
    for name in nodes:
        line, bases = _ancestry(name, bases_of)
        for ancestor in line:
            for method, verb in _reached(nodes[ancestor]):
                for base in bases:
                    yield f"{base}.{method}", verb, ancestor


def subclasses(folder: Path) -> Iterator[tuple[ast.ClassDef, list[str]]]:
    """Every class of the fork and the classes of upstream that it derives from."""
    nodes, bases_of = _classes(
        {path.stem: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"), key=lambda path: path.stem)}
    )
    return ((node, _ancestry(name, bases_of)[1]) for name, node in nodes.items())


def _classes(files: dict[str, ast.Module]) -> tuple[dict[str, ast.ClassDef], dict[str, list[str]]]:
    """The classes of the fork by name, and the names of their bases."""
    nodes, bases_of = {}, {}
    for tree in files.values():
        names = imported(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                nodes[node.name], bases_of[node.name] = node, _bases(node, names)
    for name, upstream in _mixins(files).items():
        bases_of[name] = [upstream, *bases_of[name]]
    return nodes, bases_of


def _bases(node: ast.ClassDef, names: dict[str, str]) -> list[str]:
    """By name as they are imported; plain for classes of the fork."""
    inner = [base.args[0] if isinstance(base, ast.Call) else base for base in node.bases]  # plain_class(X)
    plain = [dotted(base, names) or getattr(base, "id", "") for base in inner]
    return [name.partition(":")[2] if name.startswith(OURS) else name for name in plain]


def _mixins(files: dict[str, ast.Module]) -> dict[str, str]:
    """Of the CPU backend's mixins, which class of upstream each is put in front of."""
    for node in files["backend"].body if "backend" in files else ():
        if isinstance(node, ast.Assign) and node.targets[0].id == "MIXINS":
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {mixin.id: getattr(hooks, patch.attr).place for patch, mixin in pairs}
    return {}


def _ancestry(name: str, bases_of: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """A class and its ancestors in the fork, and those upstream."""
    line, bases = [name], []
    for base in bases_of[name]:
        if base in bases_of:
            more, upstream = _ancestry(base, bases_of)
            line, bases = line + more, bases + upstream
        elif package(base) in (*PACKAGES, *OTHERS):
            bases.append(base)
    return line, bases


def _reached(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    own = {method.name for method in node.body if isinstance(method, FUNCTION)}
    yield from ((name, "overridden by") for name in sorted(own))
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            owner, name = ast.unparse(call.func.value), call.func.attr
            if owner in ("self", "super()") and name not in own:
                yield name, "called by"


def terms(used: dict[str, str]) -> dict[str, contract.Term]:
    """The contract as the files here and the installed packages would have it."""
    sources = contract.Sources()
    return {name: replace(sources.term(name), use=use) for name, use in used.items()}


if __name__ == "__main__":
    found = contract.Sources()
    wanted = {contract.CLUSTER: uses()} if all(map(found.folder, PACKAGES)) else {}
    wanted |= {contract.CONTRACTS / f"{other}.json": uses_of(other) for other in OTHERS if found.folder(other)}
    for path, used in wanted.items():
        contract.write(terms(used), path)
        print(f"{len(used)} terms in {path}")
