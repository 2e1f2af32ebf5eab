"""A home folder and a name for users without one, as in containers."""

import os
from types import SimpleNamespace

import pytest

from openrlhf_shear.line import home


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user without an entry in passwd, whose temporary folder is `tmp_path`."""

    def unknown(_):
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(home, "pwd", SimpleNamespace(getpwuid=unknown))
    monkeypatch.setattr(home.tempfile, "tempdir", str(tmp_path))
    return os.getuid()


@pytest.mark.parametrize("value", [None, "", "relative", "/no/such/folder", "/proc/1/net"])
def test_a_user_without_a_home_gets_one_that_is_the_same_next_time(user, tmp_path, value, capsys):
    environ = {} if value is None else {"HOME": value}
    home.ensure_home(environ)
    assert environ == {"HOME": f"{tmp_path}/openrlhf_shear-home-{user}", "LOGNAME": f"uid{user}"}
    assert os.stat(environ["HOME"]).st_mode & 0o777 == 0o700
    assert f"HOME is no folder that user {user} can write to" in capsys.readouterr().err
    again = dict(environ)
    home.ensure_home(again)
    assert again == environ and not capsys.readouterr().err


def test_a_home_and_a_name_stay_as_they_are(user, tmp_path, capsys):
    for name in ("USER", "LOGNAME"):
        environ = {"HOME": str(tmp_path), name: "mine"}
        home.ensure_home(environ)
        assert environ == {"HOME": str(tmp_path), name: "mine"} and not capsys.readouterr().err


@pytest.mark.parametrize("taken", ["a link", "open to all"])
def test_a_folder_that_another_user_could_have_made_is_not_used(user, tmp_path, taken):
    named, elsewhere = tmp_path / f"openrlhf_shear-home-{user}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if taken == "a link":
        named.symlink_to(elsewhere)
    else:
        named.mkdir()
        named.chmod(0o777)
    environ = {}
    home.ensure_home(environ)
    assert environ["HOME"].startswith(f"{named}-") and os.stat(environ["HOME"]).st_mode & 0o777 == 0o700
