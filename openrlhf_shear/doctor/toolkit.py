"""Checks of what DeepSpeed compiles: its Adam optimizers, the CUDA toolkit, and locks that a killed build has left.

DeepSpeed loads an optimizer that was built when DeepSpeed was installed. Else each node compiles it at the start of a
run. Even with a cached build that needs nvcc, because DeepSpeed asks nvcc for its version.
"""

import ast
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path

from openrlhf_shear.doctor.gpu import Gpus
from openrlhf_shear.doctor.result import Result, fail, ok, warn

FUSED_ADAM, CPU_ADAM = "fused_adam", "cpu_adam"
INSTALL = "run scripts/install_cluster.sh, which builds both"
_MAJORS_OF_ANY_MINOR = (10, 11, 12)  # DeepSpeed's `cuda_minor_mismatch_ok` has these, and not 13
_NVCC_SECONDS = 30


@dataclass(frozen=True)
class Built:
    """The operators that were built with DeepSpeed, and for what; read from its installed files."""

    ops: frozenset[str] = frozenset()
    torch: str = ""  # "2.13"
    cuda: str = ""  # "13.0"


@dataclass(frozen=True)
class Toolkit:
    """The CUDA toolkit that torch and DeepSpeed find."""

    home: Path | None = None
    version: tuple[int, int] | None = None  # of its nvcc; None if nvcc is missing or does not run
    environ: Mapping[str, str] = field(default_factory=dict)


def find_toolkit(environ: Mapping[str, str], default: Path = Path("/usr/local/cuda")) -> Toolkit:
    """Look where `torch.utils.cpp_extension` looks, in the same order."""
    named, nvcc = environ.get("CUDA_HOME") or environ.get("CUDA_PATH"), shutil.which("nvcc", path=environ.get("PATH"))
    home = Path(named) if named else Path(nvcc).parent.parent if nvcc else default
    if not named and not home.exists():
        return Toolkit(environ=environ)
    try:
        line = [str(home / "bin" / "nvcc"), "--version"]
        words = subprocess.run(line, capture_output=True, text=True, check=True, timeout=_NVCC_SECONDS).stdout.split()
        major, minor = words[words.index("release") + 1].rstrip(",").split(".")[:2]
        return Toolkit(home, (int(major), int(minor)), environ)
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return Toolkit(home, environ=environ)


def find_built() -> Built:
    """Read which operators are built for CUDA, without an import of DeepSpeed."""
    spec = util.find_spec("deepspeed")
    file = Path(spec.origin).with_name("git_version_info_installed.py") if spec and spec.origin else None
    if file is None or not file.is_file():
        return Built()
    lines = (line.partition("=") for line in file.read_text(encoding="utf-8").splitlines())
    read = {name.strip(): ast.literal_eval(value.strip()) for name, _, value in lines if value}
    if read.get("accelerator_name") != "cuda":  # DeepSpeed ignores what was built for another accelerator
        return Built()
    about = read.get("torch_info", {})
    ops = frozenset(name for name, there in read.get("installed_ops", {}).items() if there)
    return Built(ops, about.get("version", ""), about.get("cuda_version", ""))


def is_accepted(toolkit: tuple[int, int], torch_cuda: str, environ: Mapping[str, str]) -> bool:
    """Return whether DeepSpeed 0.19.6 compiles CPU Adam with this toolkit for this CUDA of torch.

    >>> is_accepted((12, 4), "12.8", {}), is_accepted((13, 0), "13.0", {}), is_accepted((13, 1), "13.0", {})
    (True, True, False)
    """
    built = tuple(map(int, torch_cuda.split(".")[:2]))
    loose = toolkit[0] == built[0] and toolkit[0] in _MAJORS_OF_ANY_MINOR
    return toolkit == built or loose or environ.get("DS_SKIP_CUDA_CHECK", "0") == "1"


def compile_problem(name: str, gpus: Gpus, toolkit: Toolkit, built: Built) -> str:
    """Return why DeepSpeed cannot load an operator on this machine; "" if it can."""
    torch_cuda = gpus.torch_cuda or ""
    if name in built.ops:
        same = built.torch == _torch_version() and torch_cuda.startswith(built.cuda)
        refused = (
            f"{name} was built for torch {built.torch} with CUDA {built.cuda}, and DeepSpeed refuses another torch"
        )
        return "" if same else f"{refused} ({_torch_version()} with CUDA {torch_cuda} here)"
    where = f"{name} is not built, and DeepSpeed compiles it at run time"
    if toolkit.home is None:
        return f"{where}: there is no CUDA toolkit (no CUDA_HOME, no nvcc on the PATH, no /usr/local/cuda)"
    if toolkit.version is None:
        named = "CUDA_HOME" if toolkit.environ.get("CUDA_HOME") else "the toolkit's folder"
        return f"{where}: {named} {toolkit.home} has no bin/nvcc that runs"
    number = ".".join(map(str, toolkit.version))
    if toolkit.version[0] != int(torch_cuda.split(".")[0]):
        return f"{where}: nvcc {number} ({toolkit.home}) is not of torch's CUDA {torch_cuda}"
    if name == CPU_ADAM and not is_accepted(toolkit.version, torch_cuda, toolkit.environ):
        message = f"{where}: nvcc {number} is not torch's CUDA {torch_cuda}"
        return f"{message}, so DeepSpeed raises CUDAMismatchException"
    return "" if shutil.which("ninja", path=toolkit.environ.get("PATH")) else f"{where}: there is no ninja on the PATH"


def optimizers(gpus: Gpus, toolkit: Toolkit | None = None, built: Built | None = None) -> Result:
    """Check that DeepSpeed can load FusedAdam, and CPU Adam, which only `--ds.adam_offload` needs."""
    name = "DeepSpeed's Adam"
    if not gpus.devices or not gpus.torch_cuda:
        return ok(name, "not compiled without a GPU")
    toolkit, built = toolkit or find_toolkit(os.environ), built or find_built()
    if problem := compile_problem(FUSED_ADAM, gpus, toolkit, built):
        remedy = f"{INSTALL}; or set CUDA_HOME to a CUDA toolkit {gpus.torch_cuda}"
        return fail(name, problem, remedy)
    if problem := compile_problem(CPU_ADAM, gpus, toolkit, built):
        remedy = f"{INSTALL}; or install CUDA toolkit {gpus.torch_cuda}; no action without --ds.adam_offload"
        return warn(name, problem, remedy)
    lacking = [op for op in (FUSED_ADAM, CPU_ADAM) if op not in built.ops]
    if not lacking:
        return ok(name, "built with DeepSpeed", "built with DeepSpeed")
    when = f"{' and '.join(lacking)}, compiled in the first run"
    return ok(name, f"{when} by {toolkit.home}/bin/nvcc", when)


def locks(environ: Mapping[str, str] = os.environ) -> Result:
    """Find locks in the cache of torch's extensions: a build that was killed leaves its lock, and ranks wait for it."""
    name, folder = "compiler locks", extensions_folder(environ)
    # Below TORCH_EXTENSIONS_DIR a folder for each extension; else first a folder for each Python and CUDA.
    patterns = ("*/lock", "*/*/lock") if os.path.isdir(folder) else ()  # glob raises where no folder can be searched
    if found := sorted(lock for pattern in patterns for lock in folder.glob(pattern) if lock.is_file()):
        remedy = f"{shlex.join(['rm', *map(str, found)])}, unless a run here, or on a node that shares it, compiles now"
        return warn(name, f"{', '.join(map(str, found))}: ranks that need the build wait until it is gone", remedy)
    return ok(name, "none")


def extensions_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which torch compiles extensions."""
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or Path(cache, "torch_extensions"))


def _torch_version() -> str:
    return ".".join(metadata.version("torch").split(".")[:2])
