"""Products of bfloat16 matrices on CPUs that have no instructions for them.

x86 CPUs without AVX-512 (AMD's before Zen 4, most of Intel's in desktops and laptops) take torch some ten times as long
for them as for float32: `benchmarks/bfloat16.py`.
"""

import warnings

import torch

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# with how many tensors come first that must be of one dtype: of other mixtures the kernel itself says what is wrong
_OPERATORS = {"mm": 2, "addmm": 3, "bmm": 2, "baddbmm": 3, _ATTENTION: 3, f"{_ATTENTION}_backward": 5}
_registered: list[torch.library.Library] = []  # lives as long as the process


def multiply_in_float32() -> None:
    """From here on, in this process, a CPU that is slow at bfloat16 multiplies matrices of it, and attends, in float32
    and rounds the result, which is what the operators promise: their sums are of float32 on any CPU. Other CPUs,
    devices and dtypes are left alone, and so is an older torch, which has no `torch.library.get_kernel`.
    """
    if _registered or torch.backends.cpu.get_cpu_capability() != "AVX2" or not hasattr(torch.library, "get_kernel"):
        return
    _registered.append(torch.library.Library("aten", "IMPL"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name, alike in _OPERATORS.items():
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            operator = _widening(kernel, alike, (1,) if name == _ATTENTION else ())
            _registered[0].impl(name, operator, "CPU", with_keyset=True)


def _widening(kernel, alike: int, float_results: tuple[int, ...]):
    """The operator of `kernel`, which is given float32 in place of bfloat16; but for these (of attention the
    log-sum-exp, for its gradient) its results are rounded.
    """

    def operator(keys, *args, **kwargs):
        if not all(map(_is_bfloat16, args[:alike])):
            return kernel.call_boxed(keys, *args, **kwargs)
        named = {name: _widened(value) for name, value in kwargs.items()}
        result = kernel.call_boxed(keys, *map(_widened, args), **named)
        if isinstance(result, torch.Tensor):
            return result.bfloat16()
        return tuple(one if i in float_results else one.bfloat16() for i, one in enumerate(result))

    return operator


def _widened(value: object) -> object:
    return value.float() if _is_bfloat16(value) else value


def _is_bfloat16(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
