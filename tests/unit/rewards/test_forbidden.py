"""Where no jail works, the message names the setting that forbids it, and the way to grade on another machine."""

import argparse
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from command_lines import ROOT

from openrlhf_shear.cli.train_ppo_ray import main as train
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.doctor import machine
from openrlhf_shear.preflight import rewards
from openrlhf_shear.rewards.jail import JailError, find_jail, forbidden
from openrlhf_shear.rewards.jail import bubblewrap as jails

# The flags of RHEL 9's bubblewrap that a jail needs: 0.4.1 has all but these two.
NEW = ("--clearenv", "--size")


@pytest.fixture
def bwrap(tmp_path, monkeypatch):
    """A function that puts a bubblewrap on the PATH: a version, without some flags, whose jails all fail."""
    flags = [word for word in jails._sandbox(jails.INSIDE / "x", jails.Limits(), False, str) if word.startswith("--")]

    def put(version: str, without: tuple[str, ...] = ()) -> None:
        known = " ".join(flag for flag in dict.fromkeys(flags) if flag not in without)
        text = f'#!/bin/sh\ncase "$1" in\n--version) echo bubblewrap {version};;\n--help) echo "usage: {known}";;\n'
        (tmp_path / "bwrap").write_text(f"{text}*) echo 'setting up uid map: Permission denied' >&2; exit 1;;\nesac\n")
        (tmp_path / "bwrap").chmod(0o755)
        which = shutil.which
        mine = str(tmp_path / "bwrap")
        monkeypatch.setattr(shutil, "which", lambda name, **more: mine if name == "bwrap" else which(name, **more))

    jails.probed.cache_clear()
    yield put
    jails.probed.cache_clear()


def test_the_bubblewrap_of_rhel_9_is_named_with_the_flags_that_it_lacks(bwrap, tmp_path):
    bwrap("0.4.1", NEW)
    said = f"bubblewrap 0.4.1 ({tmp_path}/bwrap) has no --clearenv, --size: install bubblewrap 0.7 or newer"
    with pytest.raises(JailError, match=re.escape(said)):
        find_jail()
    assert said in machine.jail().seen and machine.jail().status == "fail"


def test_a_bubblewrap_with_all_flags_is_tried(bwrap):
    bwrap("0.7.0")
    with pytest.raises(JailError, match="bubblewrap fails: setting up uid map: Permission denied"):
        find_jail()
    here = shutil.which("bwrap", path="/usr/bin:/bin")
    assert here is None or forbidden.old_bubblewrap(here, NEW) == ""


def plant(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / "proc" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


RESTRICTED = {"sys__kernel__apparmor_restrict_unprivileged_userns": "1\n"}
DOCKER = {"self__attr__current": "docker-default (enforce)\n", "self__status": "Name:\tpython\nSeccomp:\t2\n"}


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({}, []),
        ({"self__attr__current": "unconfined\n", "self__status": "Seccomp:\t0\n"}, []),
        ({"sys__user__max_user_namespaces": "0\n"}, ["sysctl user.max_user_namespaces=15000"]),
        ({"sys__kernel__unprivileged_userns_clone": "0\n"}, ["sysctl kernel.unprivileged_userns_clone=1"]),
        (RESTRICTED, ["sysctl kernel.apparmor_restrict_unprivileged_userns=0 on the host"]),
        (  # Docker on a stock Ubuntu 24.04: all three
            RESTRICTED | DOCKER,
            [
                "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
                "(docker-default): docker run --security-opt apparmor=unconfined",
                "--security-opt seccomp=unconfined",
            ],
        ),
    ],
)
def test_each_setting_that_forbids_user_namespaces_is_named(files, parts, tmp_path):
    plant(tmp_path, **files)
    found = list(forbidden.forbids(tmp_path))
    assert len(found) == len(parts) and all(part in line for part, line in zip(parts, found, strict=True)), found


def test_the_doctor_tells_them_and_the_way_to_another_machine(bwrap, monkeypatch, tmp_path):
    plant(tmp_path, **RESTRICTED, **DOCKER)
    found = list(forbidden.forbids(tmp_path))
    monkeypatch.setattr(forbidden, "forbids", lambda: found)
    bwrap("0.8.0")
    told = machine.jail()
    assert all(line in told.seen for line in found), told
    assert "--security-opt seccomp=unconfined" in told.remedy and "apparmor=unconfined" in told.remedy
    assert "or grade on a machine that has a jail" in told.remedy


def test_the_way_to_another_machine_is_documented_and_its_commands_parse(monkeypatch, job, capsys):
    """Without a jail, math and code are refused in a line that names the server; with its address they are not."""
    page = (ROOT / "docs/rewards.md").read_text()
    _, _, module, *words = shlex.split(forbidden.SERVER)
    assert forbidden.SERVER in page and forbidden.ADDRESS in page

    def none(*_):
        raise JailError(f"no jail for untrusted code works on this machine: none; {jails._REMEDIES}")

    monkeypatch.setattr(rewards, "find_jail", none)
    with pytest.raises(SystemExit):
        train(job("no:reward.remote_url --reward.remote_url code --data.label_key answer --dry_run"))
    assert f"here {forbidden.ADDRESS}" in capsys.readouterr().err
    monkeypatch.setenv(REWARD_TOKEN, "a-token_of-tests.0123")
    monkeypatch.setattr(rewards, "_ask_servers", lambda *_: ())  # no server is at the page's address
    train(job(f"no:reward.remote_url {forbidden.ADDRESS} --data.label_key answer --dry_run"))
    parser = argparse.ArgumentParser()
    import_module(module)._flags(parser)
    assert parser.parse_args(words).host == "0.0.0.0"
