"""Where results come from."""

import subprocess
import sys

from openrlhf_shear.report import provenance as module
from openrlhf_shear.report.provenance import distinct, provenance


def test_commit_command_machine_and_versions(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/openrlhf_shear/cli/lab.py", "--rules", "a b"])
    found = provenance()
    assert found["command"] == "python -m openrlhf_shear.cli.lab --rules 'a b'"
    assert found["versions"]["torch"] and found["versions"]["python"] == sys.version.split()[0]
    assert "cores" in found["machine"] and "/somewhere" not in str(found)


def test_without_git_there_is_no_commit(monkeypatch):
    def nothing(*words, **options):
        raise subprocess.CalledProcessError(128, "git")

    monkeypatch.setattr(module.subprocess, "run", nothing)
    monkeypatch.setattr(sys, "argv", ["benchmarks/ledger_gates.py"])
    assert provenance()["commit"] is None and provenance()["command"] == "python ledger_gates.py"


def test_one_is_kept_of_every_commit_machine_and_set_of_versions():
    made = {"commit": "c0ffee", "command": "python x", "machine": "a CPU", "versions": {"torch": "2"}}
    others = [made | {"commit": "decaf"}, made | {"machine": "another"}, made | {"versions": {"torch": "3"}}]
    assert distinct([made, None, made | {"command": "python y"}, *others, made]) == [made, *others]
