"""The Triton kernels, compiled for three GPUs without a device, keep their values in registers."""

import io
import os
import re
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="kernels are compiled by triton")

from openrlhf_shear.kernels import triton_bounds, triton_kernels  # noqa: E402
from openrlhf_shear.kernels.triton_sinkhorn import LAUNCH, launch  # noqa: E402

MODULES = (triton_kernels, triton_bounds)
ARCHITECTURES = (80, 90, 100)  # A100; H100 and H200; B200
TYPES = dict.fromkeys(["pairs", "rows_table", "columns_table", "table", "others", "parts", "rows"], "*i64")
TYPES |= dict.fromkeys(["columns", "ends", "iterations", "status_out"], "*i64")
TYPES |= dict.fromkeys(["means", "x_norms", "y_norms"], "*fp64") | dict.fromkeys(["x", "y"], "*bf16")
TYPES |= dict.fromkeys(["epsilon", "tolerance", "scale", "cancellation"], "fp32")
TYPES |= dict.fromkeys(["count", "row_count", "column_count", "other_count", "part_count", "begin"], "i32")
TYPES |= dict.fromkeys(["first_row", "max_iterations", "f_width", "g_width", "width", "height", "most"], "i32")
# Constants as a search of spans of up to 128 tokens has them, at a stride of a quarter; and the most spilled bytes.
SOLVES = [({"BLOCK_N": 128, "BLOCK_M": 128}, 350), ({"BLOCK_N": 64, "BLOCK_M": 64}, 0)]
COSTS = {"HIDDEN": 3584, "BLOCK_N": 32, "BLOCK_M": 32, "BLOCK_D": 16}
OTHERS = [
    *(("span_log_sums", {"BLOCK_N": 128, "BLOCK_ACROSS": 64, "TRANSPOSED": each}) for each in (False, True)),
    ("pair_bounds", {"BLOCK_M": 128}),
    ("part_sums", {"BLOCK_N": 32, "BLOCK_M": 128}),
    ("add_mean_logs", {"BLOCK_M": 128}),
    *(("finish_costs", {**COSTS, "LOGS": each}) for each in (False, True)),
    ("join_parts", {"BLOCK": 64}),
]


def compiled(name: str, constants: dict, options: dict, architecture: int, folder: Path) -> dict[str, int]:
    """Return the registers of a kernel, and the bytes of its stack and spilled stores, as ptxas logs them."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = GPUTarget("cuda", architecture, 32)
    try:
        triton.compiler.make_backend(target)
        _ = triton.knobs.nvidia.ptxas
    except Exception as problem:
        pytest.skip(f"Triton cannot compile for CUDA here: {problem!r}")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton's interpreter compiles nothing")
    kernel = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    types = {arg: "constexpr" if arg in constants else TYPES.get(arg, "*fp32") for arg in kernel.arg_names}
    places = {(kernel.arg_names.index(arg),): value for arg, value in constants.items()}
    log = io.StringIO()
    with triton.knobs.cache.scope(), triton.knobs.nvidia.scope(), redirect_stdout(log):
        triton.knobs.cache.dir, triton.knobs.nvidia.dump_ptxas_log = str(folder), True
        triton.compile(ASTSource(fn=kernel, signature=types, constexprs=places), target=target, options=options)
    counts = {"registers": r"Used (\d+) registers", "stack": r"(\d+) bytes stack", "spilled": r"(\d+) bytes spill st"}
    return {name: int(re.search(pattern, log.getvalue())[1]) for name, pattern in counts.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("constants", "most"), SOLVES, ids=["128x128", "64x64"])
def test_a_solve_spills_little(tmp_path, constants, most, architecture):
    """The few bytes at 128 x 128 are spilled once a check, not in the loop of iterations, as its machine code shows."""
    found = compiled("solve_pairs", constants, launch(constants["BLOCK_N"]), architecture, tmp_path)
    assert found["registers"] <= LAUNCH["maxnreg"] and found["spilled"] <= most


def test_a_solve_with_too_few_registers_spills_much(tmp_path):
    found = compiled("solve_pairs", SOLVES[0][0], launch(128) | {"maxnreg": 128}, 90, tmp_path)
    assert found["registers"] == 128 and found["spilled"] > 1000


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("name", "constants"), OTHERS, ids=lambda each: each if isinstance(each, str) else "")
def test_the_other_kernels_keep_all_in_registers(tmp_path, name, constants, architecture):
    assert compiled(name, constants, {"enable_fp_fusion": True}, architecture, tmp_path)["stack"] == 0


def test_every_kernel_is_compiled():
    jit = type(triton_kernels.solve_pairs)
    files = Path(triton_kernels.__file__).parent.glob("triton_*.py")
    modules = [import_module(f"openrlhf_shear.kernels.{file.stem}") for file in files]
    found = {name for module in modules for name, of in vars(module).items() if isinstance(of, jit) and name[0] != "_"}
    helpers = {"load_fact"}  # part of the kernels that call it
    assert found - helpers == {"solve_pairs", *(name for name, _ in OTHERS)}
