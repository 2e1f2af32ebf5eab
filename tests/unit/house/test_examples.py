"""The examples in docstrings give what they say."""

import doctest
import importlib

import pytest
from command_lines import ROOT

FILES = [file for folder in ("openrlhf_shear", "examples/rules") for file in (ROOT / folder).rglob("*.py")]
MODULES = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES if ">>> " in file.read_text()]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_examples(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.failed == 0 < results.attempted
