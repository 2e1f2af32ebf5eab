"""Break the package in many small ways, and see which of them the unit tests notice.

    python benchmarks/mutations.py --list                             # each mutation, and where it applies
    python benchmarks/mutations.py --output mutations.json            # hours; resumable. --sample 20 for less
    python benchmarks/mutations.py --compare before.json after.json

`mutations.toml` holds the list. A mutation replaces a snippet that occurs once in the package, and is found by tokens:
files may move, and lines may wrap otherwise. Exit code 1: a mutation does not apply, or later tests lost one.

Each mutation gets a copy of the checkout. Test files run one by one, up to the first failure: first those of the
mutation's `tests`, then those that import the mutated module, with `--whole` all others too. A test that fails runs
again without the mutation; if it fails there too, it does not count. A file that takes over 20 minutes is a failure.
"""

import argparse
import ast
import contextlib
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from measure import environment, print_table, write_json

ROOT, LIST = Path(__file__).parents[1], Path(__file__).with_suffix(".toml")
PACKAGE, UNIT = "openrlhf_shear", "tests/unit"
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_NO_COPY = shutil.ignore_patterns(".git", ".pytest_cache", ".ruff_cache", "site", "*.egg-info")
_LINKED = "benchmarks/results"  # large, and no test writes to it
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_MOST_SECONDS = 1200  # of a test file
_COLUMNS = {"name": "mutation", "room": "room", "result": "result", "seconds": "seconds", "by": "by"}


class Mutation(NamedTuple):
    """One entry of the list."""

    name: str
    room: str
    find: str  # Python source
    replace: str
    breaks: str  # what a user would notice
    tests: Sequence[str] = ()  # test files to run first; missing files are skipped


class Site(NamedTuple):
    """Where a mutation applies: a file below the checkout, the line, and the file's text afterwards."""

    file: str
    line: int
    text: str


def tokens(source: str) -> tuple[str, list[tuple[int, int]]]:
    """The tokens of a source or of a part of it, a zero before and after each, and their first and last places. A comma
    before a closing bracket is left out, as the formatter adds and removes it.
    """
    starts, strings, places = [0], [], []
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    with contextlib.suppress(tokenize.TokenError, IndentationError):  # a snippet may end inside a bracket or a block
        for kind, string, start, end, _ in tokenize.generate_tokens(io.StringIO(source).readline):
            if kind in _LAYOUT:
                continue
            if string in (")", "]", "}") and strings and strings[-1] == ",":
                del strings[-1], places[-1]
            strings.append(string)
            places.append((starts[start[0] - 1] + start[1], starts[end[0] - 1] + end[1]))
    return "\0".join(["", *strings, ""]), places


def sites(mutation: Mutation, sources: dict[str, str], parsed: dict[str, tuple[str, list]]) -> list[Site]:
    """All places where a mutation applies; `parsed` are the tokens of the `sources`."""
    (wanted, inside), found = tokens(mutation.find), []
    for file, (joined, places) in parsed.items():
        for match in re.finditer(re.escape(wanted), joined):
            first = joined.count("\0", 0, match.start())
            head, tail = sources[file][: places[first][0]], sources[file][places[first + len(inside) - 1][1] :]
            found.append(Site(file, head.count("\n") + 1, head + mutation.replace + tail))
    return found


def applied(mutations: Sequence[Mutation]) -> tuple[dict[str, Site], dict[str, str]]:
    """Where each mutation applies, by name; and why the others do not."""
    sources = {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in sorted((ROOT / PACKAGE).rglob("*.py"))}
    parsed = {file: tokens(source) for file, source in sources.items()}
    found, problems = {mutation.name: sites(mutation, sources, parsed) for mutation in mutations}, {}
    for name, places in found.items():
        try:
            if len(places) == 1:
                ast.parse(places[0].text)
            else:
                at = "".join(f", {site.file}:{site.line}" for site in places)
                problems[name] = f"its snippet occurs {len(places)} times{at}"
        except SyntaxError as error:
            problems[name] = f"it makes no Python: {error}"
    return {name: places[0] for name, places in found.items() if name not in problems}, problems


def unit_tests() -> dict[str, str]:
    """The paths of the unit tests, below the checkout, by file name."""
    return {test.name: str(test.relative_to(ROOT)) for test in sorted((ROOT / UNIT).rglob("test_*.py"))}


def importing(file: str) -> list[str]:
    """The unit test files that import a module; if there are none, those that import a module that imports it."""

    def search(path: str):
        *parents, stem = Path(path).with_suffix("").parts
        parent = re.escape(".".join(parents))
        name = rf"{parent}\.{stem}\b|from {parent} import (?:\([^)]*|[^\n(]*)\b{stem}\b"
        return re.compile(rf"\b{parent}\b" if stem == "__init__" else name).search

    tests = {name: (ROOT / path).read_text("utf-8") for name, path in unit_tests().items()}
    modules = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (ROOT / PACKAGE).rglob("*.py")}
    level, found = [file], []
    while level and not found:
        searches = [search(path) for path in level]
        found = [name for name, text in tests.items() if any(named(text) for named in searches)]
        modules = {path: text for path, text in modules.items() if path not in level}
        level = [path for path, text in modules.items() if any(named(text) for named in searches)]
    return found


class Bench:
    """Copies of the checkout, and the tests that run in them."""

    def __init__(self, folder: Path, failing: list[str]):
        """`failing` are tests that fail without a mutation; more are added as they are found."""
        self._folder, self._failing = folder, failing
        folder.chmod(0o755)  # jails run as another user
        self._clean = self._copied(ROOT, "clean")
        shutil.rmtree(self._clean / _LINKED)
        (self._clean / _LINKED).symlink_to(ROOT / _LINKED)
        if (shared := ROOT.parent / "shared").is_dir():
            (folder / "shared").symlink_to(shared)  # tests look for its data beside the checkout
        loaded = self._run(self._clean, [sys.executable, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"], 600)[1]
        if not Path(loaded.strip()).is_relative_to(self._clean):
            raise RuntimeError(f"tests would import {loaded}")
        print(f"tests import {loaded.strip()}", flush=True)

    def _copied(self, source: Path, name: str) -> Path:
        target = self._folder / name
        shutil.rmtree(target, ignore_errors=True)
        return shutil.copytree(source, target, symlinks=True, ignore=_NO_COPY)

    def _run(self, tree: Path, command: list[str], seconds: float) -> tuple[int | None, str]:
        """Exit code and output; None after the timeout."""
        env = os.environ | {"PYTHONPATH": str(tree), "TMPDIR": str(self._folder)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        with subprocess.Popen(command, cwd=tree, env=env, start_new_session=True, **pipes) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
                return process.returncode, output
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                return None, process.communicate()[0]

    def _pytest(self, tree: Path, *words: str) -> tuple[int | None, list[str]]:
        """Exit code, and the tests or files that failed."""
        asked = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--basetemp", str(self._folder / "t"), *words]
        code, output = self._run(tree, [sys.executable, "-m", "pytest", *asked], _MOST_SECONDS)
        if code not in (None, 0, 1, 2, 5):  # pytest's: passed, failed, a file without its imports, no tests
            raise RuntimeError(f"pytest {' '.join(words)} cannot be run (exit code {code}):\n{output[-2000:]}")
        return code, _FAILURE.findall(output)

    def _failure(self, tree: Path, test: str) -> tuple[str, str] | None:
        """The first test of a file that fails because of the mutation, and how: "failed" or "timeout"."""
        while True:
            left_out = [word for name in self._failing for word in ("--deselect", name)]
            code, failures = self._pytest(tree, "-x", *left_out, test)
            if code in (0, 5):
                return None
            if code is None:
                return "timeout", test
            name = next(iter(failures), test)
            if self._pytest(self._clean, name)[0] == 0:
                return "failed", name
            print(f"left out, as it fails unmutated: {name}", flush=True)
            if name == test or name in self._failing:
                return None
            self._failing.append(name)

    def try_out(self, site: Site, tests: Sequence[str]) -> dict:
        """Run test files on the mutated package, up to the first failure."""
        began, run, failure = time.monotonic(), [], None
        tree, paths = self._copied(self._clean, "mutant"), unit_tests()
        (tree / site.file).write_text(site.text, encoding="utf-8")
        for test in tests:
            run.append(test)
            if failure := self._failure(tree, paths[test]):
                break
        result, by = failure or ("survived", None)
        row = {"caught": by is not None, "result": result, "by": by, "file": site.file, "tests": run}
        return row | {"seconds": round(time.monotonic() - began, 1)}


def sampled(mutations: Sequence[Mutation], count: int, seed: int) -> list[Mutation]:
    """`count` mutations in a random order that takes the rooms in turn."""
    rng, rooms = random.Random(seed), {}
    for mutation in rng.sample(mutations, len(mutations)):
        rooms.setdefault(mutation.room, []).append(mutation)
    return [room[turn] for turn in range(len(mutations)) for room in rooms.values() if turn < len(room)][:count]


def tested_tree() -> dict:
    """A digest of the package and its tests, and the lines of all Python files of the tests, helpers too."""
    package, tests = (sorted((ROOT / folder).rglob("*.py")) for folder in (PACKAGE, "tests"))
    contents = [(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in package + tests]
    lines = sum(file.read_bytes().count(b"\n") for file in tests)
    return {"tree": hashlib.sha256(repr(contents).encode()).hexdigest()[:16], "test_lines": lines}


def compare(before: dict, after: dict) -> bool:
    """Print the shares that the tests of two results catch, and what differs; whether the later tests lose nothing."""
    both = [(name, row, after["rows"][name]) for name, row in before["rows"].items() if name in after["rows"]]
    for title, found in (("before", before), ("after", after)):
        count = sum(found["rows"][name]["caught"] for name, *_ in both)
        share = f"{count} of {len(both)} caught ({count / max(len(both), 1):.1%})"
        print(f"{title}: {share}, {found['test_lines']:,} lines of tests, commit {found['environment']['commit']}")
    lost = [f"{name}, by {old['by']}" for name, old, new in both if old["caught"] and not new["caught"]]
    gained = [f"{name}, by {new['by']}" for name, old, new in both if new["caught"] and not old["caught"]]
    print(*map("caught before only: {}".format, lost), *map("caught after only: {}".format, gained), sep="\n")
    if alone := sorted(before["rows"].keys() ^ after["rows"].keys()):
        print(f"not compared, as one of the two lacks it: {', '.join(alone)}")
    return not lost


def run_all(mutations: Sequence[Mutation], places: dict[str, Site], args: argparse.Namespace) -> None:
    tree, kept = tested_tree(), {"rows": {}, "failing": []}
    if args.output.exists():
        kept = json.loads(args.output.read_text(encoding="utf-8"))
        if kept["tree"] != tree["tree"]:
            sys.exit(f"{args.output} has results of another package or other tests; use another --output")
    kept |= tree | {"environment": environment()}
    every = [*unit_tests()]
    with tempfile.TemporaryDirectory(prefix="mut_", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), kept["failing"])
        for mutation in mutations:
            asked = {name: getattr(mutation, name) for name in ("room", "find", "replace")}
            row = kept["rows"].get(mutation.name, {})
            if asked.items() <= row.items() and (row["caught"] or row["whole"] >= args.whole) and not args.again:
                continue
            chosen = [test for test in mutation.tests if test in every] + importing(places[mutation.name].file)
            row = bench.try_out(places[mutation.name], list(dict.fromkeys(chosen + every * args.whole)))
            kept["rows"][mutation.name] = asked | {"whole": args.whole} | row
            print(f"{mutation.name}: {row['result']} {row['by'] or row['tests']} ({row['seconds']} s)", flush=True)
            write_json(args.output, kept)
    print_table("mutations", [{"name": name} | row for name, row in kept["rows"].items()], _COLUMNS)
    count = sum(row["caught"] for row in kept["rows"].values())
    print(f"{count} of {len(kept['rows'])} caught by {tree['test_lines']:,} lines of tests")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutations, and where each applies")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="mutations or rooms (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="this many mutations, spread over the rooms")
    parser.add_argument("--seed", type=int, default=0, help="of --sample")
    parser.add_argument("--whole", action="store_true", help="run all unit tests where the chosen ones do not fail")
    parser.add_argument("--again", action="store_true", help="run mutations too that the output has already")
    parser.add_argument("--output", type=Path, default=Path("mutations.json"), help="JSON file; existing rows stay")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE.json", "AFTER.json"))
    args = parser.parse_args()
    if args.compare:
        sys.exit(not compare(*(json.loads(path.read_text(encoding="utf-8")) for path in args.compare)))
    mutations = [Mutation(**entry) for entry in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutation"]]
    places, problems = applied(mutations)
    mutations = [each for each in mutations if not args.only or {each.name, each.room} & {*args.only}]
    mutations = sampled(mutations, args.sample, args.seed) if args.sample else mutations
    if args.list:
        for mutation in mutations:
            site = places.get(mutation.name)
            print(f"{mutation.room:12} {mutation.name:24} {site and site.file}:{site and site.line}  {mutation.breaks}")
    else:
        run_all([mutation for mutation in mutations if mutation.name in places], places, args)
    told = [f"{name} does not apply, as {problem}; update {LIST.name}" for name, problem in problems.items()]
    sys.exit("\n".join(told) or 0)


if __name__ == "__main__":
    main()
