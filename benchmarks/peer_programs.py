"""Our code grader beside those of LiveCodeBench, APPS and EvalPlus, on the programs of `peer_programs.toml`.

Theirs are read from a folder that holds downloads of theirs: `testing_util.py`, or the package `evalplus`. Each program
runs in its own process, without a jail: the programs are ours, and do no harm.
"""

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.rewards import grade_code

_PROGRAMS = Path(__file__).with_name("peer_programs.toml")
_SECONDS = 3  # of a test
_CHILD = """
import json, multiprocessing, os, sys, types
out, code, tests = os.fdopen(os.dup(1), "w"), *json.load(sys.stdin)
name, values = tests.get("fn_name"), (tests["inputs"], tests["outputs"])
pyext = sys.modules["pyext"] = types.ModuleType("pyext")  # APPS asks for it, and no Python of today has it
class RuntimeModule:
    def from_string(name, doc, text):
        module = types.ModuleType(name, doc)
        exec(text, module.__dict__)
        return module
pyext.RuntimeModule = RuntimeModule
sys.path.insert(0, sys.argv[2])
if sys.argv[1] == "EvalPlus":
    from evalplus.eval import untrusted_check
    passed = untrusted_check("", code, values[0], name, values[1], 0, [0.5] * len(values[0]))[0] == "pass"
else:
    import testing_util
    testing_util.timeout = int(sys.argv[3])
    if sys.argv[1] == "APPS":
        results = testing_util.run_test(problem={"input_output": tests}, test=code)
    else:
        if name:
            values = (["\\n".join(map(json.dumps, each)) for each in values[0]], [*map(json.dumps, values[1])])
        tests = {"inputs": values[0], "outputs": values[1], "fn_name": name}
        results = testing_util.run_test({"input_output": json.dumps(tests)}, code, timeout=int(sys.argv[3]))[0]
    passed = len(results) == len(values[0]) and all(result is True or result == [True] for result in results)
out.write("passed" if passed else "failed")
out.flush()
os._exit(0)
"""


@dataclass(frozen=True)
class Program:
    code: str
    tests: dict
    right: bool


def programs() -> list[Program]:
    found = []
    for task in tomllib.loads(_PROGRAMS.read_text(encoding="utf-8"))["task"]:
        tests = {name: task[name] for name in ("fn_name", "inputs", "outputs") if name in task}
        for right in (True, False):
            found += [Program(code, tests, right) for code in task["right" if right else "wrong"].split("\n---\n")]
    return found


def graders_in(folder: Path) -> dict[str, Path]:
    """Return the graders below a folder, with the folder to import them from."""
    found = {}
    for path in sorted(folder.rglob("testing_util.py")):
        found["APPS" if "run_test(problem" in path.read_text(encoding="utf-8") else "LiveCodeBench"] = path.parent
    for path in sorted(folder.rglob("evalplus/eval/__init__.py")):
        found["EvalPlus"] = path.parents[2]
    return found


def rows_of_programs(folder: Path) -> list[dict]:
    """Return a row for each grader. Raises ValueError: the folder has none."""
    if not (graders := graders_in(folder)):
        raise ValueError(f"no grader found: got {folder}; use a folder with LiveCodeBench's testing_util.py")
    rows, every = [], programs()
    ours = [bool(grade_code(each.code, each.tests, timeout=_SECONDS, extract=False).correct) for each in every]
    for name, path in graders.items():
        chosen = [at for at, each in enumerate(every) if name != "EvalPlus" or "fn_name" in each.tests]
        theirs = {at: _theirs(name, path, every[at]) for at in chosen}
        rows.append(
            {
                "source": name,
                "n": len(chosen),
                "agree": sum(ours[at] == theirs[at] for at in chosen),
                "ours wrong": sum(ours[at] != every[at].right for at in chosen),
                "theirs wrong": sum(theirs[at] != every[at].right for at in chosen),
            }
        )
    return rows


def _theirs(name: str, path: Path, program: Program) -> bool:
    command = [sys.executable, "-c", _CHILD, name, str(path), str(_SECONDS)]
    job = json.dumps([program.code, program.tests])
    try:
        ended = subprocess.run(command, input=job, capture_output=True, text=True, timeout=10 * _SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return ended.stdout.endswith("passed")
