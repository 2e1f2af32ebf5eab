"""Products of bfloat16 matrices on CPUs without instructions for them.

On x86 CPUs without AVX-512 (AMD's before Zen 4, most of Intel's in desktops and laptops), torch takes some ten times as
long for them as for float32.
"""

import warnings

import torch

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# Operators, each with the number of its first arguments that must all be bfloat16; the kernel refuses other mixtures.
OPERATORS = {"mm": 2, "addmm": 3, "bmm": 2, "baddbmm": 3, _ATTENTION: 3, f"{_ATTENTION}_backward": 5}
_registered: list[torch.library.Library] = []  # kept alive until the process ends


def multiply_in_float32() -> None:
    """Make this process multiply bfloat16 matrices, and attend, in float32 and round the result, on a CPU slow at them.

    This is what the operators promise: they sum in float32 on any CPU. The call does nothing on other CPUs, and with an
    older torch, which has no `torch.library.get_kernel`. Other devices and dtypes are not affected.
    """
    if _registered or torch.backends.cpu.get_cpu_capability() != "AVX2" or not hasattr(torch.library, "get_kernel"):
        return
    _registered.append(torch.library.Library("aten", "IMPL"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name, alike in OPERATORS.items():
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            operator = _widening(kernel, alike, (1,) if name == _ATTENTION else ())
            _registered[0].impl(name, operator, "CPU", with_keyset=True)


def _widening(kernel, alike: int, float_results: tuple[int, ...]):
    """Return an operator that calls `kernel` with float32 in place of bfloat16, and rounds its results to bfloat16.

    `float_results` are the positions of results that stay float32: attention's log-sum-exp, for its gradient.
    """

    def operator(keys, *args, **kwargs):
        if not all(map(_is_bfloat16, args[:alike])):
            return kernel.call_boxed(keys, *args, **kwargs)
        named = {name: _widened(value) for name, value in kwargs.items()}
        result = kernel.call_boxed(keys, *map(_widened, args), **named)
        if isinstance(result, torch.Tensor):
            return result.bfloat16()
        return tuple(part if i in float_results else part.bfloat16() for i, part in enumerate(result))

    return operator


def _widened(value: object) -> object:
    return value.float() if _is_bfloat16(value) else value


def _is_bfloat16(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
