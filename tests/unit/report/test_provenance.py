"""Where results come from."""

import subprocess
import sys

import pytest

from openrlhf_shear.report import provenance as module
from openrlhf_shear.report.provenance import distinct, provenance


@pytest.fixture(autouse=True)
def asked_anew():
    module.commit.cache_clear()
    yield
    module.commit.cache_clear()


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
    monkeypatch.setattr(sys, "argv", ["benchmarks/ledger_comparison.py"])
    assert provenance()["commit"] is None and provenance()["command"] == "python ledger_comparison.py"


def test_the_commit_of_a_changed_checkout_ends_in_a_plus(tmp_path, monkeypatch):
    file = tmp_path / "package" / "report" / "provenance.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr(module, "__file__", str(file))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    clean = module.commit.__wrapped__()
    (tmp_path / "beside.txt").write_text("not of the package, and not tracked")
    assert module.commit.__wrapped__() == clean and len(clean) == 12
    file.write_text("changed")
    assert module.commit.__wrapped__() == f"{clean}+"


def test_a_package_that_is_installed_inside_another_checkout_has_no_commit(tmp_path, monkeypatch):
    (tmp_path / "work.py").write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    file = tmp_path / ".venv" / "package" / "report" / "provenance.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr(module, "__file__", str(file))
    assert module.commit.__wrapped__() is None


def test_one_is_kept_of_every_commit_machine_and_set_of_versions():
    made = {"commit": "c0ffee", "command": "python x", "machine": "a CPU", "versions": {"torch": "2"}}
    others = [made | {"commit": "decaf"}, made | {"machine": "another"}, made | {"versions": {"torch": "3"}}]
    assert distinct([made, None, made | {"command": "python y"}, *others, made]) == [made, *others]
