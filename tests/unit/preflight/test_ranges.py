"""Every number of a command line has a range, or a check that knows more of it."""

import math

import pytest
from cases import table

from openrlhf_shear.cli.train_ppo_ray import build_parser
from openrlhf_shear.line.run import KNOBS
from openrlhf_shear.preflight.checks import RANGES, Range

OTHER_FILES = table("preflight", "OTHER_FILES")  # of preflight, where a number is looked at beside others
ANY = ("local_rank", "actor.entropy_coef", "actor.muon.ns_steps", "critic.muon.ns_steps")  # or DeepSpeed ignores it


def test_every_number_is_looked_at():
    actions = {action.dest: action for action in build_parser()._actions if action.type in (int, float)}
    knobs = {name for name in actions if name.partition(".")[0] in KNOBS}
    ours = {name for name in RANGES if name.partition(".")[0] in KNOBS}
    assert ours <= knobs and actions.keys() - knobs == (RANGES.keys() - ours) | OTHER_FILES.keys() | set(ANY)
    for name, within in RANGES.items():
        default = actions[name].default
        for value in default if isinstance(default, tuple | list) else (default,):
            assert value is None or value in within, name


@pytest.mark.parametrize(
    ("within", "inside", "outside", "said"),
    [
        (Range(1), (1, 1e9), (0, -1, math.inf, math.nan), "at least 1"),
        (Range(0, open_least=True), (1e-9,), (0, math.nan), "greater than 0"),
        (Range(0, 1), (0, 1), (-1e-9, 1.5, math.nan), "from 0 to 1"),
        (Range(0, 1, open_most=True), (0, 0.999), (1, math.nan), "in [0, 1)"),
        (Range(0, endless=True), (0, math.inf), (-1, math.nan), "at least 0"),
    ],
)
def test_a_range(within, inside, outside, said):
    assert all(value in within for value in inside) and not any(value in within for value in outside)
    assert str(within) == said
