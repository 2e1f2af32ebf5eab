"""The client of reward servers, against real ones: healthy, refused, silent, slow, broken, coming back."""

import asyncio
import base64
import json

import pytest
from aiohttp import test_utils, web
from reward_servers import (
    LONG,
    TOKEN,
    Clock,
    answering,
    asked_of,
    free_port,
    good,
    grade,
    serving,
    silent,
    while_serving,
)

from openrlhf_shear.rewards import client as module
from openrlhf_shear.rewards.client import FAILURES, RewardClient
from openrlhf_shear.rewards.server import build_app
from openrlhf_shear.rewards.verdict import Verdict

pytestmark = pytest.mark.usefixtures("short_back_off")

# ── Answers ──


def test_a_healthy_server_is_asked_in_openrlhfs_words_over_a_connection_a_call():
    requests = []
    verdicts, ports = while_serving(lambda request, n: requests.append(request) or good(request, n), calls=4)
    assert requests[0] == {"query": ["q 42"], "prompts": ["q"], "labels": ["42"]}
    assert [(v.reward, v.score, v.extra_logs, v.failure) for v in verdicts] == [(0.5, 1.0, {"seen": 42.0}, None)] * 4
    assert len(set(ports)) == 4


def test_a_slow_answer_in_time_is_an_answer():
    async def slowly(request, _):
        await asyncio.sleep(0.3)
        return good(request, 0)

    assert while_serving(slowly, timeout=LONG)[0][0].reward == 0.5
    assert while_serving(slowly, timeout=0.05, retries=0)[0][0].failure == "reward server timed out"


def test_what_this_forks_server_says_of_a_failed_sample_is_kept_and_the_token_is_used():
    class Pool:
        async def grade(self, query, prompt, label):
            return Verdict(None, failure="timeout", detail="took 5 s") if label is None else Verdict(True)

    async def work():
        async with test_utils.TestServer(build_app(Pool(), TOKEN)) as server:
            url = server.make_url("/get_reward")
            url, wrong = (str(url.with_user("shear").with_password(token)) for token in (TOKEN, TOKEN + "x"))
            return await asked_of(url) + await asked_of(url, None) + await asked_of(wrong)

    right, failed, refused = asyncio.run(work())
    assert right.reward == 1.0
    assert (failed.failure, failed.detail) == ("timeout", "took 5 s")
    assert refused.why == "reward server answered 401" and "the token is missing or wrong" in refused.detail
    assert "after 1 of 3 tries" in refused.detail and TOKEN not in refused.detail


@pytest.mark.parametrize("in_url", [True, False])
def test_a_server_that_echoes_requests_shows_no_secret(in_url):
    async def echo(request: web.Request) -> web.Response:
        said = f"{dict(request.headers)} {request.url} {TOKEN} key-of-the-query"
        failed = {"failed": [{"reason": said, "detail": said}]}
        answers = {"/500": web.Response(status=500, text=said), "/failed": web.json_response(failed)}
        return answers.get(request.path, web.Response(text=said))

    async def work():
        app = web.Application()
        app.router.add_post("/{kind}", echo)
        async with test_utils.TestServer(app) as server:
            verdicts = []
            for kind in ("500", "failed", "no_json"):
                url = server.make_url(f"/{kind}").with_query(key="key-of-the-query")
                url = url.with_user("shear").with_password(TOKEN) if in_url else url
                verdicts += await asked_of(str(url), retries=0, token=None if in_url else TOKEN)
            return verdicts

    basic = base64.b64encode(f"shear:{TOKEN}".encode()).decode()
    for verdict in asyncio.run(work()):
        told = verdict.why + verdict.detail
        assert "Authorization" in told and not any(secret in told for secret in (TOKEN, "key-of-the-query", basic)), (
            told
        )


def test_a_server_s_words_cannot_look_like_lines_of_the_run():
    mark = "\n[openrlhf_shear] the run ended with exit code 0\x1b[2J\u202e"
    app = {"failed": [{"reason": f"busy{mark}", "detail": f"no room{mark}"}]}
    (failed,), _ = while_serving(lambda *_: app)
    (wrong,), _ = while_serving(lambda *_: web.Response(status=400, text=mark))
    for verdict in (failed, wrong):
        told = verdict.why + verdict.detail
        assert "[openrlhf_shear] the run ended" in told and told.isprintable()


def test_errors_of_a_server_are_tried_again_and_refusals_of_a_request_are_not():
    for status, requests in ((500, 3), (503, 3), (429, 3), (408, 3), (400, 1), (404, 1), (422, 1)):
        verdicts, ports = while_serving(lambda *_, status=status: web.Response(status=status, text="oh"))
        assert verdicts[0].why == f"reward server answered {status}" and "'oh'" in verdicts[0].detail
        assert len(ports) == requests, status
    verdicts, ports = while_serving(lambda request, n: good(request, n) if n == 2 else web.Response(status=500))
    assert verdicts[0].reward == 0.5 and len(ports) == 3
    (verdict,), _ = while_serving(lambda request, n: good(request, n) if n else web.Response(status=500), retries=0)
    assert verdict.failure


def test_an_error_of_one_sample_does_not_close_the_server_to_the_others():
    def grades_but_one_prompt(request, n):
        return web.Response(status=500) if n < 3 * FAILURES else good(request, n)

    verdicts, ports = while_serving(grades_but_one_prompt, calls=3 * FAILURES + 1, retries=0)
    assert verdicts[-1].reward == 0.5 and len(ports) == 3 * FAILURES + 1


def test_an_answer_that_is_no_reward_is_a_failure():
    for text, failure in (
        ("<html>welcome</html>", "reward server answered no JSON"),
        ("[" * 100_000, "reward server answered no JSON"),
        ("", "reward server answered no JSON"),
        ("[1.0]", "returned no dict"),
        ("{}", "returned None"),
        ('{"rewards": NaN}', "not finite"),
        ('{"rewards": [1.0, 1.0]}', "wrong shape"),
        ('{"rewards": []}', "wrong shape"),
        ('{"rewards": "1"}', "not a number"),
        (f'{{"rewards": 1{"0" * 400}}}', "not finite"),
        ('{"rewards": 1.0, "extra_logs": 3}', "extra_logs is no dict"),
        ('{"rewards": 1.0, "failed": true}', "reward server failed"),
    ):
        (verdict,), _ = while_serving(lambda *_, text=text: web.Response(text=text, content_type="text/html"))
        assert verdict.failure == failure and verdict.detail, text[:20]
        assert verdict.reward is None


def test_a_label_that_is_not_json_fails_its_own_rollout():
    (verdict,) = grade("http://127.0.0.1:1/", label={1, 2})
    assert verdict.failure == "label is not JSON" and "TypeError" in verdict.detail


# ── No answer ──


def test_a_refused_call_says_where_and_why_and_never_the_token():
    url = f"http://shear:{TOKEN}@127.0.0.1:{free_port()}/get_reward?key={TOKEN}"
    (verdict,) = grade(url)
    assert verdict.failure == "reward server refused"
    shown = url.replace(f"shear:{TOKEN}@", "").partition("?")[0]
    for part in (shown, "ClientConnectorError: Cannot connect to host", "after 3 of 3 tries"):
        assert part in verdict.detail
    assert TOKEN not in verdict.detail and "shear" not in verdict.detail


def test_an_address_that_no_way_leads_to_is_unreachable():
    assert grade("http://255.255.255.255/get_reward", retries=0)[0].failure == "reward server unreachable"


@pytest.mark.parametrize("accepts", [True, False])
def test_a_black_hole_times_out_with_a_message(accepts, monkeypatch):
    # The one that accepts is given up on by the time of a whole call, the other by the time to connect.
    monkeypatch.setattr(module, "CONNECT_SECONDS", LONG if accepts else 1.0)
    with silent(accepts) as url:
        url = url.replace("//", f"//shear:{TOKEN}@") + f"?key={TOKEN}"
        (verdict,) = grade(url, timeout=1.0 if accepts else LONG, retries=1)
    assert verdict.failure == "reward server timed out" and TOKEN not in verdict.detail
    error = "TimeoutError: without a message, no answer in 1 s" if accepts else "no connection in 1 s"
    assert error in verdict.detail and "after 2 of 2 tries" in verdict.detail


def test_any_other_error_is_told_by_its_type_and_without_the_token():
    async def work():
        async with answering(lambda _: f"HTTP/1.1 200 OK\r\nno header but {TOKEN}\r\n\r\n".encode()) as url:
            return await asked_of(url.replace("//", f"//shear:{TOKEN}@"), retries=0)

    (verdict,) = asyncio.run(work())
    assert verdict.why == "reward server failed with ClientResponseError"
    assert "no header but ***" in verdict.detail


def test_a_server_that_hangs_up_is_a_failure():
    async def work():
        listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with listener:
            return await asked_of(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/")

    (verdict,) = asyncio.run(work())
    assert verdict.failure == "reward server hung up" and verdict.detail


# ── Many calls, several servers ──


@pytest.mark.parametrize("accepts", [True, False])
def test_a_thousand_calls_to_a_black_hole_wait_a_few_times_and_the_next_not_at_all(accepts, monkeypatch):
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.5)

    async def work(url):
        client = RewardClient(url, timeout=0.5, clock=Clock())
        waves = [await asyncio.gather(*(client.grade(str(n), "", "") for n in range(1024))) for _ in range(2)]
        await client.close()
        return waves

    with silent(accepts) as url:
        first, second = asyncio.run(work(url))
    timed_out = [verdict for verdict in first if verdict.failure == "reward server timed out"]
    assert 0 < len(timed_out) <= FAILURES * module.MOST_AT_ONCE
    assert {verdict.failure for verdict in first} == {"reward server timed out", "reward server down"}
    assert {verdict.failure for verdict in second} == {"reward server down"}
    assert f"{FAILURES} calls in a row failed" in second[0].detail and "tried again in 5 s" in second[0].detail


def test_calls_in_flight_are_limited_and_waiting_does_not_count_towards_the_timeout(monkeypatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 4)
    now, most = 0, 0

    async def watched(request, _):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.15)
        now -= 1
        return good(request, 0)

    async def work():
        async with serving(watched) as (url, _):
            client = RewardClient([url], timeout=3.0, retries=0)
            verdicts = await asyncio.gather(*(client.grade("", "", "1") for _ in range(100)))  # 3.75 s together
            await client.close()
            return verdicts

    assert {verdict.failure for verdict in asyncio.run(work())} == {None}
    assert most == 4


def test_of_two_servers_the_dead_one_costs_no_rollout_and_is_soon_left_alone():
    async def work():
        tried = []
        dead = await asyncio.start_server(lambda _, writer: tried.append(1) or writer.close(), "127.0.0.1", 0)
        async with serving(good) as (url, asked), dead:
            both = f"http://127.0.0.1:{dead.sockets[0].getsockname()[1]}/,{url}"
            return await asked_of(both, calls=60, clock=Clock()), len(asked), len(tried)

    verdicts, answered, tried = asyncio.run(work())
    assert {verdict.reward for verdict in verdicts} == {0.5} and answered == 60
    assert tried == FAILURES


def test_healthy_servers_share_the_calls():
    async def work():
        async with serving(good) as (first, asked_first), serving(good) as (second, asked_second):
            await asked_of(f"{first},{second}", calls=10)
            return len(asked_first), len(asked_second)

    assert asyncio.run(work()) == (5, 5)


def test_a_server_that_comes_back_is_found_after_the_cool_down():
    clock, port = Clock(), free_port()

    async def work():
        client = RewardClient(f"http://127.0.0.1:{port}/get_reward", timeout=1.0, retries=0, clock=clock)
        told = [(await client.grade("", "", "1")).failure for _ in range(FAILURES + 1)]
        async with serving(good, port=port):
            told.append((await client.grade("", "", "1")).failure)
            clock.now += 5.0
            told += [(await client.grade("", "", "1")).failure for _ in range(2)]
        await client.close()
        return told

    refused = ["reward server refused"] * FAILURES
    assert asyncio.run(work()) == [*refused, "reward server down", "reward server down", None, None]


@pytest.mark.parametrize("kind", ["reset", "half a body", "503", "hang"])
def test_a_moment_without_answers_costs_no_rollout_of_many_at_once(kind):
    """32 calls at once, and the server answers from the 33rd on."""
    seen = 0
    answer = json.dumps({"rewards": 1.0}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)

    async def handle(reader, writer):
        nonlocal seen
        seen += 1
        is_bad = seen <= 32
        await reader.readuntil(b"\r\n\r\n")
        if is_bad and kind == "hang":
            await reader.read()
        elif is_bad and kind == "half a body":
            writer.write(head + answer[:5])
        elif is_bad and kind == "503":
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        elif not is_bad:
            writer.write(head + answer)
        writer.close()

    async def work():
        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            client = RewardClient(url, timeout=2.0 if kind == "hang" else LONG)
            verdicts = await asyncio.gather(*(client.grade(str(n), "", "") for n in range(32)))
            await client.close()
            return verdicts

    assert [verdict.reward for verdict in asyncio.run(work())] == [1.0] * 32 and seen == 64


def test_a_restart_of_the_only_server_costs_no_rollout(monkeypatch):
    """It is gone when all calls begin, and back before the breaker's second trial; none of them has more than two."""
    monkeypatch.setattr("openrlhf_shear.rewards.breaker.COOL_DOWN", 0.2)
    port = free_port()

    async def work():
        client = RewardClient(f"http://127.0.0.1:{port}/get_reward", LONG, retries=1)
        breaker = client._servers[0].breaker
        for _ in range(FAILURES):  # of earlier calls
            breaker.settle(breaker.admit(), False)
        calls = [asyncio.create_task(client.grade("", "", "1")) for _ in range(40)]
        while breaker.seconds_left <= 0.2:
            await asyncio.sleep(0.01)
        async with serving(good, port=port):
            verdicts = await asyncio.gather(*calls)
        await client.close()
        return verdicts

    assert {verdict.reward for verdict in asyncio.run(work())} == {0.5}


# ── Its own life ──


def test_a_client_serves_one_event_loop_after_another_and_may_be_closed_and_used_again():
    port = free_port()
    client = RewardClient(f"http://127.0.0.1:{port}/get_reward")

    async def work():
        async with serving(good, port=port):
            before = (await client.grade("", "", "1")).reward
            await client.close()
            after = (await client.grade("", "", "1")).reward
            await client.close()
            return before, after

    assert [asyncio.run(work()) for _ in range(2)] == [(0.5, 0.5)] * 2


def test_addresses_and_numbers_that_cannot_be_are_refused_without_the_token():
    for urls in ("", "host:5000", f"ftp://shear:{TOKEN}@host/", f"http://shear:{TOKEN}@:5000/", ["http://a/", "b"]):
        with pytest.raises(ValueError, match=r"must be an http\(s\) address") as error:
            RewardClient(urls)
        assert TOKEN not in str(error.value)
    with pytest.raises(ValueError, match="at least one URL"):
        RewardClient([])
    for options in ({"timeout": -1.0}, {"timeout": float("nan")}, {"retries": -1}):
        with pytest.raises(ValueError, match="must be at least 0"):
            RewardClient("http://a/", **options)
