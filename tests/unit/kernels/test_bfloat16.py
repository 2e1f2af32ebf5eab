"""Products of bfloat16 on CPUs that are slow at them: against float64, in a new interpreter, on any CPU."""

import json
import subprocess
import sys

import pytest
import torch

from openrlhf_shear.kernels import bfloat16

# The values and gradients of every operator, before and after the change.
PROGRAM = """
import json, sys, warnings
import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from openrlhf_shear.kernels import bfloat16

warnings.simplefilter("error")
torch.backends.cpu.get_cpu_capability = lambda: "AVX2"

def made(dtype):
    torch.manual_seed(0)
    rows, weight, bias, *heads = (
        torch.randn(shape).bfloat16().to(dtype).requires_grad_()
        for shape in ((3, 20, 48), (32, 48), (32,), *((2, 4, 20, 16),) * 3)
    )
    mask = torch.zeros(20, 20).masked_fill(torch.ones(20, 20).triu(1).bool(), -9.0).to(dtype)
    flat = rows.reshape(60, 48)
    values = [
        linear(rows, weight), linear(rows, weight, bias), torch.addmm(bias, flat, weight.T, alpha=0.5),
        torch.bmm(rows, rows.mT), torch.baddbmm(rows.new_ones(3, 20, 20), rows, rows.mT, beta=2.0),
        scaled_dot_product_attention(*heads), scaled_dot_product_attention(*heads, is_causal=True),
        scaled_dot_product_attention(*heads, attn_mask=mask),
    ]
    sum(value.double().square().sum() for value in values).backward()
    values += [one.grad for one in (rows, weight, bias, *heads)]
    return values

before = made(torch.float32)
bfloat16.multiply_in_float32()
bfloat16.multiply_in_float32()
assert len(bfloat16._registered) == 1
after = made(torch.float32)
assert all(map(torch.equal, before, after)), "float32 is as it was"
rounded, exact = made(torch.bfloat16), made(torch.float64)
assert all(one.dtype == torch.bfloat16 for one in rounded)
try:
    torch.mm(torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2))
except RuntimeError as error:
    assert "same dtype" in str(error)
else:
    raise AssertionError("two dtypes are still refused")
apart = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(rounded, exact)]
print(json.dumps(apart))
"""


def test_products_and_their_gradients_are_rounded_ones_of_float32():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    apart = json.loads(done.stdout)
    # A result is rounded once (at most 2^-9 of itself); a gradient is of rounded results and of a sum of rounded ones.
    assert max(apart[:8]) < 2**-8 and max(apart[8:]) < 2**-6


@pytest.mark.parametrize("capability", ["AVX512", "DEFAULT"])
def test_other_cpus_are_left_alone(monkeypatch, capability):
    monkeypatch.setattr(bfloat16, "_registered", [])
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    bfloat16.multiply_in_float32()
    assert bfloat16._registered == []
