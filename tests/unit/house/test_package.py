"""The wheel has every file of the package, and metadata that an index takes. `make package` installs it."""

import email
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


def test_the_wheel_has_all_of_the_package(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    skip = shutil.ignore_patterns("__pycache__")
    for folder in ("openrlhf_shear", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=skip)
    built = subprocess.run([sys.executable, "-c", BUILD, "dist"], cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        (metadata,) = (email.message_from_bytes(archive.read(name)) for name in held if name.endswith("/METADATA"))
    kept = {
        path.relative_to(tmp_path).as_posix() for path in (tmp_path / "openrlhf_shear").rglob("*") if path.is_file()
    }
    assert kept - held == set() and "openrlhf_shear/py.typed" in held
    assert metadata["Description-Content-Type"] == "text/markdown" and metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra")) == {"cluster", "tools", "trl", "verl"}
