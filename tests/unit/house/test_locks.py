"""The lock files against their requirements, and the installed CPU profile against its lock."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
CLUSTER, CPU, EXCLUDED = "requirements.txt", "requirements-cpu.txt", "requirements-cpu.excluded.txt"
LOCKS = {CLUSTER: "requirements.lock", CPU: "requirements-cpu.lock"}
PYTHONS = ("3.11", "3.12")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OVERRIDES = dict(text.split("==") for text in PYPROJECT["tool"]["uv"]["override-dependencies"])


def listed(name: str) -> list[Requirement]:
    """The requirements of a file, and of those that it includes."""
    found = []
    for line in (ROOT / name).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            found += listed(line.removeprefix("-r "))
        elif line:
            found.append(Requirement(line))
    return found


def names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def locked(name: str) -> dict[str, str]:
    """Versions by name; a line that is more than `name==version` is an error."""
    pins = {}
    for requirement in listed(name):
        (pin,) = requirement.specifier
        assert pin.operator == "==" and not (requirement.marker or requirement.url or requirement.extras), (
            f"{name}: {requirement}"
        )
        assert canonicalize_name(requirement.name) not in pins, f"{name} has {requirement.name} twice"
        pins[canonicalize_name(requirement.name)] = pin.version
    return pins


def unmet(asked: list[Requirement], have: dict[str, str], left_out: set[str]) -> list[str]:
    """Requirements of Linux on x86_64 that `have` does not satisfy on one of `PYTHONS`."""
    problems = []
    for requirement in asked:
        where = [{"python_version": python, "python_full_version": f"{python}.0", "extra": ""} for python in PYTHONS]
        if requirement.marker is not None and not any(requirement.marker.evaluate(here) for here in where):
            continue
        name = canonicalize_name(requirement.name)
        if name not in left_out and not (name in have and requirement.specifier.contains(have[name], prereleases=True)):
            problems.append(f"{requirement}: {have.get(name, 'missing')}")
    return problems


@pytest.mark.parametrize(("source", "left_out"), [(CLUSTER, {"flash-attn"}), (CPU, names(listed(EXCLUDED)))])
def test_a_lock_satisfies_its_requirements(source, left_out):
    pins = locked(LOCKS[source])
    assert unmet(listed(source), pins, left_out) == []
    assert left_out.isdisjoint(pins)
    assert unmet([Requirement(text) for text in PYPROJECT["project"]["dependencies"]], pins, left_out) == []
    assert OVERRIDES.items() <= pins.items()


def test_what_is_tested_is_what_the_cluster_gets():
    cluster, cpu = locked(LOCKS[CLUSTER]), locked(LOCKS[CPU])
    assert {name: version for name, version in cpu.items() if cluster.get(name, version) != version} == {}
    build = re.search(r"^torch=torch==(.*)\+cpu$", (ROOT / "scripts/install_cpu.sh").read_text(), re.MULTILINE)
    assert build[1] == cluster["torch"]


def test_nothing_of_the_cpu_profile_is_for_cuda():
    assert [name for name in locked(LOCKS[CPU]) if re.match("nvidia|cuda|torch$|cu1", name)] == []


def test_no_file_names_a_place_to_install_from():
    for name in (*LOCKS, *LOCKS.values(), EXCLUDED, "pyproject.toml"):
        text = re.sub(r"(?m)^\[project\.urls\]\n(\w.*\n)*", "", (ROOT / name).read_text())
        assert not re.search(r"://|^(-i|-f|--(extra-)?index|--find-links)|\bindex\s*=", text, re.MULTILINE), name


def installed_cpu_profile() -> dict[str, str]:
    if metadata.version("torch").endswith("+cpu"):
        # By name: setuptools puts copies of its own behind those that are installed, which a mere list has too.
        found = {canonicalize_name(distribution.metadata["Name"]) for distribution in metadata.distributions()}
        return {name: metadata.version(name) for name in found}
    pytest.skip("this is not the CPU profile")


def test_what_is_installed_is_what_is_locked():
    here = installed_cpu_profile()
    pins = locked(LOCKS[CPU])
    assert {name: (pin, here.get(name)) for name, pin in pins.items() if here.get(name) != pin} == {}, "make setup"


def test_the_lock_is_whole():
    """All that its packages ask for is in it, or excluded or overridden by name: `install_cpu.sh` has --no-deps."""
    here = installed_cpu_profile()
    missing, left_out = [], names(listed(EXCLUDED)) | set(OVERRIDES)
    for name in (*locked(LOCKS[CPU]), "torch"):
        asked = [Requirement(text) for text in metadata.requires(name) or []]
        missing += [f"{name}: {problem}" for problem in unmet(asked, here, left_out)]
    assert missing == []
