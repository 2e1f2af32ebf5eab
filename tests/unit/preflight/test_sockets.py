"""A temporary folder in whose path the sockets of Ray or vLLM find no room is refused by the name of its variable."""

import os
import re
import tempfile

import pytest
from command_lines import refusal

from openrlhf_shear.preflight.resources import socket_problem
from openrlhf_shear.train.nodes import cluster
from openrlhf_shear.train.screen.outcome import RefusedError

NAMES = ("RAY_TMPDIR", "TMPDIR", "TEMP", "TMP", "VLLM_RPC_BASE_PATH", "RAY_ADDRESS")


@pytest.fixture
def variables(monkeypatch, tmp_path):
    """Sets environment variables to folders whose paths have so many bytes."""

    def put(**lengths: int) -> None:
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, length in lengths.items():
            folder = f"/tmp/{'x' * (length - 5)}"
            os.makedirs(folder, exist_ok=True)
            monkeypatch.setenv(name, folder)
            made.append(folder)
        monkeypatch.setattr(tempfile, "tempdir", None)

    made = []
    yield put
    for folder in set(made):
        os.rmdir(folder)


SESSION = f"/ray/session_2026-11-25_23-51-56_572950_{os.getpid()}/sockets/plasma_store"
RAY = 107 - len(SESSION)  # bytes that the libraries' sockets leave a folder
VLLM = 107 - len("/3f2b8c1e-6a57-4d0e-9f4b-2d1c7e8a9b00")


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ({}, None),
        ({"TMPDIR": RAY}, None),
        (
            {"TMPDIR": RAY + 1},
            f"TMPDIR is too long a path for Ray's sockets.*at most {RAY} bytes, e.g. RAY_TMPDIR=/tmp",
        ),
        ({"RAY_TMPDIR": RAY + 1}, "RAY_TMPDIR is too long a path for Ray's"),
        ({"RAY_TMPDIR": RAY, "TMPDIR": VLLM}, None),
        (
            {"RAY_TMPDIR": RAY, "TMPDIR": VLLM + 1},
            f"TMPDIR is too long a path for vLLM's sockets.*would have 108.*at most {VLLM} bytes, "
            "e.g. VLLM_RPC_BASE_PATH=/tmp",
        ),
        ({"RAY_TMPDIR": RAY, "TMP": VLLM + 1}, "^TMP is too long a path for vLLM's"),
        ({"RAY_TMPDIR": RAY, "TMPDIR": VLLM + 1, "VLLM_RPC_BASE_PATH": VLLM}, None),
        ({"VLLM_RPC_BASE_PATH": VLLM + 1}, "^VLLM_RPC_BASE_PATH is too long a path for vLLM's"),
    ],
)
def test_the_variable_is_named_where_its_folder_is_too_long(variables, lengths, told):
    variables(**lengths)
    problem = socket_problem()
    assert re.search(told, str(problem)) if told else problem is None


def test_a_run_and_an_evaluation_are_refused_before_ray_starts(variables, job, capsys, monkeypatch):
    line = job("--dry_run")
    variables(TMPDIR=90)
    assert "TMPDIR is too long a path for Ray's sockets" in refusal(capsys, line)
    with pytest.raises(RefusedError, match=r"^TMPDIR is too long"):
        cluster.join(1)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # the cluster's folders are not this machine's
    with pytest.raises(RefusedError, match="nothing answers at RAY_ADDRESS"):
        cluster.join(1)


def test_the_limits_are_those_of_the_libraries(variables):
    """Ray's own check and vLLM's own path, without starting either."""
    import zmq
    from ray._private.utils import validate_socket_filepath

    validate_socket_filepath("x" * RAY + SESSION)
    with pytest.raises(OSError, match="AF_UNIX path length cannot exceed 107"):
        validate_socket_filepath("x" * (RAY + 1) + SESSION)
    assert zmq.IPC_PATH_MAX_LEN == 107
