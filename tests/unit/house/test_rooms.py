"""The house: imports point one way, no files import each other in a circle, and two rooms know a training stack.

Every import counts, wherever it stands: at the top of a file, in a function, or for type checkers alone. Nothing is
imported here but for the last tests; the files are parsed.
"""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import cases

import openrlhf_shear

PACKAGE = "openrlhf_shear"
HERE = Path(openrlhf_shear.__file__).parent
# A room imports from itself and from the floors below (further left); rooms of one floor know nothing of each other.
FLOORS = [
    *({room} for room in ("config", "transport", "kernels", "credit", "rewards", "data", "report")),
    {"tasks", "rollouts"},
    {"sampling"},
    {"evaluation", "diagnosis", "lab"},
    *({room} for room in ("line", "memory", "doctor", "preflight", "train", "integrations", "cli")),
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# The folders of `train/` likewise: below all of them are its own files, above all the start of a run.
TRAIN_FLOORS = ("", "screen", "nodes", "checkpoints", "sampling", "experience", "update", "run", "cpu", "start")
# The training stack and the rooms that may import of it.
OWNERS = {
    **dict.fromkeys(("vllm", "deepspeed", "openrlhf"), ("train",)),
    **dict.fromkeys(("trl", "verl", "accelerate", "tensordict", "transfer_queue"), ("integrations",)),
    "ray": ("train", "integrations"),  # verl's workers are Ray's
}
STACK = ("ray", "vllm", "deepspeed", "openrlhf", "trl", "verl")


def module_of(path: Path) -> str:
    parts = path.relative_to(HERE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(HERE.rglob("*.py"))}


def imports(module: str, source: str) -> list[tuple[str, int]]:
    """Every module that a file's import statements and `import_module` calls name, and the line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module if MODULES.get(module, Path()).name == "__init__.py" else module.rpartition(".")[0]
            base = node.module or ""
            if node.level:
                base = ".".join(filter(None, [*package.split(".")[: len(package.split(".")) + 1 - node.level], base]))
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.append((name if name in MODULES else base, node.lineno))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__"):
                found.append((str(node.args[0].value), node.lineno))
    return found


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def train_folder_of(module: str) -> str:
    parts = [*module.split(".")[2:], ""]
    return parts[0] if MODULES.get(f"{PACKAGE}.train.{parts[0]}", Path()).name == "__init__.py" else ""


def misplaced(module: str, source: str) -> list[str]:
    """The imports of a file that its room, or its folder of `train/`, may not have."""
    room, problems = room_of(module), []
    for name, line in imports(module, source):
        other, where = room_of(name), f"{module}:{line} imports {name}"
        owners = OWNERS.get(name.split(".")[0], (room,))
        if room not in owners:
            problems.append(f"{where}, which only {' and '.join(owners)} may")
        if name.split(".")[0] == PACKAGE and other == room == "train":
            folder, imported = (TRAIN_FLOORS.index(train_folder_of(each)) for each in (module, name))
            problems += [f"{where}, which is on a floor above {TRAIN_FLOORS[folder]!r}"] * (imported > folder)
        if name.split(".")[0] != PACKAGE or not other or other == room:
            continue
        if other not in FLOOR_OF:
            problems.append(f"{where}: FLOORS has no room {other!r}")
        elif FLOOR_OF[other] >= FLOOR_OF.get(room, 0):
            problems.append(f"{where}, which is not on a floor below {room}")
    return problems


def test_every_room_has_a_floor():
    rooms = {room_of(module) for module in MODULES if room_of(module)}
    assert rooms == set(FLOOR_OF), "a room was added or removed: give it its floor in FLOORS"


def test_every_folder_of_train_has_a_floor():
    assert {train_folder_of(module) for module in MODULES if room_of(module) == "train"} == set(TRAIN_FLOORS)


def test_imports_point_down():
    assert [problem for module, path in MODULES.items() for problem in misplaced(module, path.read_text())] == []


def possessive(source: str) -> list[str]:
    """The strings with possessive quantifiers in a file that imports `re`."""
    tree = ast.parse(source)
    if not any(
        isinstance(node, ast.Import) and "re" in [alias.name for alias in node.names] for node in ast.walk(tree)
    ):
        return []
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [string for string in strings if re.search(r"(?<!\\)[*+?}]\+(?!\w)", string)]


def test_possessive_patterns_are_compiled_by_regex():
    """Before Python 3.11.5, that is on Debian 12, those of `re` miss what they should match."""
    assert possessive("import re\nx = re.compile('(?:a*+b)*+')") == ["(?:a*+b)*+"]
    assert {module: found for module, path in MODULES.items() if (found := possessive(path.read_text()))} == {}


def test_no_files_import_each_other_in_a_circle():
    edges = {
        module: {name for name, _ in imports(module, path.read_text()) if name in MODULES and name != module}
        for module, path in MODULES.items()
    }
    assert _circle(edges) == []


def test_a_circle_is_seen():
    assert set(_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


def _circle(edges):
    """Modules that import each other in a circle; none is well."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize(*cases("house", "test_a_wrong_import_is_seen"))
def test_a_wrong_import_is_seen(module, line):
    assert len(misplaced(module, line)) == 1


def loaded_after(module: str, names: tuple[str, ...]) -> str:
    """Which of the top-level modules `names` a fresh interpreter has loaded after importing `module`."""
    code = f"import sys, {module}; print(','.join(n for n in {names!r} if n in sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_rooms_load_without_the_training_stack():
    """The rooms that are no part of one, in one fresh interpreter: importing torch takes longer than all the rest."""
    rooms = set(FLOOR_OF) - {"train", "integrations", "cli"}
    modules = [module for module in MODULES if room_of(module) in rooms and ".inside" not in module]
    assert len(modules) > 100
    code = f"import importlib, sys\nfor module in {modules}:\n    importlib.import_module(module)\n"
    code += f"    there = set({STACK}) & sys.modules.keys()\n    assert not there, f'{{module}} loads {{there}}'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_unit_tests_start_no_ray():
    """The guard in conftest.py holds for a process that a test starts."""
    pytest.importorskip("ray")
    code = "import ray; ray.init(address='local', include_dashboard=False, num_cpus=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0 and "unit-tests-start-no-ray" in done.stderr.splitlines()[-1]


def test_the_knobs_load_without_torch_and_pot_waits_for_its_use():
    assert loaded_after(f"{PACKAGE}.config", ("torch", "numpy")) == ""
    assert loaded_after(f"{PACKAGE}.credit", ("ot",)) == ""
