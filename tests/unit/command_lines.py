"""What tests of the training command's line share."""

import pytest

from openrlhf_shear.cli.train_ppo_ray import parse


def refusal(capsys, line: list[str]) -> str:
    """The last line of what is said of a command line that is refused, with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        parse(line)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def check_refused(capsys, line: list[str], parts: list[str]) -> None:
    told = refusal(capsys, line)
    assert all(part in told for part in parts), told
