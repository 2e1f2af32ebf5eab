"""The reward server, asked by OpenRLHF's client and by clients that it must refuse."""

import asyncio
import contextlib
import json
from functools import partial

import aiohttp
import pytest
import torch
from aiohttp import test_utils
from command_lines import refusal
from reward_servers import TOKEN, body

from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.rewards import server
from openrlhf_shear.rewards.client import RewardClient
from openrlhf_shear.rewards.server import build_app
from openrlhf_shear.rewards.settings import check_token, read_token
from openrlhf_shear.rewards.verdict import Verdict


class FakePool:
    """1.0 where the query contains the label; the query "fail" cannot be graded."""

    def __init__(self):
        self.asked: list[tuple] = []

    async def grade(self, query: str, prompt: str, label: object) -> Verdict:
        self.asked.append((query, prompt, label))
        await asyncio.sleep(0)
        if query == "fail":
            return Verdict(None, failure="timeout", detail="took 5 s")
        return Verdict(label in query, extra_logs={"seconds": 0.5})


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(server, "MAX_BODY_MB", 0.01)


def while_served(pool, work, *, path="/get_reward", **connections):
    """Return the result of a coroutine that gets the address of a server with `pool`."""

    async def serve():
        test_server = test_utils.TestServer(build_app(pool, TOKEN))
        await test_server.start_server(**connections)
        async with test_server:
            return await asyncio.wait_for(work(test_server.make_url(path)), 30)

    return asyncio.run(serve())


def ask(pool, sent=None, *, path="/get_reward", method="POST", **headers) -> tuple[int, dict | str]:
    """(status, answer) of one request; `sent` goes as JSON, or as it is where it is bytes."""

    async def send(url):
        body = {"data" if isinstance(sent, bytes) else "json": sent}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers, **body) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    return while_served(pool, send, path=path)


def ask_with_token(pool, sent) -> tuple[int, dict | str]:
    return ask(pool, sent, Authorization=f"Bearer {TOKEN}")


def fetch(pool, query: str, token: str = TOKEN) -> dict:
    agent = pytest.importorskip("openrlhf.utils.agent", exc_type=ImportError)

    def work(url):
        executor = agent.SingleTurnAgentExecutor(str(url.with_user("shear").with_password(token)))
        return executor._fetch_rewards_via_http([query], ["p"], ["42"])

    (info,) = while_served(pool, work)
    return info


def test_openrlhf_gets_plain_numbers_and_no_reward_for_a_failed_sample(pool):
    assert fetch(pool, "it is 42") == {"rewards": 1.0, "scores": 1.0, "extra_logs": {"seconds": 0.5}, "failed": []}
    assert pool.asked == [("it is 42", "p", "42")]
    failed = {"index": 0, "reason": "timeout", "detail": "took 5 s"}
    assert fetch(pool, "fail") == {"rewards": None, "scores": None, "extra_logs": {}, "failed": [failed]}
    info = fetch(pool, "it is 41")
    # what OpenRLHF's samples generator makes of it
    assert torch.tensor([info["rewards"]]).shape == torch.tensor([info["extra_logs"]["seconds"]]).shape == (1,)
    assert info["rewards"] == 0.0


def test_openrlhf_with_a_wrong_token_gets_nothing_and_its_log_does_not_show_the_token(pool, monkeypatch):
    agent = pytest.importorskip("openrlhf.utils.agent", exc_type=ImportError)
    logged, real_sleep = [], asyncio.sleep
    monkeypatch.setattr(agent.logger, "info", logged.append)
    monkeypatch.setattr(agent.asyncio, "sleep", lambda seconds: real_sleep(0))
    with pytest.raises(RuntimeError, match="Request error"):
        fetch(pool, "it is 42", token=TOKEN + "x")
    assert "401" in logged[0] and TOKEN not in "".join(logged)
    assert pool.asked == []


def test_several_queries_are_answered_in_order_and_one_failure_leaves_the_rest(pool):
    status, got = ask_with_token(pool, body("42", "fail", "41"))
    assert status == 200
    assert got["rewards"] == got["scores"] == [1.0, None, 0.0]
    assert got["failed"] == [{"index": 1, "reason": "timeout", "detail": "took 5 s"}]
    assert got["extra_logs"] == {"seconds": [0.5, None, 0.5]}


def test_queries_of_a_request_are_graded_at_the_same_time():
    class Together(FakePool):
        async def grade(self, query, prompt, label):
            self.asked.append((query, prompt, label))
            while len(self.asked) < 3:
                await asyncio.sleep(0.001)
            return Verdict(True)

    assert ask_with_token(Together(), body("a", "b", "c"))[1]["rewards"] == [1.0, 1.0, 1.0]


def test_a_pool_that_breaks_its_promise_is_a_server_error_not_a_reward():
    assert ask_with_token(None, body("42"))[0] == 500


def test_without_the_token_nothing_is_graded(pool):
    wrong = ["Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer caf\u00e9", TOKEN, f"Digest {TOKEN}"]
    wrong += ["Basic !!!", aiohttp.encode_basic_auth("shear", TOKEN + "x"), aiohttp.encode_basic_auth(TOKEN, "")]
    for headers in ({}, *({"Authorization": header} for header in wrong)):
        assert ask(pool, body("42"), **headers) == (401, {"error": "the token is missing or wrong"}), headers
    assert pool.asked == []


def test_the_token_is_taken_as_bearer_or_as_a_password(pool):
    for header in (f"Bearer {TOKEN}", f"bearer  {TOKEN}", aiohttp.encode_basic_auth("anyone", TOKEN)):
        assert ask(pool, body("42"), Authorization=header)[0] == 200


def test_a_token_that_is_missing_or_hard_to_carry_in_a_url_is_refused():
    for token in ("", "  ", "short", "with a space in it", "a@token:of/url%signs?", "x" * 513):
        with pytest.raises(ValueError, match="16 to 512") as error:
            build_app(FakePool(), token)
        assert not token.strip() or token not in str(error.value)
    assert check_token(f" {TOKEN}\n") == TOKEN


def test_a_malformed_request_is_unprocessable_and_says_why(pool):
    for sent in (
        {**body("a", "b"), "labels": ["1"]},
        body(),
        {"query": ["a"], "prompts": ["p"]},
        {**body("a"), "query": "a"},
        {**body("a"), "query": [["a"]]},
        {**body("a"), "prompts": [None]},
        ["a"],
    ):
        status, got = ask_with_token(pool, sent)
        assert status == 422 and "lists of one length" in got["error"] and json.dumps(sent) in got["error"]


def test_a_body_that_is_not_json_is_a_bad_request(pool):
    for sent in (b"", b"{", b"\xff\xfe", b"[" * 9000):
        status, got = ask_with_token(pool, sent)
        assert status == 400 and "must be JSON" in got["error"], sent[:9]


GARBAGE = b"garbage!" * 5


@pytest.mark.parametrize("token", [TOKEN, "another_token.0123"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_body_that_cannot_be_decompressed_is_a_bad_request_without_a_traceback(pool, coding, late, token, caplog):
    async def send(url):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        with contextlib.closing(writer):
            head = f"POST /get_reward HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {token}\r\n"
            head += f"Content-Encoding: {coding}\r\nContent-Length: {len(GARBAGE)}\r\n\r\n"
            writer.write(head.encode())
            if late:
                await asyncio.sleep(0.2)
            writer.write(GARBAGE)
            return await reader.read()  # to the end of the connection

    caplog.set_level("DEBUG")
    said = while_served(pool, send)
    status = b" 400 " if token == TOKEN else b" 401 "
    assert status in said.splitlines()[0] and said.count(b"HTTP/1.1") == 1
    if token == TOKEN:
        assert json.loads(said.rpartition(b"\r\n")[2])["error"].startswith("the body cannot be decoded")
    assert "Traceback" not in caplog.text and pool.asked == []


def test_a_body_over_the_limit_is_too_large_and_says_so(pool):
    status, got = ask_with_token(pool, body("x" * 20_000))
    assert status == 413 and "at most 0.01 MB" in got["error"]
    assert ask_with_token(pool, body("x" * 5_000))[0] == 200


BODY_AFTER_ITS_HEAD = f"Authorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\n{{"
SLOW = {  # what a client sends before it stops, and how the answer begins ("": none)
    "nothing": ("", ""),
    "half a head": ("Author", ""),
    "half a body": (BODY_AFTER_ITS_HEAD, "HTTP/1.1 408"),
}


async def rest_of(reader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:  # hung up on before all that was sent was read
        return b""


@pytest.mark.parametrize("name", SLOW)
def test_a_hundred_slow_clients_delay_no_other_and_are_disconnected(pool, name, monkeypatch):
    sent, answered = SLOW[name]
    monkeypatch.setattr(server, "BODY_SECONDS", 0.5)

    async def work(url):
        slow = []
        for _ in range(100):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(f"POST /get_reward HTTP/1.1\r\nHost: x\r\n{sent}".encode() if sent else b"")
            slow.append((reader, writer))
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
            session.post(url, json=body("42")) as response,
        ):
            assert (await response.json())["rewards"] == 1.0
        said = [(await rest_of(reader)).decode() for reader, _ in slow]
        for _, writer in slow:
            writer.close()
        return said

    said = while_served(pool, work, lingering_time=0.1, keepalive_timeout=2)
    assert [answer[:12] for answer in said] == [answered] * 100
    assert all(("within 0.5 s" in answer) == bool(answered) for answer in said)
    assert len(pool.asked) == 1


def test_texts_and_labels_go_through_as_they_are(pool):
    sent = json.dumps(body("\ud800 42")).encode()
    assert ask_with_token(pool, sent)[1]["rewards"] == 1.0
    assert pool.asked[-1][0] == "\ud800 42"
    for label in (42, None, {"inputs": []}):
        ask_with_token(pool, {**body("fail"), "labels": [label]})
        assert pool.asked[-1][2] == label


def test_health_says_ok_to_anyone_and_nothing_else_is_there(pool):
    assert ask(pool, path="/health", method="GET") == (200, {"status": "ok"})
    for path in ("/", "/docs", "/openapi.json", "/get_reward"):
        assert ask(pool, path=path, method="GET")[0] in (404, 405)


FOLDED = ("Bearer\r\n {}", "Bearer {}\r\n more", "Bearer {}\0", "Bearer {}" + "x" * 9000)
MALFORMED = (
    *(f"Authorization: {value}" for value in FOLDED),
    "Authorization : Bearer {}",
    "Bearer {}",
    "Content-Length: {}",
)


@pytest.mark.parametrize("head", MALFORMED)
def test_a_request_that_is_no_http_is_refused_and_its_token_not_logged(pool, head, caplog):
    async def send(url):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        with contextlib.closing(writer):
            line = head.format(TOKEN)
            writer.write(f"POST /get_reward HTTP/1.1\r\nHost: here\r\n{line}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            return await reader.readline()

    caplog.set_level("DEBUG")
    assert b" 400 " in while_served(pool, send)
    assert "Error handling request from 127.0.0.1: 400, " in caplog.text and TOKEN not in caplog.text


def test_a_token_that_is_folded_into_lines_is_refused_and_not_repeated(tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n {TOKEN}\n")
    for use in (lambda: read_token(tmp_path / "token"), lambda: RewardClient("http://a/", token=f"{TOKEN}\n {TOKEN}")):
        with pytest.raises(ValueError, match="the token must be 16 to 512 letters") as error:
            use()
        assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    ("user", "token", "told"),
    [
        ("", None, "reward.token_file: is needed, since the server wants a token: reward server answered 401 ("),
        ("", "another_token.0123", "reward.token_file: is not the server's token: reward server answered 401 ("),
        ("shear:another_token.0123@", None, "reward.token_file: is not the server's token"),
        ("", TOKEN, None),
    ],
)
def test_a_dry_run_without_the_server_s_token_names_its_flag(pool, job, capsys, monkeypatch, user, token, told):
    monkeypatch.delenv(REWARD_TOKEN, raising=False)
    if token:
        monkeypatch.setenv(REWARD_TOKEN, token)

    async def dry_run(url):
        address = f"http://{user}{url.host}:{url.port}/get_reward"
        line = job(f"--reward.remote_url {address} --dry_run")
        return await asyncio.to_thread(train_ppo_ray.read if told is None else partial(refusal, capsys), line)

    said = while_served(pool, dry_run)
    if told is not None:
        assert told in said and "\n" not in said and f"; use its file, or the environment's {REWARD_TOKEN}" in said
        assert "another_token" not in said
    assert len(pool.asked) == (told is None), "nothing was graded without the token"
