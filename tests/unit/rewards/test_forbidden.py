"""Where no jail works, the message names the setting that forbids it, and the way to grade on another machine."""

import argparse
import os
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from cases import cases
from command_lines import ROOT

from openrlhf_shear.cli.train_ppo_ray import main as train
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.doctor import machine
from openrlhf_shear.preflight import rewards
from openrlhf_shear.rewards.jail import JailError, forbidden
from openrlhf_shear.rewards.jail import bubblewrap as jails


def plant(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / "proc" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


RESTRICTED = {"sys__kernel__apparmor_restrict_unprivileged_userns": "1\n"}
DOCKER = {"self__attr__current": "docker-default (enforce)\n", "self__status": "Name:\tpython\nSeccomp:\t2\n"}


@pytest.mark.parametrize(*cases("rewards", "test_each_setting_that_forbids_user_namespaces_is_named"))
def test_each_setting_that_forbids_user_namespaces_is_named(files, parts, tmp_path):
    plant(tmp_path, **files)
    found = list(forbidden.forbids(tmp_path))
    assert len(found) == len(parts) and all(part in line for part, line in zip(parts, found, strict=True)), found


@pytest.mark.parametrize("said", ["setting up uid map: Permission denied", "bwrap: Unknown option --clearenv"])
def test_the_doctor_tells_what_bubblewrap_says_the_settings_and_the_way_to_another_machine(said, monkeypatch, tmp_path):
    """The second is the word of RHEL 9's bubblewrap, 0.4.1."""
    plant(tmp_path, **RESTRICTED, **DOCKER)
    found = list(forbidden.forbids(tmp_path))
    monkeypatch.setattr(forbidden, "forbids", lambda: found)
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    jails.probed.cache_clear()
    told = machine.jail()
    jails.probed.cache_clear()
    assert told.status == "fail" and all(line in told.seen for line in (said, *found)), told
    assert "install bubblewrap 0.7 or newer" in told.remedy and "--security-opt seccomp=unconfined" in told.remedy
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
