"""Check of the paths of Ray's and vLLM's sockets, which a long temporary folder can make too long."""

import os
import tempfile

from openrlhf_shear.config.refusal import Refusal

MOST = 107  # bytes that the system allows for the path of a Unix socket
_SESSION = "/ray/session_2026-01-31_23-59-59_999999_{pid}/sockets/plasma_store"  # Ray's longest, below its folder
_IPC = "/01234567-89ab-cdef-0123-456789abcdef"  # vLLM's


def ray_folder() -> tuple[str, str]:
    """Return the variable that Ray's temporary folder is read from, and the folder."""
    variable = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), "RAY_TMPDIR")
    return variable, os.environ.get(variable, "/tmp")


def socket_problem() -> Refusal | None:
    """Return a refusal that names the variable to set, if Ray or its vLLM engines could not make sockets here."""
    temporary = next((name for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)), "TMPDIR")
    vllm = os.environ.get("VLLM_RPC_BASE_PATH")
    session = _SESSION.format(pid=os.getpid())
    for who, remedy, variable, folder, below in (
        ("Ray", "RAY_TMPDIR", *ray_folder(), session),
        (
            "vLLM",
            "VLLM_RPC_BASE_PATH",
            "VLLM_RPC_BASE_PATH" if vllm else temporary,
            vllm or tempfile.gettempdir(),
            _IPC,
        ),
    ):
        needed, room = len(os.fsencode(folder + below)), MOST - len(below)
        if needed > MOST:
            problem = f"is too long a path for {who}'s sockets: the system allows {MOST} bytes, and they"
            return Refusal(
                variable,
                f"{problem} would have {needed}",
                folder,
                f"a folder of at most {room} bytes, e.g. {remedy}=/tmp",
            )
    return None
