"""OpenRLHF's remote reward protocol over HTTP, with a token.

    POST /get_reward  {"query": [...], "prompts": [...], "labels": [...]}, three lists of one length
    200               {"rewards": ..., "scores": ..., "extra_logs": {...}, "failed": [{"index", "reason", "detail"}]}
    GET /health       200 {"status": "ok"}, without a token

OpenRLHF asks for one query at a time and makes a one-element tensor of every value. So the server answers one query
with plain numbers, and several with lists. A sample that cannot be graded is null in `rewards` and `scores`, and
`failed` has its reason; the other samples of the request are unaffected. In the lists of `extra_logs`, null marks a
sample without that value; the answer to one query leaves its name out.

The token is a bearer token, which this fork's client sends, or the password of HTTP basic auth (any user name).
OpenRLHF's own client can only carry it in the URL, http://shear:TOKEN@host:port/get_reward, which aiohttp sends as
basic auth and keeps out of its error messages.
401 the token is missing or wrong; 408 the body took too long; 413 it is too large; 400 it is not JSON; 422 it is not
the object above. 400 also means that the body is not compressed as its Content-Encoding says. When a client hangs up,
its grades are ended.
"""

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import Sequence

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from openrlhf_shear.rewards.pool import RewardPool
from openrlhf_shear.rewards.settings import check_token
from openrlhf_shear.rewards.verdict import Verdict, as_answer, as_failed

MAX_BODY_MB = 64
BODY_SECONDS = 60.0  # to receive a body
# Options of aiohttp's server. The timeout runs from the connection or the last answer to the next request's head. It is
# longer than clients keep an idle connection (aiohttp's: 15 s). Cancellation ends the grades of clients that hung up.
CONNECTIONS = {"keepalive_timeout": 30.0, "handler_cancellation": True}


class BadRequest(ValueError):
    """A body that is JSON but no request; the message says why."""


def build_app(pool: RewardPool, token: str) -> web.Application:
    """Return the server as an aiohttp application, to be run with `CONNECTIONS`. The caller closes `pool`.

    Raises:
        ValueError: the token is not usable (`check_token`).
    """
    expected = check_token(token).encode()
    logging.getLogger("aiohttp.server").addFilter(_without_the_line)

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def get_reward(request: web.Request) -> web.Response:
        if not hmac.compare_digest(_token_of(request), expected):
            return _refusal(401, "the token is missing or wrong", {hdrs.WWW_AUTHENTICATE: 'Basic realm="rewards"'})
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
            samples = read_samples(json.loads(body))
        except TimeoutError:
            late = _refusal(408, f"the body must arrive within {BODY_SECONDS:g} s; send it at once")
            late.force_close()
            return late
        except web.HTTPRequestEntityTooLarge:
            return _refusal(413, f"the body must be at most {MAX_BODY_MB:g} MB; send fewer queries in one request")
        except web.RequestPayloadError:
            coding = request.headers.get(hdrs.CONTENT_ENCODING, "none")
            torn = _refusal(400, f"the body cannot be decoded (Content-Encoding: {coding}); send plain JSON")
            torn.force_close()
            return torn
        except BadRequest as error:
            return _refusal(422, str(error))
        except (ValueError, RecursionError) as error:
            return _refusal(400, f"the body must be JSON in UTF-8: {error}")
        return web.json_response(answer(await asyncio.gather(*(pool.grade(*sample) for sample in samples))))

    app = web.Application(client_max_size=int(MAX_BODY_MB * 1e6))
    app.router.add_get("/health", health)
    app.router.add_post("/get_reward", get_reward)
    return app


def read_samples(body: object) -> list[tuple[str, str, object]]:
    """Return (query, prompt, label) of each sample of a request. A label may be any JSON value.

    Raises:
        BadRequest: a field is missing or no list, a query or prompt is no text, or the lists differ in length.
    """
    lists = [body.get(field) for field in ("query", "prompts", "labels")] if isinstance(body, dict) else []
    fits = all(isinstance(each, list) for each in lists) and len(set(map(len, lists))) == 1
    if not fits or not lists[0] or not all(isinstance(text, str) for text in (*lists[0], *lists[1])):
        raise BadRequest(
            "the body must be an object with query, prompts and labels: lists of one length, at least 1, and texts but "
            f"for the labels; got {json.dumps(body)[:200]}"
        )
    return list(zip(*lists, strict=True))


def answer(verdicts: Sequence[Verdict]) -> dict:
    """Return the response to a request, with `verdicts` in its order."""
    if len(verdicts) == 1:
        return as_answer(verdicts[0])
    names = sorted({name for verdict in verdicts for name in verdict.extra_logs})
    return {
        "rewards": [verdict.reward for verdict in verdicts],
        "scores": [verdict.score for verdict in verdicts],
        "extra_logs": {name: [verdict.extra_logs.get(name) for verdict in verdicts] for name in names},
        "failed": as_failed(verdicts),
    }


def _token_of(request: web.Request) -> bytes:
    """Return the token of the Authorization header; b"" if it carries nothing readable."""
    kind, _, value = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    value = value.strip().encode(errors="replace")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return value if kind.lower() == "bearer" else b""


def _without_the_line(record: logging.LogRecord) -> bool:
    """Shorten what aiohttp logs of a faulty request: a line that is no HTTP can hold the token, in a folded header."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg, record.args = f"{record.getMessage()}: {error.code}, {type(error).__name__}", ()
        record.exc_info = record.exc_text = None
    elif isinstance(error, web.RequestPayloadError):  # aiohttp reads the rest of a body after the answer
        record.msg, record.args, record.exc_info = "a body could not be decoded", (), None
    return True


def _refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": reason}, status=status, headers=headers)
