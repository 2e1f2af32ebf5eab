"""The doctor and the preflight name the toolkit, lock, driver or setting with which a run would stop or hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import cases
from command_lines import refusal

from openrlhf_shear.cli.train_ppo_ray import main as train
from openrlhf_shear.doctor import gpu, toolkit
from openrlhf_shear.doctor.gpu import Gpu, Gpus
from openrlhf_shear.doctor.result import GIB
from openrlhf_shear.doctor.toolkit import CPU_ADAM, FUSED_ADAM, Built, Toolkit
from openrlhf_shear.preflight import resources

H100 = Gpu("NVIDIA H100", 79 * GIB, 80 * GIB)
GPUS = Gpus("580.82", (13, 0), (H100, H100), "13.0", 2)
TORCH = toolkit._torch_version()
BOTH = Built(frozenset({FUSED_ADAM, CPU_ADAM}), TORCH, "13.0")
NVCC = "#!/bin/sh\necho 'nvcc: NVIDIA (R) Cuda compiler driver'\necho 'Cuda compilation tools, release {0}, V{0}.88'\n"


def cuda(folder: Path, version: str | None) -> Path:
    """A CUDA toolkit, whose nvcc says this version; without nvcc for None. Beside nvcc there is a ninja."""
    (folder / "bin").mkdir(parents=True)
    for name, text in (("nvcc", version and NVCC.format(version)), ("ninja", "#!/bin/sh\n")):
        if text:
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
    return folder


def test_the_toolkit_and_the_cache_of_extensions_are_those_of_torch(tmp_path, monkeypatch):
    from torch.utils import cpp_extension

    named, pathed, other = (cuda(tmp_path / name, "13.0") for name in ("named", "pathed", "other"))
    base = {"PATH": "/bin", "HOME": str(tmp_path), "CUDA_HOME": "", "CUDA_PATH": "", "XDG_CACHE_HOME": ""}
    for more in (
        {"CUDA_HOME": str(named), "CUDA_PATH": str(other)},
        {"CUDA_PATH": str(named), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        {"PATH": f"{pathed}/bin:/bin"},
        {"CUDA_HOME": str(tmp_path / "nowhere")},
    ):
        environ = {name: value for name, value in (base | more).items() if value}
        for name in base:
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        found = toolkit.find_toolkit(environ)
        assert str(found.home) == cpp_extension._find_cuda_home()
        assert found.version == (None if "nowhere" in str(found.home) else (13, 0))
        assert str(toolkit.extensions_folder(environ)) == cpp_extension.get_default_build_root()
    assert toolkit.find_toolkit({"PATH": "/bin"}, tmp_path / "no").home is None
    found = toolkit.find_toolkit({"PATH": "/bin"}, cuda(tmp_path / "default", None))
    assert (found.home, found.version) == (tmp_path / "default", None)


def test_deepspeed_accepts_the_toolkits_that_we_say(monkeypatch):
    builder = pytest.importorskip("deepspeed.ops.op_builder.builder")
    import torch

    numbers = [(major, minor) for major in (11, 12, 13) for minor in range(9) if (major, minor) != (12, 7)]
    for skip in ("", "1"):
        monkeypatch.setenv("DS_SKIP_CUDA_CHECK", skip)
        for here in numbers:
            for built in numbers:
                monkeypatch.setattr(builder, "installed_cuda_version", lambda name="", here=here: here)
                monkeypatch.setattr(torch.version, "cuda", f"{built[0]}.{built[1]}")
                try:
                    accepted = builder.assert_no_cuda_mismatch()
                except builder.CUDAMismatchException:
                    accepted = False
                assert toolkit.is_accepted(here, torch.version.cuda, os.environ) is accepted, (here, built, skip)


@pytest.mark.parametrize(*cases("doctor", "test_an_optimizer_that_cannot_be_loaded_is_told"))
def test_an_optimizer_that_cannot_be_loaded_is_told(version, built, torch_cuda, status, parts, tmp_path):
    folder = cuda(tmp_path / "cuda", version)
    found = toolkit.find_toolkit({"CUDA_HOME": str(folder), "PATH": f"{folder}/bin"})
    ops, of_torch, of_cuda = built or ("", "", "")
    built = Built(frozenset(ops.split()), of_torch.replace("TORCH", TORCH), of_cuda)
    result = toolkit.optimizers(Gpus("580.82", (13, 0), (H100,), torch_cuda, 1), found, built)
    told = f"{result.seen} | {result.remedy}"
    assert result.status == status and all(part.replace("TORCH", TORCH) in told for part in parts), result
    assert bool(result.remedy) == (status != "ok")


def test_without_a_toolkit_ninja_or_gpu(tmp_path):
    assert "no CUDA toolkit" in toolkit.optimizers(GPUS, Toolkit(environ={"PATH": ""}), Built()).seen
    here = Toolkit(tmp_path, (13, 0), {"PATH": str(tmp_path)})
    assert "no ninja on the PATH" in toolkit.optimizers(GPUS, here, Built()).seen
    assert toolkit.optimizers(Gpus(), here, Built()).status == "ok"


def test_what_is_built_is_read_from_deepspeeds_file_without_its_import(tmp_path, monkeypatch):
    assert toolkit.find_built() == Built()  # the CPU profile builds nothing for CUDA
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed/__init__.py").write_text("raise ImportError('imported')")
    file = tmp_path / "deepspeed/git_version_info_installed.py"
    text = (
        "version='0.19.6'\ninstalled_ops={'cpu_adam': False, 'fused_adam': 1}\n"
        "accelerator_name='cuda'\ntorch_info={'version': '2.13', 'cuda_version': '13.0'}\n"
    )
    spec = type("Spec", (), {"origin": str(tmp_path / "deepspeed/__init__.py")})
    monkeypatch.setattr(toolkit.util, "find_spec", lambda name: spec)
    assert toolkit.find_built() == Built()
    file.write_text(text)
    assert toolkit.find_built() == Built(frozenset({FUSED_ADAM}), "2.13", "13.0")
    file.write_text(text.replace("'cuda'", "'cpu'"))
    assert toolkit.find_built() == Built()


def test_the_lock_of_a_build_is_found(tmp_path):
    """Torch itself takes the lock, in a process that then ends."""
    place = tmp_path / "py311_cu130" / "fused_adam"
    place.mkdir(parents=True)
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert (toolkit.locks(environ).status, toolkit.locks(environ).seen) == ("ok", "none")
    take = (
        "import os, sys; from torch.utils.file_baton import FileBaton; FileBaton(sys.argv[1]).try_acquire(); os.abort()"
    )
    subprocess.run([sys.executable, "-c", take, place / "lock"], capture_output=True)
    stale = toolkit.locks(environ)
    assert stale.status == "warn" and f"{place}/lock: ranks that need the build wait" in stale.seen
    assert stale.remedy.startswith(f"rm {place}/lock, ")


def test_the_rm_of_a_stale_lock_removes_that_file_alone(tmp_path):
    lock, other = tmp_path / "my cache" / "fused_adam" / "lock", tmp_path / "my"
    lock.parent.mkdir(parents=True)
    lock.touch()
    other.touch()
    remedy = toolkit.locks({"TORCH_EXTENSIONS_DIR": str(tmp_path / "my cache")}).remedy
    subprocess.run(remedy.partition(", unless")[0], shell=True, check=True, cwd=tmp_path)
    assert other.exists() and not lock.exists()


SEGMENTS, TOGETHER = "expandable_segments:True", "--train.colocate_all --vllm.num_engines 2"


def test_expandable_segments_are_those_of_torch(tmp_path):
    """Torch reads the first variable that is set, as its own settings show."""
    ask = "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    both = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": SEGMENTS}
    here = {"PATH": "/bin", "HOME": str(tmp_path)} | both
    done = subprocess.run([sys.executable, "-c", ask], env=here, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "max_split_size_mb:64"
    for environ, named in (
        (both, ""),
        ({"PYTORCH_ALLOC_CONF": SEGMENTS}, "PYTORCH_ALLOC_CONF"),
        ({"PYTORCH_CUDA_ALLOC_CONF": f"max_split_size_mb:64, {SEGMENTS}"}, "PYTORCH_CUDA_ALLOC_CONF"),
        ({"PYTORCH_CUDA_ALLOC_CONF": SEGMENTS.replace("True", "False")}, ""),
    ):
        assert gpu.expandable(environ) == named
        assert gpu.allocator(environ).status == ("warn" if named else "ok")
    assert "unset PYTORCH_ALLOC_CONF" in gpu.allocator({"PYTORCH_ALLOC_CONF": SEGMENTS}).remedy


@pytest.fixture
def on_gpu(job, monkeypatch):
    """The `job` of a machine with two GPUs whose toolkit is newer than torch's CUDA."""
    monkeypatch.setattr(gpu, "ask_driver", lambda: ("580.82", (13, 0), (H100, H100)))
    monkeypatch.setattr(gpu, "probe", lambda: GPUS)
    monkeypatch.setattr(toolkit, "find_built", Built)
    monkeypatch.setattr(toolkit, "find_toolkit", lambda environ: Toolkit(Path("/cuda"), (13, 1), environ))
    monkeypatch.setattr(resources, "find_spec", lambda name: None)
    return job


@pytest.mark.parametrize(*cases("doctor", "test_flags_that_the_machine_cannot_serve_are_refused"))
def test_flags_that_the_machine_cannot_serve_are_refused(on_gpu, monkeypatch, capsys, words, variable, said):
    line = on_gpu(f"{words} --device cuda --dry_run")
    if variable:
        monkeypatch.setenv(variable, SEGMENTS)
    told = refusal(capsys, line, train)
    assert all(part in told for part in said.split(" | ")) and "\n" not in told, told
    monkeypatch.setattr(resources, "find_spec", lambda name: name)
    monkeypatch.setattr(toolkit, "find_built", lambda: BOTH)
    monkeypatch.delenv(variable or "NOTHING", raising=False)
    train(line)


def test_offload_with_torchs_cpu_build_is_left_to_the_doctor(on_gpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "probe", lambda: Gpus("580.82", (13, 0), (H100, H100)))
    train(on_gpu("--ds.adam_offload --device cuda --dry_run"))
    assert "dry run: the line can be used" in capsys.readouterr().out


def test_the_cpu_profile_and_other_ways_to_send_weights_are_not_refused(on_gpu, monkeypatch, capsys):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", SEGMENTS)
    for words in (
        f"--ds.adam_offload --ds.use_liger_kernel {TOGETHER} --device cpu",
        "--device cuda",
        f"--device cuda {TOGETHER} --vllm.sync_backend gloo",
    ):
        train(on_gpu(f"{words} --dry_run"))
        assert "dry run: the line can be used" in capsys.readouterr().out


def test_an_old_driver_is_told_of_the_compatibility_package():
    result = gpu.driver(Gpus("550.90", (12, 4), (H100,), "13.0", 0))
    assert result.status == "fail" and "cuda-compat (docs/install.md), or install torch for CUDA 12" in result.remedy
