"""Settings of a machine that forbid user namespaces, and the way to grade on another machine."""

from collections.abc import Iterator
from pathlib import Path

SERVER = "python -m openrlhf_shear.cli.serve_reward --reward code --host 0.0.0.0"
ADDRESS = "--reward.remote_url http://HOST:5000/get_reward"
ELSEWHERE = f"or grade on a machine that has a jail (docs/rewards.md): there {SERVER}, here {ADDRESS}"


def forbids(root: Path = Path("/")) -> Iterator[str]:
    """Yield each setting of this machine or container that forbids user namespaces, with its remedy.

    Args:
        root: folder that holds /proc.
    """
    for name, forbidding, remedy in (
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0 on the host, or an AppArmor profile for bwrap",
        ),
    ):
        if _read(root / "proc/sys" / name) == forbidding:
            yield f"{name.replace('/', '.')} is {forbidding}: {remedy}"
    profile = _read(root / "proc/self/attr/current").split(" ")[0]
    if profile not in ("", "unconfined"):
        yield f"AppArmor confines this process ({profile}): docker run --security-opt apparmor=unconfined"
    status = dict(line.split(":", 1) for line in _read(root / "proc/self/status").splitlines() if ":" in line)
    if status.get("Seccomp", "0").strip() == "2":
        yield "a seccomp filter is on this process: docker run --security-opt seccomp=unconfined"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip().rstrip("\0")
    except OSError:
        return ""
