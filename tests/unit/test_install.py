"""The install scripts and the Dockerfiles, with pip and nvcc replaced by what writes down how they were called."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("bare_root", ROOT / "docker/bare_root.py")
bare_root = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bare_root)

PIP = """#!/bin/sh
cat >/dev/null
[ "$1" = -m ] && echo "${FLASH_ATTENTION_FORCE_BUILD:+forced }$*" | sed 's/ --[-a-z]* off\\| --[-a-z]*//g' >>"$CALLS"
exit 0
"""
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release {}, V{}'\n"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run(script: str, repository: Path, tmp_path: Path, nvcc: str | None) -> tuple[subprocess.CompletedProcess, str]:
    """What a script of the repository did, and its calls of pip without their flags."""
    program(tmp_path / "venv/bin/python", PIP)
    if nvcc:
        program(tmp_path / "cuda/bin/nvcc", NVCC.format(nvcc, nvcc))
    env = os.environ | {"CALLS": str(tmp_path / "calls"), "CUDA_HOME": str(tmp_path / "cuda"), "DEPENDENCIES_ONLY": "1"}
    line = [repository / "scripts" / script, tmp_path / "venv"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    calls = tmp_path / "calls"
    return done, calls.read_text() if calls.exists() else ""


@pytest.mark.parametrize(
    ("dockerfile", "script", "calls"),
    [
        ("cpu", "install_cpu.sh", ["-m pip install torch==2.13.0+cpu", "-m pip install -r requirements-cpu.lock"]),
        (
            "gpu",
            "install_cluster.sh",
            ["-m pip install -r requirements.lock", "forced -m pip install flash-attn==2.8.3"],
        ),
    ],
)
def test_an_image_copies_what_its_script_reads(dockerfile, script, calls, tmp_path):
    copied, ran = tmp_path / "image", ""
    for name, rest in bare_root.steps((ROOT / f"docker/{dockerfile}.Dockerfile").read_text()):
        if name == "RUN" and script in rest:
            done, ran = run(script, copied, tmp_path, "13.0")
            assert done.returncode == 0, done.stderr
        elif name == "COPY" and not ran:
            *sources, target = rest.split()
            (copied / target).mkdir(parents=True, exist_ok=True)
            for source in sources:
                shutil.copy(ROOT / source, copied / target)
    assert ran.splitlines() == calls


@pytest.mark.parametrize("nvcc", ["12.8", None])
def test_flash_attn_is_not_begun_without_the_nvcc_of_torch(nvcc, tmp_path):
    done, calls = run("install_cluster.sh", ROOT, tmp_path, nvcc)
    assert done.returncode == 1 and calls == ""
    assert f"compiled with nvcc 13, as torch is: got {nvcc or 'none'} (" in done.stderr


def test_an_instruction_is_one_whatever_its_lines():
    text = "# a\nFROM debian:x\nRUN a \\\n    # b\n    && c\n\nCMD [1]\n"
    assert bare_root.steps(text) == [("FROM", "debian:x"), ("RUN", "a && c"), ("CMD", "[1]")]
