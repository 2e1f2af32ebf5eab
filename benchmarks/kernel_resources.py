"""What do the Triton kernels need of a GPU? Registers, spills and instructions, counted without a device.

    python benchmarks/kernel_resources.py --also .venv/second_triton --output kernel_resources.json

Triton compiles each kernel for sm_80, sm_90a and sm_100a, with the ptxas that it ships. The iteration loop of
`solve_pairs` is found in the disassembled machine code (`machine_code.py`). The times are MODELLED, NOT MEASURED: every
section takes as long as its busiest pipe, and nothing waits. They are lower bounds.

--also FOLDER adds the Triton that `pip install --no-deps --target FOLDER triton==VERSION` put there.
"""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import machine_code
import triton
from measure import environment, print_table, script_parser, write_json
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from openrlhf_shear.kernels import triton_bounds, triton_costs, triton_kernels, tuning
from openrlhf_shear.kernels.triton_sinkhorn import launch

PROBLEMS, ITERATIONS, CHECKS = 10**6, 57, 9  # checks after 1, 2, 4, 7, 17, ... 57 iterations


class Chip(NamedTuple):
    """A GPU: multiprocessors, clock, and what one of them holds and does (CUDA C++ Programming Guide)."""

    name: str
    multiprocessors: int
    gigahertz: float
    multiplies: int  # float32 multiply-adds of a multiprocessor a cycle
    shared_bytes: int
    programs: int = 32
    warps: int = 64
    registers: int = 65_536


# The clock of the B200 is assumed to be that of the others.
CHIPS = {
    80: Chip("A100", 108, 1.41, 64, 164 * 1024),
    90: Chip("H100, H200", 132, 1.7, 128, 228 * 1024),
    100: Chip("B200", 148, 1.7, 128, 228 * 1024),
}
_SCHEDULERS, _SPECIAL, _EXCHANGE, _WARP = 4, 16, 32, 32  # of a multiprocessor; lanes of a pipe; threads of a warp
_RESERVED = 1024  # bytes of shared memory that CUDA takes of each program

_TYPES = dict.fromkeys(["pairs", "rows_table", "columns_table", "table", "others", "parts", "rows"], "*i64")
_TYPES |= dict.fromkeys(["columns", "ends", "iterations", "status_out"], "*i64")
_TYPES |= dict.fromkeys(["means", "x_norms", "y_norms"], "*fp64")
_TYPES |= dict.fromkeys(["x", "y"], "*bf16")
_TYPES |= dict.fromkeys(["epsilon", "tolerance", "scale", "cancellation"], "fp32")
_TYPES |= dict.fromkeys(
    ["count", "row_count", "column_count", "other_count", "part_count", "begin", "first_row"], "i32"
)
_TYPES |= dict.fromkeys(["max_iterations", "f_width", "g_width", "width", "height", "most"], "i32")

MODULES = (triton_kernels, triton_bounds, triton_costs)
# Constants of each kernel, as a search of spans of up to 64 and up to 128 tokens has them, at a stride of a quarter.
KERNELS = {
    "solve_pairs": [{"BLOCK_N": n, "BLOCK_M": n} for n in (128, 64)],
    "span_log_sums": [{"BLOCK_N": 128, "BLOCK_ACROSS": 64, "TRANSPOSED": each} for each in (False, True)],
    "pair_bounds": [{"BLOCK_M": 128}],
    "part_sums": [{"BLOCK_N": 32, "BLOCK_M": 128}],
    "add_mean_logs": [{"BLOCK_M": 128}],
    "finish_costs": [
        {"HIDDEN": 3584, "BLOCK_N": 32, "BLOCK_M": 32, "BLOCK_D": 16, "LOGS": each} for each in (True, False)
    ],
    "join_parts": [{"BLOCK": 64}],
}
# Beside the default, the default until November 2026.
EARLIER = {"rows_a_warp": 16, "maxnreg": 128}


def main() -> None:
    args = _arguments()
    rows = [*resources(args.architectures, args.all_launches)]
    for folder in args.also:
        rows += _with_another_triton(folder, args)
    found = {"limits": limits(), "model": _model(), "rows": rows}
    if args.rows_only:
        return print(json.dumps(rows))
    print_table("Compiled kernels, in cycles of an iteration; seconds are modelled, not measured", rows, _COLUMNS)
    print(_LEGEND.format(", ".join(sorted({row["counted_in"] for row in rows}))))
    print_table("Arithmetic alone: multiply-adds of the problems, modelled, not measured", limits(), _LIMIT_COLUMNS)
    write_json(args.output, {"environment": environment("cpu"), **found})


def resources(architectures: list[int], all_launches: bool = False) -> list[dict]:
    """Return a row for each kernel, launch and architecture, compiled by the Triton that is imported."""
    rows = []
    for architecture in architectures:
        for name, each in KERNELS.items():
            for constants in each:
                for options in _launches(name, constants, all_launches):
                    print(
                        f"triton {triton.__version__}: {name} {constants} {options} sm_{architecture}", file=sys.stderr
                    )
                    rows.append(row_of(name, constants, options, architecture))
    return rows


def row_of(name: str, constants: dict, options: dict, architecture: int) -> dict:
    """Compile a kernel; count its registers and instructions, and model its time."""
    binary, log = compiled(name, constants, options, architecture)
    registers, stack = (
        int(re.search(r"Used (\d+) registers", log)[1]),
        int(re.search(r"(\d+) bytes stack frame", log)[1]),
    )
    disassembler = machine_code.find_disassembler()
    listing = machine_code.disassemble(binary.asm["cubin"], disassembler) if disassembler else binary.asm["ptx"]
    code = {part: machine_code.count(each) for part, each in machine_code.sections(machine_code.parse(listing)).items()}
    warps = options.get("num_warps", 4)
    chip, shared = CHIPS[architecture], binary.metadata.shared
    row = {
        "triton": triton.__version__,
        "architecture": f"sm_{architecture}" + ("a" if architecture >= 90 else ""),
        "kernel": name,
        "block": "x".join(str(value) for arg, value in constants.items() if arg.startswith("BLOCK")),
        "form": ", ".join(f"{arg}={value}" for arg, value in constants.items() if isinstance(value, bool)),
        "warps": warps,
        "maxnreg": options.get("maxnreg"),
        "registers": registers,
        "stack_bytes": stack,
        "shared_bytes": shared,
        "programs": programs(chip, registers, warps, shared),
        "counted_in": "SASS (nvdisasm)" if disassembler else "PTX (no disassembler found: rough)",
        "spills": code[machine_code.SECTIONS[0]].spills if len(code) > 1 and disassembler else None,
        "instructions": {part: counts._asdict() for part, counts in code.items()},
    }
    if name == "solve_pairs":
        pipes = {part: cycles(counts, warps, chip) for part, counts in code.items()}
        row |= pipes[machine_code.SECTIONS[0]]
        row |= {"modelled_seconds": seconds(pipes, chip), "dropped_ns": seconds(pipes, chip, 1, 1) * 1e9 / PROBLEMS}
    return row


def compiled(name: str, constants: dict, options: dict, architecture: int):
    """Return a kernel compiled without a device, and the log of ptxas; no cache is used."""
    kernel = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    types = {arg: "constexpr" if arg in constants else _TYPES.get(arg, "*fp32") for arg in kernel.arg_names}
    places = {(kernel.arg_names.index(arg),): value for arg, value in constants.items()}
    source, log = ASTSource(fn=kernel, signature=types, constexprs=places), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope(), triton.knobs.nvidia.scope():
        triton.knobs.cache.dir, triton.knobs.nvidia.dump_ptxas_log = folder, True
        with redirect_stdout(log):
            binary = triton.compile(source, target=GPUTarget("cuda", architecture, _WARP), options=options)
    return binary, log.getvalue()


def programs(chip: Chip, registers: int, warps: int, shared: int) -> int:
    """Return the programs that a multiprocessor holds at a time.

    >>> programs(CHIPS[90], 255, 4, 2048)
    2
    """
    by_registers = chip.registers // (-(-registers // 8) * 8 * _WARP * warps)
    return min(by_registers, chip.shared_bytes // (shared + _RESERVED), chip.programs, chip.warps // warps)


def cycles(counts: machine_code.Counts, warps: int, chip: Chip) -> dict[str, float]:
    """Return the cycles of a multiprocessor that a section takes of each pipe, over all warps of a program.

    >>> cycles(machine_code.Counts(653, 48, 104, 434, 0), 4, CHIPS[90])
    {'issue': 653.0, 'special': 384.0, 'exchange': 416.0, 'multiply': 434.0}
    """
    lanes = {"special": _SPECIAL, "exchange": _EXCHANGE, "multiply": chip.multiplies}
    of_pipes = {pipe: getattr(counts, pipe) * warps * _WARP / width for pipe, width in lanes.items()}
    return {"issue": counts.issued * warps / _SCHEDULERS, **of_pipes}


def seconds(pipes: dict, chip: Chip, iterations: int = ITERATIONS, checks: int = CHECKS) -> float:
    """Return the modelled seconds of `PROBLEMS` problems, from the cycles of each section's busiest pipe."""
    times = dict(zip(machine_code.SECTIONS, (iterations, checks, 1), strict=True)) | {machine_code.ONCE: 1}
    total = sum(times[part] * max(each.values()) for part, each in pipes.items())
    return PROBLEMS * total / (chip.multiprocessors * chip.gigahertz * 1e9)


def limits() -> list[dict]:
    """Return the modelled seconds of the multiply-adds alone, for problems as they are and padded to a block."""
    rows = []
    for chip in CHIPS.values():
        row = {"chip": chip.name, "multiprocessors": chip.multiprocessors, "gigahertz": chip.gigahertz}
        rate = chip.multiprocessors * chip.multiplies * chip.gigahertz * 1e9
        rows.append(row | {str(n): PROBLEMS * ITERATIONS * 2 * n * n / rate for n in (50, 64, 100, 128)})
    return rows


def _launches(name: str, constants: dict, every: bool) -> list[dict]:
    if name != "solve_pairs":
        return [{"enable_fp_fusion": True}]
    rows = constants["BLOCK_N"]
    chosen = [tuning.DEFAULT, EARLIER]
    if every:
        chosen = [{"rows_a_warp": r, "maxnreg": m} for r in tuning.ROWS_A_WARP for m in tuning.MAXNREG]
    return [_launch(rows, each) for each in chosen]


def _launch(rows: int, chosen: dict) -> dict:
    with tuning.trial(chosen):
        return launch(rows)


def _with_another_triton(folder: Path, args: argparse.Namespace) -> list[dict]:
    path = os.pathsep.join([str(folder.absolute()), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--rows-only", "--architectures", *map(str, args.architectures)]
    command += ["--all-launches"] * args.all_launches
    run = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def _model() -> dict:
    return {"problems": PROBLEMS, "iterations": ITERATIONS, "checks": CHECKS, "times": "modelled, not measured"}


_COLUMNS = {"triton": "triton", "architecture": "for", "kernel": "kernel", "block": "block", "form": "form"}
_COLUMNS |= {"warps": "warps"}
_COLUMNS |= {"registers": "registers", "stack_bytes": "stack B", "shared_bytes": "shared B", "spills": "spills"}
_COLUMNS |= {"programs": "held", "issue": "issue", "special": "special", "exchange": "exchange", "multiply": "multiply"}
_COLUMNS |= {"modelled_seconds": "1e6 [s]", "dropped_ns": "dropped [ns]"}
_LEGEND = """counted in: {}
spills: loads and stores of local memory in the iteration loop, of a warp; held: programs that a multiprocessor holds
dropped: a pair whose bound passes its limit at the first check
"""
_LIMIT_COLUMNS = {"chip": "chip", "multiprocessors": "multiprocessors", "gigahertz": "GHz"}
_LIMIT_COLUMNS |= {str(n): f"{n} x {n} [s]" for n in (50, 64, 100, 128)}


def _arguments() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--also", type=Path, nargs="+", default=[], metavar="FOLDER", help="folders of other Tritons")
    parser.add_argument("--architectures", type=int, nargs="+", default=[*CHIPS], choices=[*CHIPS], metavar="SM")
    parser.add_argument("--all-launches", action="store_true", help="every launch that gpu_check.py tries")
    parser.add_argument("--rows-only", action="store_true", help="print the rows as JSON, and no table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
