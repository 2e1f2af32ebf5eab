"""The command that shows whether the jail holds here."""

import pytest

from openrlhf_shear.cli import check_rewards
from openrlhf_shear.rewards.jail import JailError, find_jail


@pytest.fixture(autouse=True)
def needs_a_jail():
    try:
        find_jail()
    except JailError as error:
        pytest.skip(str(error))


def run(capsys, *words) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        check_rewards.main([*words])
    return ended.value.code, capsys.readouterr().out


def test_escapes(capsys):
    code, out = run(capsys, "escapes")
    assert code == 0 and "it holds" in out and "seccomp: socket" in out and "WORKED" not in out, out
