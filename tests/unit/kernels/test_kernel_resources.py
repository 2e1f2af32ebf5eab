"""The Triton kernels compiled for an H100 without a device: no spills in the loop of iterations, and how we count."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="kernels are compiled by triton")
resources = pytest.importorskip("kernel_resources", exc_type=ImportError)

import machine_code  # noqa: E402
from machine_code import Counts, Instruction  # noqa: E402

from openrlhf_shear.kernels import triton_kernels, tuning  # noqa: E402
from openrlhf_shear.kernels.triton_sinkhorn import launch  # noqa: E402

SECOND = Path(sys.prefix) / "second_triton"
KERNELS = Path(triton_kernels.__file__).parent
SOLVES = [{"BLOCK_N": n, "BLOCK_M": m} for n, m in ((128, 128), (64, 64), (16, 32))]
# The form of what nvdisasm prints: a loop in a loop in a loop, and code of diverging warps behind the last exit.
SASS = """
        .headerflags    @"EF_CUDA_SM90"
.text.solve_pairs:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_3:
        /*0010*/                   LDL R2, [R1] ;
.L_x_2:
        /*0020*/                   FADD R2, R2, R3 ;
.L_x_1:
        /*0030*/                   MUFU.EX2 R2, R3 ;
        /*0040*/              @!P0 SHFL.BFLY PT, R2, R3, 0x8, 0x1f ;
        /*0050*/                   STL [R1+0x4], R2 ;
        /*0060*/                   FFMA R2, R2, R3, R4 ;
        /*0070*/                   FADD2 R2, R2.F32x2.HI_LO, R4.F32x2.HI_LO ;
.L_x_4:
        /*0080*/               @P6 BRA `(.L_x_1) ;
        /*0090*/              @!P6 BRA P5, `(.L_x_2) ;
        /*00a0*/               @P1 BRA `(.L_x_5) ;
        /*00b0*/              @!P5 BRA `(.L_x_3) ;
.L_x_5:
        /*00c0*/                   EXIT ;
.L_x_0:
        /*00d0*/                   MUFU.RCP R2, R3 ;
        /*00e0*/                   BRA `(.L_x_4) ;
.L_x_6:
        /*00f0*/                   BRA `(.L_x_6);
"""
PTX = """
.visible .entry solve_pairs(
{
        .reg .pred      %p<2>;
        ld.param.b64    %rd1, [solve_pairs_param_0];
$L__BB0_1:                              // =>This Inner Loop Header
        .loc    1 30 12
        // begin inline asm
        lg2.approx.ftz.f32 %r1, %r2;
        // end inline asm
        mul.f32         %r3, %r1, %r2;
        fma.rn.f32      %r3, %r1, %r2, %r3;
        shfl.sync.bfly.b32      %r4, %r3, 8, 31, -1;
        @%p1 st.shared.b32 [ %r5 + 0 ], %r4;
        mul.lo.s32      %r6, %r4, 16;
        @%p1 bra        $L__BB0_1;
        ret;
}
"""


def compile_or_skip(name: str, constants: dict, options: dict) -> dict:
    try:
        from triton.backends.compiler import GPUTarget

        triton.compiler.make_backend(GPUTarget("cuda", 90, 32))
        _ = triton.knobs.nvidia.ptxas
    except Exception as problem:
        pytest.skip(f"Triton cannot compile for CUDA here: {problem!r}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton's interpreter compiles nothing")
    return resources.row_of(name, constants, options, 90)


@pytest.mark.parametrize("constants", SOLVES, ids=lambda each: f"{each['BLOCK_N']}x{each['BLOCK_M']}")
def test_the_loop_of_iterations_spills_no_register(constants):
    row = compile_or_skip("solve_pairs", constants, launch(constants["BLOCK_N"]))
    assert row["architecture"] == "sm_90a" and row["registers"] <= tuning.DEFAULT["maxnreg"] and row["programs"] >= 2
    if row["spills"] is None:
        pytest.skip("no nvdisasm is found, neither triton's nor a CUDA toolkit's: spills are not counted")
    assert row["spills"] == 0
    # The loop is the one that was meant: two scalings, an exponential and a logarithm each, and shuffles.
    iteration = row["instructions"]["iteration"]
    assert iteration["special"] >= 4 and iteration["exchange"] > 0 and row["instructions"].keys() == {
        "iteration", "check", "build", "once"
    }  # fmt: skip


def test_spills_are_found_where_registers_are_too_few():
    row = compile_or_skip("solve_pairs", SOLVES[0], launch(128) | {"maxnreg": 128})
    if row["spills"] is None:
        pytest.skip("no nvdisasm is found")
    assert row["registers"] == 128 and row["stack_bytes"] > 0 and row["spills"] > 10


OTHERS = [(name, each) for name, forms in resources.KERNELS.items() if name != "solve_pairs" for each in forms]


@pytest.mark.parametrize(("name", "constants"), OTHERS, ids=lambda each: each if isinstance(each, str) else "")
def test_the_other_kernels_compile_and_keep_all_in_registers(name, constants):
    row = compile_or_skip(name, constants, {"enable_fp_fusion": True})
    assert row["stack_bytes"] == 0 and row["programs"] >= 2


@pytest.mark.long
@pytest.mark.skipif(not SECOND.is_dir(), reason=f"no second Triton: {SECOND}")
@pytest.mark.skipif(SECOND in Path(triton.__file__).parents, reason="this is the second Triton")
def test_the_second_triton_spills_no_register_either():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SECOND), os.environ.get("PYTHONPATH", "")])}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "compile_and or iterations",
    ]
    run = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.splitlines()[-1].startswith("11 passed"), run.stdout + run.stderr


def test_every_kernel_is_compiled():
    jit = type(triton_kernels.solve_pairs)
    modules = [import_module(f"openrlhf_shear.kernels.{path.stem}") for path in KERNELS.glob("triton_*.py")]
    helpers = {"load_fact"}  # part of the kernels that call it
    of_modules = [(name, of) for module in modules for name, of in vars(module).items() if name not in helpers]
    found = {name for name, of in of_modules if isinstance(of, jit) and not name.startswith("_")}
    assert found == resources.KERNELS.keys()


def test_loops_are_found_in_machine_code():
    parts = machine_code.sections(machine_code.parse(SASS))
    assert {name: [each.name for each in code] for name, code in parts.items()} == {
        "iteration": ["MUFU.EX2", "SHFL.BFLY", "STL", "FFMA", "FADD2", "BRA"],
        "check": ["FADD", "BRA"],
        "build": ["LDL", "BRA", "BRA"],
        "once": ["LDC", "EXIT"],
    }
    assert machine_code.count(parts["iteration"]) == Counts(issued=6, special=1, exchange=2, multiply=3, spills=1)


def test_without_a_disassembler_instructions_are_counted_in_ptx():
    parts = machine_code.sections(machine_code.parse(PTX))
    assert parts.keys() == {"iteration", "once"} and [each.name for each in parts["once"]] == ["ld.param.b64", "ret"]
    assert machine_code.count(parts["iteration"]) == Counts(issued=7, special=1, exchange=2, multiply=2, spills=0)


def test_code_without_a_loop_runs_once():
    code = [Instruction("MUFU.LG2", None), Instruction("BRA", 2), Instruction("EXIT", None)]
    assert machine_code.sections(code) == {"once": code}


def test_the_disassembler_may_be_the_toolkit_s_or_on_the_path(tmp_path, monkeypatch):
    found = tmp_path / "bin" / "nvdisasm"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    monkeypatch.setattr(triton, "__file__", str(tmp_path / "nothing" / "__init__.py"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "no toolkit"))
    monkeypatch.setenv("PATH", "")
    assert machine_code.find_disassembler() is None
    monkeypatch.setenv("PATH", str(found.parent))
    assert machine_code.find_disassembler() == found
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert machine_code.find_disassembler() == found


def test_the_model_takes_the_busiest_pipe_of_each_section():
    """Check against a row that was worked out by hand: 4 warps a program."""
    chip = resources.CHIPS[90]._replace(multiprocessors=100, gigahertz=1.0)
    iteration, check = Counts(10, 1, 0, 5, 0), Counts(4, 0, 5, 0, 0)
    parts = {"iteration": iteration, "check": check, "build": Counts(20, 0, 0, 0, 0), "once": Counts(8, 2, 0, 0, 0)}
    pipes = {name: resources.cycles(counts, 4, chip) for name, counts in parts.items()}
    # 57 x 10 issued, 9 x 20 shuffles, 20 issued and 16 for two reciprocals.
    assert resources.seconds(pipes, chip) == pytest.approx(1e6 * (570 + 180 + 20 + 16) / 1e11)
    assert resources.seconds(pipes, chip, 1, 1) == pytest.approx(1e6 * (10 + 20 + 20 + 16) / 1e11)


def test_an_older_chip_multiplies_at_half_the_rate():
    counts = Counts(10, 0, 0, 10, 0)
    assert [resources.cycles(counts, 4, resources.CHIPS[sm])["multiply"] for sm in (80, 90)] == [20, 10]


@pytest.mark.parametrize(
    "registers, warps, shared, held",
    [(255, 4, 2048, 2), (128, 8, 4096, 2), (247, 2, 512, 4), (188, 16, 8192, 0), (32, 1, 0, 32), (32, 1, 32_000, 7)],
)
def test_programs_of_a_multiprocessor(registers, warps, shared, held):
    assert resources.programs(resources.CHIPS[90], registers, warps, shared) == held


def test_limits_are_the_multiply_adds_of_the_problems():
    h100 = next(row for row in resources.limits() if row["chip"].startswith("H100"))
    assert h100["100"] == pytest.approx(57 * 20_000 * 1e6 / (132 * 128 * 1.7e9)) and round(h100["100"], 3) == 0.040
    assert h100["128"] / h100["64"] == pytest.approx(4)
