"""The commands of the pages: found in blocks and in spans of code, and read by their own parsers. Nothing starts."""

import argparse
import contextlib
import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from unittest import mock

from openrlhf_shear.cli.train_ppo_ray import read as read_training

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "benchmarks/README")]
PAGES += sorted((ROOT / "docs").glob("*.md"))  # the changelog is history
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
# Programs that need a network, a cluster, Slurm, Docker or another package: only our command after them is read.
FOREIGN = {"apt-get", "cp", "docker", "git", "openssl", "pip", "python3", "ray", "ruff", "sbatch", "scancel", "source"}
FOREIGN |= {
    "-c",
    "openrlhf_shear.cli.NAME",
    "deepspeed.checkpoint.ds_to_universal",
    "tensorboard",
    "timeit",
    "torchrun",
}
FOREIGN |= {"verl.trainer.main_ppo", "xargs"}
OTHERS = ("ACCELERATE_", "FLASH_ATTN_", "MAX_JOBS", "PYTHONPATH", "RAY_", "VERL_")  # variables that others read
_OURS = re.compile(r"shear-\w[\w-]*$|(examples|scripts|docker)/\S+\.(sh|sbatch|py)$")
_NEXT = re.compile(r"(?:&&|\||;)(?=(?:[^'\"]*['\"][^'\"]*['\"])*[^'\"]*$)")  # outside quotes
_SET = re.compile(r"([A-Z][A-Z_0-9]*)=")
_VALUES = {"LOW": "0", "HIGH": "1", "STEP": "1"}  # of placeholders; a single capital letter is a number too


def commands(page: str) -> list[tuple[str, bool]]:
    """Return the commands of a page, and whether each is whole: in a block it is, in a sentence it can be a part."""
    found, text = [], []
    for kind, lines in _blocks(page):
        if kind == "text":
            text.append(lines)
            continue
        lines = re.sub(r"\\\n\s*", " ", lines)
        lines = [re.sub(r"(^|\s)# .*", "", line).strip() for line in lines.splitlines()]
        parts = [part.strip() for line in lines for part in _NEXT.split(line)]
        found += [(part, True) for part in parts if _is_command(part)]
        flags = [re.split(r"   |\[", line)[0] for line in lines if line.startswith("--")]
        found += [(f"shear-train {each}", False) for each in flags]
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", "\n".join(text).replace(r"\|", "|"))]
    spans = [span for span in spans if not span.startswith("git checkout")]  # of an earlier commit
    parts = [part.strip() for span in spans for part in _NEXT.split(span)]
    return found + [(part, False) for part in parts if " " in part and _is_command(part)]


def _blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield ("shell", lines) for fenced and indented blocks and ("text", lines); leave out other fenced blocks."""
    fence, kind, kinds, above = None, "text", [], ""
    for line in page.splitlines():
        mark = re.match(r"```(\w*)", line)
        if mark or fence is not None:
            fence = (None if fence is not None else mark[1]) if mark else fence
            kind = "shell" if fence == "bash" and not mark else "other"
        elif not line.startswith("    ") or (kind == "text" and above):
            kind = "text"
        else:
            kind = "shell"
        kinds.append((kind, line))
        above = line.strip()
    for kind, lines in groupby(kinds, key=lambda each: each[0]):
        if kind != "other":
            yield kind, "\n".join(line for _, line in lines)


def _is_command(text: str) -> bool:
    words = text.removeprefix("export ").split()
    while words and _SET.match(words[0]):
        del words[0]
    return bool(words) and (words[0] in FOREIGN | {"make", "python", "pytest"} or bool(_OURS.match(words[0])))


class Parsed(Exception):
    pass


def check(command: str, whole: bool, training: list[str]) -> None:
    """Read a command with its own parser.

    Args:
        whole: refuse it if a required argument is missing.
        training: words of a complete command of shear-train, after which those of the page stand.

    Raises:
        AssertionError, SystemExit: the command has a file, target, flag or value that does not exist.
    """
    parse = argparse.ArgumentParser.parse_args

    def and_stop(parser, argv=None, namespace=None):
        if not whole:
            _ask_for_nothing(parser)
        parse(parser, argv, namespace)
        raise Parsed

    words = shlex.split(re.sub(r"[\[\]]|(--\S+ )?\.\.\.$|\.\.\.", "", command))
    while words and (variable := _SET.match(words[0])):
        assert variable[1].startswith(OTHERS) or _is_read(variable[1]), f"nothing reads {variable[1]}"
        del words[0]
    words = [_VALUES.get(word, "2" if re.fullmatch("[A-Z]", word) else word) for word in words]
    if words[0] == "python":
        del words[: 2 if words[1] == "-m" else 1]
    with mock.patch.object(argparse.ArgumentParser, "parse_args", and_stop):
        _check(words, training)


def _ask_for_nothing(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        action.required = False
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _ask_for_nothing(each)


def _check(line: list[str], training: list[str]) -> None:
    program, *words = line
    module = SCRIPTS.get(program, program).partition(":")[0]
    if module == "openrlhf_shear.cli.train_ppo_ray":
        if "--help" not in words:
            read_training([*training, *words])
    elif module.startswith("openrlhf_shear.cli.") and program not in FOREIGN:
        if "--" in words:  # flags of a training that the command reads
            _check(["shear-train", *words[words.index("--") + 1 :]], training)
            words = words[: words.index("--")]
        with _until_parsed():
            importlib.import_module(module).main(words)
    elif program == "make":
        targets = re.findall(r"^([a-z][\w -]*):", (ROOT / "Makefile").read_text(), re.M)
        assert words[0] in " ".join(targets).split(), f"no target {words[0]}"
    elif program == "pytest":
        assert [
            word for word in words if word.endswith(".py") and not (ROOT / word).exists() and "_X." not in word
        ] == []
    elif program.endswith(".py"):
        _check_script(ROOT / program, words)
    elif program.endswith((".sh", ".sbatch")):
        script = ROOT / program
        assert os.access(script, os.X_OK), f"{script} cannot be run"
        if script.name in ("slurm.sbatch", "submit.sh") and words:
            _check(words, training)
        elif script.name in ("run.sh", "grid.sh") and words:
            dry = ["--dry-run"] if script.name == "run.sh" else []
            subprocess.run([script, *words, *dry], check=True, capture_output=True)
        elif script.name.startswith("train_"):
            _check(["shear-train", *words], training)
    else:
        assert program in FOREIGN, f"no {program}"
        ours = next((at for at, word in enumerate(words) if _OURS.match(word)), len(words))
        if words[ours:]:
            _check(words[ours:], training)


def _check_script(script: Path, words: list[str]) -> None:
    if "parser" not in script.read_text():
        return
    argv = mock.patch.object(sys, "argv", [str(script), *words])
    path = mock.patch.object(sys, "path", [str(script.parent), *sys.path])
    with argv, path, _until_parsed():
        runpy.run_path(str(script), run_name="__main__")


@contextlib.contextmanager
def _until_parsed() -> Iterator[None]:
    try:
        yield
    except Parsed:
        return
    except ModuleNotFoundError as error:
        if error.name != "trl":  # tests/trl runs these
            raise
        return
    raise AssertionError("it parsed nothing")


def _is_read(variable: str) -> bool:
    places = ("Makefile", "mkdocs.yml", "examples", "scripts", "openrlhf_shear", "tests/unit/conftest.py")
    return subprocess.run(["git", "grep", "-qw", variable, "--", *places], cwd=ROOT).returncode == 0
