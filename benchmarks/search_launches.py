"""How many kernels and waits does the search of a group cost a GPU's host, alone and with other groups? No GPU needed.

    python benchmarks/search_launches.py --output benchmarks/results/search_launches.json

`shear_groups` runs on the CPU with the Triton backend in Triton's interpreter, on small groups: the number of launches
depends little on their size. An operation counts if it would run on the device: an input comes from the hidden
states, or its result meets such a tensor. Views and empty tensors launch nothing. The reference
solves the pairs, faster than the interpreter would, and counts as one launch.
"""

import argparse
import os
from collections import Counter

os.environ["TRITON_INTERPRET"] = "1"  # chosen when Triton is imported

import torch
from measure import environment, print_table, script_parser, write_json
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from tqdm import tqdm
from triton.runtime.interpreter import GridExecutor

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import shear
from openrlhf_shear.kernels import triton_sinkhorn
from openrlhf_shear.transport import SinkhornPairs

CONFIG = ShearConfig(window=8, stride=4)
ROLLOUTS, TOKENS, HIDDEN = 8, 16, 24
_NO_LAUNCH = {"view", "_unsafe_view", "reshape", "expand", "slice", "select", "unsqueeze", "squeeze", "t", "transpose"}
_NO_LAUNCH |= {"permute", "split", "split_with_sizes", "unbind", "alias", "detach", "as_strided", "_local_scalar_dense"}
_NO_LAUNCH |= {"empty", "empty_like", "empty_strided", "new_empty", "unfold", "set_"}
_WAITS = {"_local_scalar_dense", "nonzero", "_unique2"}


class OnDevice(TorchDispatchMode):
    """Counts the operations on tensors that would be on the device, and the waits for it."""

    def __init__(self):
        super().__init__()
        self.launches, self.waits = Counter(), Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result, name = function(*args, **kwargs), function.__name__.split(".")[0]
        inputs = _tensors((args, tuple(kwargs.values())))
        if any(is_there(x) for x in inputs):
            self._count(name)
            for made in inputs:
                if creator := vars(made).pop("creator", None):  # made on the device, without an input
                    self._count(creator)
            for made in _tensors(result):
                made.is_there = True
        elif not inputs:
            for made in _tensors(result):
                made.creator = name
        return result

    def _count(self, name: str) -> None:
        self.launches[name] += name not in _NO_LAUNCH
        self.waits[name] += name in _WAITS


def is_there(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "is_there", False)


def _tensors(values) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [tensor for each in values for tensor in _tensors(each)] if isinstance(values, tuple | list) else []


def count(groups: int) -> dict:
    """Return the launches and waits of a search of so many groups, by group."""
    given = []
    for seed in range(groups):
        generator = torch.Generator().manual_seed(seed)
        given.append([torch.randn(TOKENS, HIDDEN, generator=generator) for _ in range(ROLLOUTS)])
    for states in given:
        for state in states:
            state.is_there = True
    counted = OnDevice()
    run_grid, to, cpu = GridExecutor.__call__, torch.Tensor.to, torch.Tensor.cpu
    solve, solving = triton_sinkhorn.TritonBatch._solve, []

    def launched(self, *args, **kwargs):
        counted.launches[self.fn.__name__] += 1
        with _disable_current_modes():
            return run_grid(self, *args, **kwargs)

    def moved(tensor, *args, **kwargs):
        if solving or not (args and isinstance(args[0], torch.device)) or is_there(tensor):
            return to(tensor, *args, **kwargs)
        counted.launches["copy to the device"] += 1
        there = tensor.clone()
        there.is_there = True
        return there

    def brought(tensor):
        if not is_there(tensor):
            return tensor
        counted.launches["copy to the host"] += 1
        counted.waits["copy to the host"] += 1
        with _disable_current_modes():
            return tensor.clone()

    def solved(batch, pairs, limits, *how):
        counted.launches["solve_pairs"] += 1
        solving.append(True)
        with _disable_current_modes():
            first, values = [0, 0], []
            result = None
            for tile in batch.tiles:
                which = torch.nonzero((pairs[:, 0] >= first[0]) & (pairs[:, 0] < first[0] + len(tile.a)))[:, 0]
                if len(which):
                    local = pairs[which] - torch.tensor(first)
                    values.append((which, SinkhornPairs(tile, batch.epsilon).solve(local, limits[which], *how)))
                first = [first[0] + len(tile.a), first[1] + len(tile.b)]
            made = [each.padded(*batch._longest) for _, each in values]
            result = type(made[0]).cat(made)
            order = torch.cat([which for which, _ in values]).argsort()
            result = type(result)(*(value[order] for value in vars(result).values()))
        solving.clear()
        for value in vars(result).values():
            value.is_there = True
        flagged = torch.zeros_like(result.dropped)
        return result, flagged

    GridExecutor.__call__, torch.Tensor.to, torch.Tensor.cpu = launched, moved, brought
    triton_sinkhorn.TritonBatch._solve = solved
    shear.choose_backend = lambda *_: triton_sinkhorn.TritonSinkhorn
    try:
        with counted:
            shear.shear_groups([(states, [i % 2 == 0 for i in range(ROLLOUTS)]) for states in given], CONFIG)
    finally:
        GridExecutor.__call__, torch.Tensor.to, torch.Tensor.cpu = run_grid, to, cpu
        triton_sinkhorn.TritonBatch._solve = solve
    launches, waits = sum(counted.launches.values()), sum(counted.waits.values())
    most = dict(counted.launches.most_common(12))
    return {"groups": groups, "launches": launches, "waits": waits, "most": most} | {
        "launches_a_group": launches / groups,
        "waits_a_group": waits / groups,
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4, 16], help="groups searched at once")
    args: argparse.Namespace = parser.parse_args()
    rows = [count(groups) for groups in tqdm(args.groups, "groups", leave=False)]
    columns = {name: name.replace("_", " ") for name in ("groups", "launches", "waits")}
    columns |= {name: name.replace("_", " ") for name in ("launches_a_group", "waits_a_group")}
    print_table("Launches and waits of the credit of SHEAR, counted and not timed", rows, columns)
    write_json(args.output, {"environment": environment("cpu"), "rows": rows})


if __name__ == "__main__":
    main()
