"""Names of torchvision's operators, without which its wheel for CUDA cannot be imported beside torch's CPU build.

That wheel's C++ library needs CUDA, so its operators do not exist, and `torchvision._meta_registrations` registers
shapes for two of them unconditionally. A vision model on the CPU calls none: its processor resizes and normalizes
pictures with torch alone.

Every process that imports transformers must call `install` first, also those that vLLM starts by itself. Python calls
it if a folder of PYTHONPATH has a `sitecustomize.py`; `scripts/setup_tests.sh` writes one next to the wheel.
"""

import importlib.abc
import sys

_UNCONDITIONAL = ("nms", "qnms")
_libraries = []  # torch removes a library's operators together with the object


class _Finder(importlib.abc.MetaPathFinder):
    """Finds no module; defines the operators when torchvision is about to need them."""

    def find_spec(self, name, path, target=None) -> None:
        if name == "torchvision._meta_registrations" and not sys.modules["torchvision.extension"]._has_ops():
            _define()


def install() -> None:
    """Let a later `import torchvision` find its operators, whichever build it is."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _define() -> None:
    import torch  # late: this module is imported at the start of every Python process

    _libraries.append(torch.library.Library("torchvision", "FRAGMENT"))
    for name in _UNCONDITIONAL:
        _libraries[-1].define(f"{name}() -> ()")
