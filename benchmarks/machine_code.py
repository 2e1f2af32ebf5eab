"""Instruction counts of a compiled kernel: its loops, and the instructions on each pipe of a multiprocessor.

A listing is SASS, which nvdisasm prints from a cubin, or PTX. SASS is what runs. PTX shows no spills, and ptxas changes
its instructions: its counts are rough, and serve where no disassembler is found.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import triton

# The loops of `solve_pairs`, from the innermost, and what runs once.
SECTIONS = ("iteration", "check", "build")
ONCE = "once"
_SASS_LABEL, _SASS_LINE = re.compile(r"\s*(\.L_\w+):"), re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_SASS_JUMP = re.compile(r"\bBRA\b.*`\((\.L_\w+)\)")
_PTX_LABEL, _PTX_LINE = re.compile(r"\s*(\$L\w+):"), re.compile(r"\s*((?:@!?%\w+\s+)?[a-z][\w.:]*(?:\s.*)?);")
_PTX_JUMP = re.compile(r"\bbra(?:\.uni)?\s+(\$L\w+)")
_PREDICATE = re.compile(r"@!?%?\w+\s+")
# Pipes by the first part of an instruction's name: SASS, then PTX. Everything takes an issue slot.
_SPECIAL = ("MUFU", "F2I", "I2F", "ex2", "lg2", "rcp", "rsqrt", "sqrt", "div")
_EXCHANGE = ("SHFL", "LDS", "STS", "LDSM", "STSM", "LDL", "STL", "shfl", "ldmatrix", "stmatrix")
_MULTIPLY = ("FFMA", "FADD", "FMUL", "IMAD", "FFMA2", "FADD2", "FMUL2", "fma", "mad")


class Instruction(NamedTuple):
    name: str  # with its suffixes, such as MUFU.EX2
    goes_to: int | None  # a jump's target, as an index


class Counts(NamedTuple):
    """Instructions of a warp."""

    issued: int
    special: int  # logarithms, exponentials, reciprocals, square roots, conversions
    exchange: int  # shuffles; loads and stores of shared and local memory
    multiply: int  # float32 multiplications and additions; integer multiplications; two on a pair of numbers is two
    spills: int  # loads and stores of local memory, also in `exchange`


def find_disassembler() -> Path | None:
    """Return nvdisasm of Triton, of the CUDA toolkit or of PATH; None without any."""
    toolkit = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    places = [Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm", Path(toolkit, "bin/nvdisasm")]
    on_path = shutil.which("nvdisasm")
    return next(
        (place for place in [*places, *([Path(on_path)] if on_path else [])] if os.access(place, os.X_OK)), None
    )


def disassemble(cubin: bytes, disassembler: Path) -> str:
    """Return the SASS of a cubin, with labels."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([disassembler, "-c", file.name], check=True, capture_output=True, text=True).stdout


def parse(listing: str) -> list[Instruction]:
    """Return the instructions of a listing up to the last exit; code behind it handles warps that diverge.

    >>> parse(".L_x_1:\\n  /*0010*/  FADD R1, R2, R3 ;\\n  /*0020*/ @!P0 BRA `(.L_x_1) ;\\n  /*0030*/ EXIT ;")[1]
    Instruction(name='BRA', goes_to=0)
    """
    is_ptx = ".entry" in listing
    label, line, jump = (_PTX_LABEL, _PTX_LINE, _PTX_JUMP) if is_ptx else (_SASS_LABEL, _SASS_LINE, _SASS_JUMP)
    texts, labels = [], {}
    for row in listing.splitlines():
        if found := label.match(row):
            labels[found[1]] = len(texts)
        elif found := line.match(row):
            texts.append(_PREDICATE.sub("", found[1]))
    end = max((i for i, text in enumerate(texts) if text.split()[0] in ("EXIT", "ret")), default=len(texts) - 1) + 1
    jumps = [jump.search(text) for text in texts]
    targets = [labels.get(found[1]) if found else None for found in jumps]
    return [Instruction(text.split()[0], target) for text, target in zip(texts[:end], targets, strict=False)]


def sections(code: list[Instruction]) -> dict[str, list[Instruction]]:
    """Return the instructions of each loop without its inner loop, by the names of `SECTIONS`, and the rest as "once".

    The innermost loop is the shortest with a logarithm or an exponential. A kernel without it has "once" alone.
    """
    loops = sorted((i - at.goes_to, at.goes_to, i + 1) for i, at in enumerate(code) if _goes_back(at, i))
    found, inner = {}, (0, 0)
    for name in SECTIONS:
        around = [(start, end) for _, start, end in loops if _is_around((start, end), inner, code)]
        if not around:
            break
        start, end = around[0]
        found[name] = code[start : inner[0]] + code[inner[1] : end] if inner[1] else code[start:end]
        inner = start, end
    return found | {ONCE: code[: inner[0]] + code[inner[1] :]}


def _goes_back(instruction: Instruction, place: int) -> bool:
    return instruction.goes_to is not None and instruction.goes_to <= place


def _is_around(loop: tuple[int, int], inner: tuple[int, int], code: list[Instruction]) -> bool:
    if not inner[1]:
        return count(code[slice(*loop)]).special > 0
    return loop[0] <= inner[0] and inner[1] <= loop[1] and loop != inner


def count(code: list[Instruction]) -> Counts:
    """Count the instructions of a section by pipe.

    >>> count([Instruction("MUFU.EX2", None), Instruction("LDL", None), Instruction("BRA", 0)])
    Counts(issued=3, special=1, exchange=1, multiply=0, spills=1)
    """
    names = Counter(_pipe_name(instruction.name) for instruction in code)
    special, exchange, spills = (sum(names[n] for n in kind) for kind in (_SPECIAL, _EXCHANGE, ("LDL", "STL")))
    return Counts(len(code), special, exchange, sum(names[n] * (1 + n.endswith("2")) for n in _MULTIPLY), spills)


def _pipe_name(name: str) -> str:
    first, *suffixes = name.split(".")
    if first in ("ld", "st") and suffixes and suffixes[0].startswith("shared"):
        return "LDS"
    if first in ("add", "sub", "mul") and suffixes[-1:] == ["f32"]:
        return "FADD"
    return first
