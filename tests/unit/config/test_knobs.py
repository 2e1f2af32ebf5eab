"""Knobs have declared ranges, and a value outside is refused by the name of its flag."""

import math
import re
from dataclasses import fields

import pytest
from cases import table

from openrlhf_shear.config import RULES, PrmConfig, SearchConfig, ShearConfig
from openrlhf_shear.config.knobs import Range
from openrlhf_shear.config.rules import DeltaConfig
from openrlhf_shear.config.shear import TextConfig
from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.lab.settings import LabSettings

CONFIGS = [rule.config for rule in RULES.values() if rule.config]
CONFIGS += [SearchConfig, OutcomeConfig, PrmConfig, LabSettings]
KNOBS = {f"{config.section}.{knob.name}": (config, knob) for config in CONFIGS for knob in fields(config)}
NUMBERS = {name: pair for name, pair in KNOBS.items() if isinstance(pair[1].metadata["within"], Range)}
RANGES = table("config", "RANGES")


def test_every_number_has_its_range():
    expected = {name: text for text, names in RANGES.items() for name in names.split()}
    assert {name: str(knob.metadata["within"]) for name, (_, knob) in NUMBERS.items()} == expected


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_outside_is_refused_by_its_flag(name):
    config, knob = NUMBERS[name]
    within = knob.metadata["within"]
    above = within.most if within.open_most or math.isinf(within.most) else within.most + 1
    below = within.least if within.open_least or math.isinf(within.least) else within.least - 1
    for value in (math.nan, above, -1 if below == within.also else below):
        with pytest.raises(ValueError, match=rf"^{re.escape(f'{name} {within.problem(value)}: got {value!r}; use ')}"):
            config(**{knob.name: value})
    if not (within.open_least or math.isinf(within.least)):
        assert within.least in within
    assert knob.default is None or knob.default in within
    assert within.also is None or getattr(config(**{knob.name: within.also}), knob.name) == within.also


@pytest.mark.parametrize("name", [name for name, (_, knob) in KNOBS.items() if knob.metadata["choices"]])
def test_a_word_that_is_not_known_is_refused_by_its_flag(name):
    config, knob = KNOBS[name]
    known = ", ".join(knob.metadata["choices"])
    with pytest.raises(ValueError, match=rf"^{name} is not known: got 'some'; use one of {known}$"):
        config(**{knob.name: "some"})


@pytest.mark.parametrize(
    ("config", "knobs", "refused"),
    [
        (ShearConfig, {"stride": 101}, "shear.stride must not exceed shear.window (100), or tokens between spans get"),
        (TextConfig, {"stride": 101}, "text.stride must not exceed text.window (100)"),
        (ShearConfig, {"epsilon": 1.0, "epsilon_spread": 1.0}, "shear.epsilon_spread cannot be set with shear.epsilon"),
        (TextConfig, {"distance": "mmd"}, "text.distance must depend on costs between opposing tokens alone"),
        (TextConfig, {"distance": "cosine"}, "text.distance must depend on costs between opposing tokens alone"),
        (DeltaConfig, {"high": 0.5}, "delta.high must be at least delta.low: got 0.5; use e.g. 1.2"),
        (PrmConfig, {"separator": ""}, "prm.separator must be ASCII text: got ''; use e.g. "),
        (PrmConfig, {"separator": "é"}, "prm.separator must be ASCII text"),
    ],
)
def test_values_that_do_not_go_together_are_refused(config, knobs, refused):
    with pytest.raises(ValueError, match=f"^{re.escape(refused)}"):
        config(**knobs)
    first, value = next(iter(knobs.items()))
    assert len(knobs) == 1 or getattr(config(**{first: value}), first) == value, "alone it is fine"


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ValueError, match=r"shear\.window must .*; and shear\.epsilon_rel must .*; and shear\.pool is"):
        ShearConfig(window=0, epsilon_rel=0, pool="min")
