"""Client of OpenRLHF's remote reward protocol (see `server`), for servers that may be down, slow or wrong."""

import asyncio
import errno
import itertools
import json
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import aiohttp
from yarl import URL

from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.rewards.breaker import Breaker, Ticket
from openrlhf_shear.rewards.settings import RETRIES, SERVER_SECONDS, check_token
from openrlhf_shear.rewards.verdict import Failure, Verdict, of_texts, read_reward

CONNECT_SECONDS = 10.0
BACK_OFF_SECONDS = 0.2  # before the first further try; twice as long before each later one
RESTART_SECONDS = 2.0  # the same where nothing answered and there is no other server; four times as long before each
POLL_SECONDS = 0.5  # between looks whether a server's trial has ended
FAILURES = 3  # of a server in a row, not under way together, before the client leaves it alone for a while
MOST_AT_ONCE = 256  # calls under way; further calls wait here, and no timeout counts the wait
MOST_BYTES = 1 << 20  # of an answer to one rollout
_MOST_REASON, _MOST_DETAIL = 80, 500  # characters of a failure that a server reports
_GATEWAY = (502, 503, 504)  # nothing behind the address answers
_AGAIN = (408, 429)  # the only refusals that a retry may lift


class _Server(NamedTuple):
    url: URL
    breaker: Breaker


class _CallError(Exception):
    """A failed call, with what its verdict says."""

    def __init__(self, failure: Failure, detail: str, *, which: str = "", again: bool, answered: bool) -> None:
        super().__init__(failure, detail)
        self.failure, self.which, self.detail = failure, which, detail
        self.again, self.answered = again, answered  # whether to retry; whether the server is up


class RewardClient:
    """Client that asks reward servers in turn, a rollout a call, and retries a failed call at the next server.

    A server that refuses, times out or is missing behind its gateway `FAILURES` times in a row is left alone for a
    while (`breaker`). While all servers are left alone, rollouts wait, each at most the timeout of a call in all.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        timeout: float = 0.0,
        retries: int = RETRIES,
        token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            urls: of the servers; a text may hold several, separated by commas. A URL with user and token is asked with
                basic auth.
            timeout: seconds a call may take in all, at most `CONNECT_SECONDS` of them to connect; 0 for
                `SERVER_SECONDS`.
            retries: further tries of a call.
            token: bearer token for servers whose URL has no user.
            clock: of the breakers.

        Raises:
            ValueError: there is no URL, a URL is no http(s) address, the timeout or retries are negative, or the token
                is not usable (`check_token`).
        """
        texts = urls.split(",") if isinstance(urls, str) else urls
        self._servers = [_Server(_address(text), Breaker(FAILURES, clock, together=True)) for text in texts]
        if not self._servers:
            raise ValueError("a reward client needs at least one URL: got none; use e.g. http://host:5000/get_reward")
        if not 0 <= timeout < float("inf") or retries < 0:
            raise ValueError(f"timeout and retries must be at least 0: got {timeout}, {retries}; use 0 and {RETRIES}")
        self._seconds, self._retries = timeout or SERVER_SECONDS, retries
        self._connect_seconds = min(CONNECT_SECONDS, self._seconds)
        self._token = token and check_token(token)
        self._secrets = {token} - {None}
        for url, _ in self._servers:
            texts = url.password, url.raw_password, url.query_string, url.raw_query_string, *url.query.values()
            self._secrets |= {text for text in texts if text}
        self._turn = itertools.count()
        self._session: aiohttp.ClientSession | None = None

    async def grade(self, query: str, prompt: str, label: object) -> Verdict:
        """Return the verdict on a response; a failure if no server gives a verdict.

        Args:
            query: prompt and response, decoded.
            label: any JSON value.
        """
        try:
            body = json.dumps({"query": [query], "prompts": [prompt], "labels": [label]}).encode()
        except (TypeError, ValueError, RecursionError) as error:
            return Verdict(None, failure=Failure.NOT_JSON, detail=f"{type(error).__name__}: {error}"[:500])
        first, failed = next(self._turn), None
        if self._session is None:
            self._open()
        tries, waited = 0, 0.0
        while True:
            async with self._room:
                server, ticket = self._admitted(first + tries)
                if server is not None:
                    answered = None
                    try:
                        output = await self._post(server, body)
                        answered = True
                        return self._shown(read_reward(output))
                    except _CallError as error:
                        answered, tries = error.answered, tries + 1
                        cause = hidden(error.detail, *self._secrets)[:400]
                        detail = f"{_shown(server.url)} {cause} (after {tries} of {self._retries + 1} tries)"
                        failed = Verdict(None, failure=error.failure, which=error.which, detail=detail)
                        if not error.again or tries > self._retries:
                            return failed
                    finally:
                        server.breaker.settle(ticket, answered)
            if server is not None and (answered or len(self._servers) > 1):
                pause = BACK_OFF_SECONDS * 2 ** (tries - 1)
            elif server is not None:
                pause = min(RESTART_SECONDS * 4 ** (tries - 1), self._seconds)
            else:
                pause = max(POLL_SECONDS, min(each.breaker.seconds_left for each in self._servers))
                waited += pause
                if waited > self._seconds:
                    return failed or self._down()
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the connections. A later call, perhaps of another event loop, opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> None:
        wait = aiohttp.ClientTimeout(total=self._seconds, connect=self._connect_seconds)
        # Each call has its own connection, so that a server's extra answer reaches no other call. Answers are not
        # decompressed: they could grow to any size.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(timeout=wait, connector=connector, auto_decompress=False)
        self._room = asyncio.Semaphore(MOST_AT_ONCE)

    def _shown(self, verdict: Verdict) -> Verdict:
        """Shorten a failure that a server reports, and hide the secrets in it: it may repeat what it was sent."""
        if verdict.failure is None:
            return verdict
        why, detail = (hidden(text, *self._secrets) for text in (verdict.why, verdict.detail))
        return of_texts(None, failure=why[:_MOST_REASON], detail=detail[:_MOST_DETAIL])

    def _admitted(self, first: int) -> tuple[_Server, Ticket] | tuple[None, None]:
        """Return the first server in turn that may be asked, and its breaker's ticket."""
        for at in range(len(self._servers)):
            server = self._servers[(first + at) % len(self._servers)]
            ticket = server.breaker.admit()
            if ticket is not None:
                return server, ticket
        return None, None

    def _down(self) -> Verdict:
        shown = [f"{_shown(it.url)} (tried again in {it.breaker.seconds_left:.0f} s)" for it in self._servers]
        detail = f"{FAILURES} calls in a row failed, of each of: {', '.join(shown)}; is a reward server running there?"
        return Verdict(None, failure=Failure.SERVER_DOWN, detail=detail)

    async def _post(self, server: _Server, body: bytes) -> object:
        """Send a request, and return the JSON value that the server answers.

        Raises:
            _CallError: there is no answer, its status is an error or a redirect, or it is not JSON.
        """
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._token and not server.url.user:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            async with self._session.post(server.url, data=body, headers=headers, allow_redirects=False) as response:
                status, text = response.status, await _read(response)
        except (aiohttp.ClientError, OSError) as error:  # OSError includes the TimeoutError of the whole call
            problem = f"{type(error).__name__}: {str(error) or 'without a message'}"
            failure = _failure(error)
            which = type(error).__name__ if failure is Failure.SERVER_RAISED else ""
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                problem += f", no connection in {self._connect_seconds:g} s"
            elif isinstance(error, TimeoutError):
                problem += f", no answer in {self._seconds:g} s; --reward.timeout allows more"
            raise _CallError(failure, problem, which=which, again=True, answered=False) from error
        shown = hidden(text[:5000].decode(errors="replace"), *self._secrets)[:200]
        if status >= 300:
            again, gone = status >= 500 or status in _AGAIN, status in _GATEWAY
            detail = f"HTTPStatus: {status} {response.reason or ''}{_elsewhere(response)}: {shown!r}"
            raise _CallError(Failure.SERVER_ANSWERED, detail, which=str(status), again=again, answered=not gone)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            detail = f"{type(error).__name__}: {error}: {shown!r}"
            raise _CallError(Failure.SERVER_NO_JSON, detail, again=True, answered=True) from error


def _shown(url: URL) -> str:
    """Return an address without user, token and query."""
    return str(url.with_user(None).with_query(None).with_fragment(None))


def _failure(error: aiohttp.ClientError | OSError) -> Failure:
    if isinstance(error, TimeoutError):
        return Failure.SERVER_LATE
    if isinstance(error, aiohttp.ClientSSLError):
        return Failure.SERVER_NOT_TRUSTED
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = isinstance(error.os_error, ConnectionRefusedError)
        return Failure.SERVER_REFUSED if refused else Failure.SERVER_UNREACHABLE
    reset = isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)
    if reset or isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError):
        return Failure.SERVER_HUNG_UP
    return Failure.SERVER_RAISED


def _address(text: str) -> URL:
    try:
        url = URL(text.strip())
        if url.scheme in ("http", "https") and url.host:
            return url
    except ValueError:
        pass
    shown = text.rpartition("@")[2]  # the part before the @ may hold a token
    raise ValueError(f"a reward server must be an http(s) address: got {shown!r}; use e.g. http://host:5000/get_reward")


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an answer.

    Raises:
        _CallError: the body is larger than `MOST_BYTES`, or compressed.
    """
    coding = response.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        detail = f"Content-Encoding {coding[:40]!r} although the request asks for none"
        raise _CallError(Failure.SERVER_COMPRESSED, detail, again=False, answered=True)
    text = bytearray()
    async for part in response.content.iter_any():
        text += part
        if len(text) > MOST_BYTES:
            raise _CallError(Failure.SERVER_TOO_MUCH, f"over {MOST_BYTES} bytes", again=False, answered=True)
    return bytes(text)


def _elsewhere(response: aiohttp.ClientResponse) -> str:
    """Name the target of a redirect, which is not followed: prompt and label are for the named server alone."""
    try:
        target = response.url.join(URL(response.headers["Location"])) if response.status < 400 else None
    except (KeyError, ValueError):
        return ""
    return f" to {_shown(target)}, which is not followed" if target else ""
