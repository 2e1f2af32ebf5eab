"""Answers that no reward server should give: none is taken for a reward, read without end, or sent elsewhere."""

import asyncio
import contextlib
import gzip

import pytest
from aiohttp import test_utils, web
from reward_servers import TOKEN, answering, asked_of, good, serving, while_serving

from openrlhf_shear.rewards import client as module
from openrlhf_shear.rewards.client import RewardClient

pytestmark = pytest.mark.usefixtures("short_back_off")


def test_a_surplus_answer_is_no_reward():
    def answer(label: int) -> bytes:
        body = f'{{"rewards": {label}}}'
        return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    async def work(later: float):
        async with answering(answer, later) as url:
            client = RewardClient(url, retries=0)
            verdicts = []
            for label in range(8):
                verdicts.append(await client.grade("q", "q", str(label)))
                await asyncio.sleep(2 * later)
            await client.close()
            return [verdict.reward for verdict in verdicts]

    for later in (0.0, 0.05):
        assert asyncio.run(work(later)) == [*range(8)]


def test_a_length_that_lies_is_late():
    async def work():
        async with answering(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{") as url:
            return await asked_of(url, timeout=0.5, retries=0)

    assert asyncio.run(work())[0].failure == "reward server timed out"


def test_an_answer_is_read_up_to_a_limit():
    taken = []

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(OSError):
            while len(taken) < 4096:
                await response.write(b" " * (1 << 16))
                taken.append(1 << 16)
        return response

    async def work():
        app = web.Application()
        app.router.add_post("/get_reward", endless)
        async with test_utils.TestServer(app) as server:
            return await asked_of(str(server.make_url("/get_reward")))

    (verdict,) = asyncio.run(work())
    assert verdict.failure == "reward server answered too much" and "over 1048576 bytes" in verdict.detail
    assert "after 1 of 3 tries" in verdict.detail and sum(taken) < 64 * module.MOST_BYTES


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP", "gzip, gzip", "br"])
def test_a_compressed_answer_is_not_unpacked(coding, monkeypatch):
    bomb = web.Response(body=gzip.compress(b" " * (64 << 20)), headers={"Content-Encoding": coding})
    seen = []
    monkeypatch.setattr(module.json, "loads", seen.append)
    (verdict,), _ = while_serving(lambda *_: bomb)
    assert verdict.failure == "reward server answered compressed" and coding in verdict.detail and seen == []


def test_a_failure_that_a_server_tells_is_cut():
    told = {"failed": [{"reason": "x:" * 100_000, "detail": f"{TOKEN} http://" * 10_000}]}
    (verdict,), _ = while_serving(lambda *_: told, token=TOKEN)
    assert len(verdict.why) == 80 and len(verdict.detail) == 500 and TOKEN not in verdict.detail


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_prompt_and_label_go_to_no_other_address(status):
    async def work():
        async with serving(good) as (other, followed):
            astray = web.Response(status=status, headers={"Location": other.replace("//", "//u:p@") + "?key=secret"})
            async with serving(lambda *_: astray) as (url, first):
                (verdict,) = await asked_of(url.replace("//", f"//shear:{TOKEN}@"))
                return verdict, len(followed), len(first), other

    verdict, followed, first, other = asyncio.run(work())
    assert (verdict.why, followed, first) == (f"reward server answered {status}", 0, 1)
    assert f"to {other}, which is not followed" in verdict.detail
    assert "secret" not in verdict.detail
