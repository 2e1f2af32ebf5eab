"""The command of the reward server: what it refuses, serves and ends, and its TLS."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request

import pytest
from cases import cases
from command_lines import refusal
from reward_servers import TOKEN, body

from openrlhf_shear.cli import serve_reward as cli
from openrlhf_shear.config.secrets import REWARD_TOKEN


def test_the_command_refuses_to_start_without_a_token(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv(REWARD_TOKEN, raising=False)
    line = ["--reward", "math"]
    assert "a token is needed" in refusal(capsys, line, cli.main)
    monkeypatch.setenv(REWARD_TOKEN, "")
    assert "got 0 characters" in refusal(capsys, line, cli.main)
    (tmp_path / "token").write_text("\n")
    monkeypatch.setenv(REWARD_TOKEN, TOKEN)
    assert "got 0 characters" in refusal(capsys, [*line, "--token-file", tmp_path / "token"], cli.main)


@pytest.mark.parametrize(*cases("rewards", "test_the_command_refuses_numbers_and_files_that_cannot_be"))
def test_the_command_refuses_numbers_and_files_that_cannot_be(capsys, monkeypatch, flag, said):
    monkeypatch.setenv(REWARD_TOKEN, TOKEN)
    assert said in refusal(capsys, ["--reward", "math", flag], cli.main)


@contextlib.contextmanager
def served(folder, *words: str, scheme: str = "http"):
    """The address of a server of a reward file, and its process."""
    (folder / "reward.py").write_text(
        "import time\ndef reward_func(queries, prompts, labels):\n    if queries == ['hang']: time.sleep(3600)\n"
        "    return {'rewards': float(labels[0] in queries[0])}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--reward", str(folder / "reward.py"), "--port", str(port), "--cores", "1", *words]
    command = [sys.executable, "-m", "openrlhf_shear.cli.serve_reward", *words]
    process = subprocess.Popen(command, env=os.environ | {REWARD_TOKEN: TOKEN}, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not answers(f"{scheme}://127.0.0.1:{port}/health"):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        yield f"{scheme}://127.0.0.1:{port}/get_reward", process
    finally:
        process.kill()
        process.wait()


def test_the_command_serves_a_file_frees_the_core_of_a_client_that_hung_up_and_stops_cleanly(tmp_path):
    def request(*queries: str) -> urllib.request.Request:
        return urllib.request.Request(url, json.dumps(body(*queries)).encode(), {"Authorization": f"Bearer {TOKEN}"})

    with served(tmp_path, "--timeout", "180") as (url, process):
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(request("hang"), timeout=2.0)
        with urllib.request.urlopen(request("42", "41"), timeout=120.0) as response:
            assert json.load(response)["rewards"] == [1.0, 0.0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


CLIENT = """\
import asyncio, sys
from openrlhf_shear.rewards.client import RewardClient
from openrlhf_shear.rewards.settings import read_token
client = RewardClient(sys.argv[1], retries=0, token=read_token(None))
verdict = asyncio.run(client.grade("the answer is 42", "", "42"))
print(verdict.reward, verdict.why)
"""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_over_tls_the_authority_comes_from_the_environment_and_so_does_the_token(tmp_path):
    for made in ("cert", "other"):  # `other` is an authority that did not sign
        name = [*("-subj", "/CN=reward"), *("-addext", "subjectAltName=IP:127.0.0.1")]
        files = ["-keyout", tmp_path / f"{made}.key", "-out", tmp_path / f"{made}.pem"]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *name, *files],
            check=True,
            stderr=subprocess.DEVNULL,
        )
    cert, key = tmp_path / "cert.pem", tmp_path / "cert.key"
    said = {}
    with served(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key), scheme="https") as (url, _):
        for name, more in (
            ("trusted", {"SSL_CERT_FILE": str(cert), REWARD_TOKEN: TOKEN}),
            ("not trusted", {"SSL_CERT_FILE": str(tmp_path / "other.pem"), REWARD_TOKEN: TOKEN}),
            ("wrong token", {"SSL_CERT_FILE": str(cert), REWARD_TOKEN: TOKEN + "x"}),
        ):
            run = subprocess.run(
                [sys.executable, "-c", CLIENT, url], env=os.environ | more, capture_output=True, text=True
            )
            said[name] = run.stdout.strip()
    assert said == {
        "trusted": "1.0 None",
        "not trusted": "None reward server not trusted",
        "wrong token": "None reward server answered 401",
    }


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, context=ssl._create_unverified_context()).status == 200
    except OSError:
        return False


def test_only_other_machines_without_tls_are_warned_about():
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert cli.exposure(host, tls=False) is None
    for host in ("0.0.0.0", "10.0.0.1", "::", "example.org"):
        assert "clear text" in cli.exposure(host, tls=False)
        assert cli.exposure(host, tls=True) is None
