"""Reward servers for tests of the client, and calls of them."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable

from aiohttp import test_utils, web

from openrlhf_shear.rewards.client import RewardClient
from openrlhf_shear.rewards.verdict import Verdict

TOKEN = "a-token_of-tests.0123"
LONG = 60.0  # seconds that no test waits


def body(*queries: str) -> dict:
    """A request, whose labels are all 42."""
    return {"query": list(queries), "prompts": ["p"] * len(queries), "labels": ["42"] * len(queries)}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def serving(answer: Callable[[dict, int], object], port: int | None = None) -> AsyncIterator[tuple[str, list]]:
    """Yield a server's URL and its clients' ports; `answer` gets the request and its number from 0."""
    asked = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.transport.get_extra_info("peername")[1])
        said = answer(await request.json(), len(asked) - 1)
        said = await said if asyncio.iscoroutine(said) else said
        return said if isinstance(said, web.Response) else web.json_response(said)

    app = web.Application()
    app.router.add_post("/get_reward", handle)
    async with test_utils.TestServer(app, port=port) as server:
        yield str(server.make_url("/get_reward")), asked


@contextlib.contextmanager
def silent(accepts: bool):
    """Yield the URL of a listener that never answers; if it accepts no connection, connecting takes for ever."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=512 if accepts else 0) as listener,
        contextlib.ExitStack() as full,
    ):
        for _ in range(0 if accepts else 4):
            waiting = full.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/get_reward"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def asked_of(url: str, label: object = "42", calls: int = 1, **options) -> list[Verdict]:
    """The verdicts of calls, one after the other, by a new client."""
    client = RewardClient(url, **options)
    try:
        return [await client.grade("q 42", "q", label) for _ in range(calls)]
    finally:
        await client.close()


def grade(url: str, **options) -> list[Verdict]:
    return asyncio.run(asked_of(url, **options))


def while_serving(answer, **options) -> tuple[list[Verdict], list[int]]:
    async def work():
        async with serving(answer) as (url, ports):
            return await asked_of(url, **options), ports

    return asyncio.run(work())


def good(request: dict, _: int) -> dict:
    return {"rewards": 0.5, "scores": 1.0, "extra_logs": {"seen": float(request["labels"][0])}}


@contextlib.asynccontextmanager
async def answering(answer: Callable[[int], bytes], later: float = 0.0) -> AsyncIterator[str]:
    """The URL of a server that writes what `answer` says of each request's label, and an answer of 99 after label 3."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
                label = int(b"0" + re.search(rb'"labels": \["(\d*)"', body)[1])
                writer.write(answer(label))
                if label == 3:
                    await asyncio.sleep(later)
                    writer.write(answer(99))

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/get_reward"
