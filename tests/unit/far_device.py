"""A device "cuda:0" without a GPU: its tensors lie in the CPU's memory, and whatever waits for the device is counted.

What waits are copies from or to memory that is not pinned, numbers and shapes that depend on values, and
synchronisation. An operation on tensors of both devices fails, as on CUDA, except with a number or an index; a CPU
index is a copy, and waits. What torch's functions do inside is not seen.
"""

import contextlib
import traceback
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda:0")
_BY_VALUE = {
    *("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__", "equal", "allclose"),
    *("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount", "isin"),
}
_VIEWS = {"T", "mT", "H", "data", "real", "grad"}  # properties that are tensors


class Far(torch.Tensor):
    """Tensor of the device; `near` has its numbers."""

    @staticmethod
    def __new__(cls, near: torch.Tensor):
        place = {"strides": near.stride(), "storage_offset": near.storage_offset()}
        far = torch.Tensor._make_wrapper_subclass(cls, near.size(), dtype=near.dtype, device=CUDA, **place)
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} outside of `counted_waits`")


class Waits(TorchFunctionMode):
    """Runs what is done with the device's tensors, and counts what waits, by the line of the package that waits."""

    def __init__(self):
        self.count: Counter[str] = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), function.__name__
        if name == "__get__":
            return self._property(function, args)
        target, is_far = self._target(name, args, kwargs), _is_far(args[0]) if args else False
        if name == "pin_memory":
            pinned = args[0].clone()
            pinned.is_in_pinned_memory = True
            return pinned
        if target is not None and is_far != (target.type == "cuda") and name in ("to", "cpu", "cuda"):
            source = args[0]
            if not kwargs.get("non_blocking") or not (is_far or getattr(source, "is_in_pinned_memory", False)):
                self.note()
            return source.near.clone() if is_far else Far(source.clone())
        if target is not None and target.type == "cuda":
            if name in ("tensor", "as_tensor"):
                self.note()
            if name == "to":
                return args[0]
            made = function(*args, **kwargs | {"device": "cpu"})
            return Far(made)
        if any(map(_is_far, tree_leaves((args, kwargs)))):
            return self._there(function, name, args, kwargs)
        return function(*args, **kwargs)

    @staticmethod
    def _property(function, args):
        if not _is_far(args[0]) or function.__self__.__name__ not in _VIEWS:
            return function(*args)
        return Far(function(args[0].near))

    @staticmethod
    def _target(name: str, args: tuple, kwargs: dict) -> torch.device | None:
        """Return the device that a call names, if any."""
        where = kwargs.get("device")
        if name in ("to", "cpu", "cuda"):
            where = name if name != "to" else kwargs.get("device", args[1] if len(args) > 1 else None)
            where = where.device if isinstance(where, torch.Tensor) else where
        return torch.device(where) if isinstance(where, str | torch.device) else None

    def _there(self, function, name: str, args: tuple, kwargs: dict):
        """Call a function with tensors of the device."""
        leaves = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if name in _BY_VALUE or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.note()
        elif name in ("__getitem__", "__setitem__"):
            at = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(each, torch.Tensor) and (each.dtype == torch.bool or not _is_far(each)) for each in at):
                self.note()
        elif name == "copy_" and not all(map(_is_far, leaves)):
            self.note()
        elif any(each.ndim and not _is_far(each) for each in leaves):
            raise RuntimeError(f"{name} of tensors on cuda:0 and on the CPU")
        far = {id(each.near): each for each in leaves if _is_far(each)}
        args, kwargs = tree_map(lambda each: each.near if _is_far(each) else each, (args, kwargs))
        made = function(*args, **kwargs)
        made = list(made) if name == "__iter__" else made
        made = tree_map(lambda each: far.get(id(each), each) if id(each) in far else _far(each), made)
        return iter(made) if name == "__iter__" else made

    def note(self, *_) -> None:
        frames = [frame for frame in traceback.extract_stack() if "/openrlhf_shear/" in frame.filename]
        where = frames[-1] if frames else traceback.extract_stack()[-3]
        self.count[f"{where.filename.rpartition('/openrlhf_shear/')[2]}: {where.line}"] += 1


def _is_far(value: object) -> bool:
    return isinstance(value, Far)


def _far(value: object) -> object:
    return Far(value) if isinstance(value, torch.Tensor) else value


def there(tensors) -> tuple[Far, ...]:
    """Return tensors of the device with the same numbers."""
    return tuple(Far(tensor.clone()) for tensor in tensors)


@contextlib.contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Yield the waits inside the context, by the line that waits."""
    waits = Waits()
    with pytest.MonkeyPatch.context() as patch, waits:
        patch.setattr(torch.cuda, "synchronize", waits.note)
        patch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=waits.note))
        patch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        yield waits.count
