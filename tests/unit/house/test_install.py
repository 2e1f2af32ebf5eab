"""The install scripts and the Dockerfiles, with pip and nvcc replaced by what writes down how they were called."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import bare_root
import pytest
from cases import cases

ROOT = Path(__file__).parents[3]

PIP = """#!/bin/sh
cat >/dev/null
optimizers=${DS_BUILD_FUSED_ADAM:+$DS_BUILD_CPU_ADAM for $DS_ACCELERATOR $TORCH_CUDA_ARCH_LIST in $CUDA_HOME: }
[ "$1" = -m ] && echo "$optimizers${FLASH_ATTENTION_FORCE_BUILD:+forced }$*" |
    sed 's/ --[-a-z]* off\\| --[-a-z]*//g' >>"$CALLS"
[ "$*" != "$FAILS" ]
"""
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release {}, V{}'\n"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run(
    script: str, repository: Path, tmp_path: Path, nvcc: str | None, **variables: str
) -> tuple[subprocess.CompletedProcess, str]:
    """What a script of the repository did, and its calls of pip without their flags."""
    program(tmp_path / "venv/bin/python", PIP)
    if nvcc:
        program(tmp_path / "cuda/bin/nvcc", NVCC.format(nvcc, nvcc))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "FLASH_", "TORCH_CUDA"))}
    env |= {"CALLS": str(tmp_path / "calls"), "CUDA_HOME": str(tmp_path / "cuda"), "DEPENDENCIES_ONLY": "1"}
    env |= {"FAILS": ""} | variables
    line = [repository / "scripts" / script, tmp_path / "venv"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    calls = tmp_path / "calls"
    return done, calls.read_text() if calls.exists() else ""


@pytest.mark.parametrize(*cases("house", "test_an_image_copies_what_its_script_reads"))
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
    assert ran.splitlines() == [call.format(cuda=tmp_path / "cuda") for call in calls]


@pytest.mark.parametrize("nvcc", ["12.8", None])
def test_nothing_is_compiled_without_the_nvcc_of_torch(nvcc, tmp_path):
    done, calls = run("install_cluster.sh", ROOT, tmp_path, nvcc)
    assert done.returncode == 1 and calls == ""
    assert f"compiled with nvcc 13, as torch is: got {nvcc or 'none'} ({tmp_path}/cuda/bin/nvcc)" in done.stderr


@pytest.mark.parametrize(
    "variables", [{"CUDA_HOME": "", "CUDA_PATH": "{}/cuda"}, {"CUDA_HOME": "", "PATH": "{}/cuda/bin"}]
)
def test_nvcc_is_found_where_torch_looks(variables, tmp_path):
    there = {name: value.format(tmp_path) for name, value in variables.items()}
    there["PATH"] = f"{there.get('PATH', '')}:/usr/bin:/bin"
    done, calls = run("install_cluster.sh", ROOT, tmp_path, "13.1", FLASH_ATTN_CUDA_ARCHS="90;120", **there)
    assert done.returncode == 0, done.stderr
    assert f"1 for cuda 9.0;12.0 in {tmp_path}/cuda: -m pip install deepspeed==0.19.6\n" in calls
    assert "nvcc is 13.1 and torch's CUDA 13.0: DeepSpeed's check of that is off" in done.stdout


def test_a_wheel_of_flash_attn_is_installed_and_imported(tmp_path):
    wheel = tmp_path / "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl"
    wheel.touch()
    for given in (str(wheel), "https://host/flash_attn.whl"):
        done, calls = run("install_cluster.sh", ROOT, tmp_path, "13.0", FLASH_ATTN_WHEEL=given)
        assert done.returncode == 0 and calls.splitlines()[-1] == f"-m pip install {given}", done.stderr
    done, _ = run("install_cluster.sh", ROOT, tmp_path, "13.0", FLASH_ATTN_WHEEL=given, FAILS="-c import flash_attn")
    assert done.returncode == 1 and f"is not for this torch: got {given}" in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [("nowhere.whl", "names no file: got nowhere.whl"), ("2.8.3", "must be a wheel (.whl) or its address: got 2.8.3")],
)
def test_no_wheel_is_refused_before_anything_is_installed(given, said, tmp_path):
    done, calls = run("install_cluster.sh", ROOT, tmp_path, "13.0", FLASH_ATTN_WHEEL=given)
    assert done.returncode == 1 and calls == "" and f"FLASH_ATTN_WHEEL {said}" in done.stderr


def test_an_instruction_is_one_whatever_its_lines():
    text = "# a\nFROM debian:x\nRUN a \\\n    # b\n    && c\n\nCMD [1]\n"
    assert bare_root.steps(text) == [("FROM", "debian:x"), ("RUN", "a && c"), ("CMD", "[1]")]


def test_a_base_takes_the_place_of_from_and_the_environment_that_of_an_argument(tmp_path, monkeypatch):
    lines = []
    file = tmp_path / "Dockerfile"
    file.write_text('FROM nvidia/cuda:13.0.1\nARG ARCHS="80;90"\nARG JOBS=""\nENV BOTH=$ARCHS\nRUN true\n')
    monkeypatch.setattr("sys.argv", ["", str(file), f"{tmp_path}/root", "--base", "debian:trixie", "--env", "JOBS=3"])
    monkeypatch.setattr(subprocess, "run", lambda line, **_: lines.append(" ".join(line)))
    bare_root.main()
    assert lines[0].startswith("debootstrap --variant=minbase trixie ")
    assert "--setenv ARCHS 80;90 --setenv JOBS 3 --setenv BOTH 80;90" in lines[1]


def test_the_page_has_the_build_time_that_follows_from_the_measured_sources():
    """Forward sources, split ones too, count as the measured forward one; four GPUs as four times one."""
    found = json.loads((ROOT / "benchmarks/results/flash_attn_build.json").read_text())
    forward, backward = found["rows"]
    hours = (48 * forward["cpu_seconds"] + found["sources"]["bwd"] * backward["cpu_seconds"]) / 3600
    page = " ".join((ROOT / "docs/install.md").read_text().split())
    seconds, gigabytes = ([row[key] for row in found["rows"]] for key in ("cpu_seconds", "peak_gigabytes"))
    assert "{:.0f} and {:.0f} seconds of processor time, {:.1f} and {:.1f} GB".format(*seconds, *gigabytes) in page
    single = f"{hours:.1f} core-hours ({hours * 60 / 8:.0f} minutes with 8 compilers, {hours * 60 / 64:.1f} with 64)"
    default = f"{4 * hours:.1f} ({4 * hours * 60 / 8:.0f} and {4 * hours * 60 / 64:.1f} minutes)"
    assert f"`90` needs {single}, and the default {default}" in page
    assert found["sources"] == {"fwd": 24, "fwd_split": 24, "bwd": 24}
