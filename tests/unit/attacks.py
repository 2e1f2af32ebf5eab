"""Attacks on rewards, by reward files, reward servers and responses.

`try_attacks` tries each attack on this machine. An honest grade follows each attack, and must be right. `jail.escapes`
lists what a program may try against the machine.
"""

import asyncio
import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.rewards.breaker import Breaker
from openrlhf_shear.rewards.code import grade_code
from openrlhf_shear.rewards.code.text import code_block, readable
from openrlhf_shear.rewards.function_workers import FunctionWorkers
from openrlhf_shear.rewards.last_number import final_number
from openrlhf_shear.rewards.maths import grade_math
from openrlhf_shear.rewards.maths.answers import ANSWER_FORMATS, final_answer
from openrlhf_shear.rewards.responses import answer_of
from openrlhf_shear.rewards.verdict import Verdict

_SECONDS, _HONEST_SECONDS = 3.0, 20.0  # limits of a call or a grade
_READ_SECONDS = 300.0  # to read all texts: far more than it takes, far less than a slow search (hours)
_TEXT = 100_000  # characters

REWARD_FILE = """
import json, multiprocessing, os, stat, struct, sys, threading, time

sys.stderr = open(os.devnull, "w")
PIPE = next(
    int(name)
    for name in os.listdir("/proc/self/fd")
    if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode)
)

def frame(number):
    body = json.dumps([number, {"rewards": -1.0}]).encode()
    return struct.pack(">I", len(body)) + body

def reward_func(queries, prompts, labels):
    asked, output = os.getpid(), {"rewards": float(labels[0])}
    exec(queries[0])
    return output if os.getpid() == asked else {"rewards": -1.0}
"""
_NUMBERS, _ONE_NUMBER, _WATCHED = "numbered answers", "one number a rollout", "a deadline"
_LINEAR = "searches in linear time"
# name: (what the reward file does, whether the reward for its own rollout may count, the defence)
OF_FILES = {
    "a copy of its process answers too": ("os.fork()", True, "the process id"),
    "a copy answers late": ("os.fork() or time.sleep(0.3)", True, "the process id"),
    "a copy raises": ("if not os.fork(): raise ValueError", True, "the process id"),
    "a copy made in a thread": (
        "made = threading.Thread(target=os.fork); made.start(); made.join()",
        True,
        "the process id",
    ),
    "an answer too many": ("os.write(PIPE, frame(10**6))", False, _NUMBERS),
    "two answers too many": ("os.write(PIPE, frame(10**6) * 2)", False, _NUMBERS),
    "an answer between two calls": ("threading.Timer(0.1, os.write, (PIPE, frame(10**6))).start()", True, _NUMBERS),
    "noise as an answer": ("os.write(PIPE, b'noise')", False, _NUMBERS),
    "half an answer": ("os.write(PIPE, struct.pack('>I', 100))", False, _WATCHED),
    "a closed pipe": ("os.close(PIPE)", False, _WATCHED),
    "no end": ("time.sleep(3600)", False, _WATCHED),
    "an exit": ("sys.exit(3)", False, _WATCHED),
    "a crash": ("os.abort()", False, _WATCHED),
    "NaN": ("output['rewards'] = float('nan')", False, _ONE_NUMBER),
    "infinity": ("output['rewards'] = 10**400", False, _ONE_NUMBER),
    "two rewards for one rollout": ("output['rewards'] = [1.0, 1.0]", False, _ONE_NUMBER),
    "no reward": ("output['rewards'] = []", False, _ONE_NUMBER),
    "a text": ("output['rewards'] = '1'", False, _ONE_NUMBER),
    "megabytes beside the reward": ("output['extra_logs'] = {'x' * (2 << 20): 1.0}", False, "1 MiB an answer"),
}


def _http(body: bytes, *heads: str, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return "\r\n".join([f"HTTP/1.1 {status}", *heads, f"Content-Length: {size}", "", ""]).encode() + body


def _said(rewards: str) -> bytes:
    return _http(f'{{"rewards": {rewards}}}'.encode())


_LIMIT, _OWN, _ORIGIN = "1 MiB an answer, read as it comes", "a connection a call", "no redirect is followed"
_FIRST = 1000.0  # the reward in the first of two answers
# name: (what the server answers, whether the rollout's own reward may count, the defence)
OF_SERVERS = {
    "NaN": (_said("NaN"), False, _ONE_NUMBER),
    "infinity": (_said("1" + "0" * 400), False, _ONE_NUMBER),
    "two rewards for one rollout": (_said("[1.0, 1.0]"), False, _ONE_NUMBER),
    "no reward": (_said("[]"), False, _ONE_NUMBER),
    "a text": (_said('"1"'), False, _ONE_NUMBER),
    "no JSON": (_http(b"<html>"), False, "JSON"),
    "a list without end": (_http(b"[" * 100_000), False, "JSON"),
    "megabytes": (_http(b" " * (8 << 20)), False, _LIMIT),
    "a compressed gigabyte": (
        _http(gzip.compress(bytes(1 << 24), 9) * 64, "Content-Encoding: gzip"),
        False,
        "no compressed answers",
    ),
    "a length that lies": (_http(b"{", length=100), False, _WATCHED),
    "no answer": (b"", False, _WATCHED),
    "a failure that is slow to read": (
        _http(json.dumps({"failed": [{"reason": "x:" * 400_000, "detail": "http://" * 10_000}]}).encode()),
        False,
        _LINEAR,
    ),
    "another origin": (b"", False, _ORIGIN),
    "an answer too many": (_said(f"{_FIRST}") + _said("-1.0"), True, _OWN),
    "a late answer too many": (_said(f"{_FIRST}"), True, _OWN),
}

_EXACT = "a whitelist, limits and exact values"
# Wrong responses to a question whose answer is x^2-1.
OF_MATHS = {
    "a call": r"\boxed{__import__('os')._exit(0)}",
    "an attribute": r"\boxed{x.__class__}",
    "a tower": r"\boxed{9^{9^{9^{9}}}x}",
    "a power of a sum": r"\boxed{(x+1)^{9999999}}",
    "a factorial": r"\boxed{99999999!x}",
    "a sum of many": r"\boxed{\sum_{n=1}^{1000000000} x^n}",
    "deep brackets": rf"\boxed{{{'(' * 900}x{')' * 900}}}",
    "deep fractions": r"\boxed{" + r"\frac{1}{" * 150 + "x" + "}" * 151,
    "a division by zero": r"\boxed{\frac{x^2-1}{0}}",
    "many answers": r"\boxed{x, x^2, x^2-1, x^3}",
    "a box without an end": r"\boxed{x^2-1",
    "an equation": r"\boxed{x^2-1=0}",
    "boxes in boxes": r"\boxed{" * 500 + "x" + "}" * 500,
}

# Units of texts. A text of one unit, repeated, takes minutes to read if a search starts again at each position.
OF_TEXTS = {
    "texts without an end": "```\n\\'''\n",
    "open fences": "```python\n'''\n",
    "quotes": "'\"",
    "backslashes": "\\",
    "spaces": " ",
    "brackets": "({[",
    "dollars": "$$\\[",
    "boxes": r"\boxed{",
    "tags": "<answer>",
    "signs": "-(",
    "special tokens": " <|x",
    "numbers": ",111.",
    "addresses": "x:http://",
}

_SORTED = "def check(input, expected, output):\n    return sorted(output) == sorted(expected)\n"
_SETS = "def check(input, expected, output):\n    return set(output) == set(expected)\n"
_SPLIT = {"fn_name": "split", "inputs": [["ab"]], "outputs": [["a", "b"]]}
_BUDGET, _BOUNDARY = "the program's own time and memory", "exceptions of a response do not end a loop of a test"
# name: (a wrong program, the tests, the defence)
OF_PROGRAMS = {
    "an output that is endless to sort": ("def split(text): return range(10**15)", {"checker": _SORTED}, _BUDGET),
    "an output of equal hashes": (
        "def split(text): return [n * (2**61 - 1) for n in range(120_000)]",
        {"checker": _SETS},
        _BUDGET,
    ),
    **{
        f"{name} in a loop of a test": (
            f"def split(text):\n    raise {name}",
            {"test_list": ["assert all(map(split, ['ab']))"]},
            _BOUNDARY,
        )
        for name in ("StopIteration", "StopAsyncIteration", "GeneratorExit")
    },
}
_SPOILT = "WORKED: the honest grade after it is wrong"
_HONEST = "def split(text): return list(text)"

Row = tuple[str, str, str]
COUNT = len(OF_FILES) + len(OF_SERVERS) + len(OF_MATHS) + len(OF_TEXTS) + len(OF_PROGRAMS)


def try_attacks() -> Iterator[Row]:
    """Yield `COUNT` rows: the name of an attack, its defence, and the outcome ("refused..." or "WORKED: ...").

    Raises:
        JailError: no jail works here.
    """
    yield from _of_files()
    yield from asyncio.run(_of_servers())
    for name, response in OF_MATHS.items():
        verdict = grade_math(response, "x^2-1", timeout=_SECONDS)
        honest = grade_math(r"\boxed{-1+x^2}", "x^2-1", timeout=_HONEST_SECONDS)
        yield f"maths: {name}", _EXACT, outcome_of_response(verdict, honest)
    for name, outcome in outcomes_of_texts([*OF_TEXTS]).items():
        yield f"text: {name}", _LINEAR, outcome
    for name, (program, tests, defence) in OF_PROGRAMS.items():
        label = json.dumps(tests if "test_list" in tests else _SPLIT | tests)
        verdict = grade_code(program, label, timeout=_SECONDS, extract=False)
        honest = grade_code(_HONEST, json.dumps(_SPLIT), timeout=_HONEST_SECONDS, extract=False)
        yield f"program: {name}", defence, outcome_of_response(verdict, honest)


def outcome_of_response(verdict: Verdict, honest: Verdict) -> str:
    """Return the outcome of an attack by a response. Its rollout must count as wrong: a response must not remove it."""
    if not honest.correct:
        return _SPOILT
    if verdict.correct is not False:
        return f"WORKED: {verdict.why or 'it counts as correct'}"
    return f"refused: {verdict.why}"


def outcome_of_reward(verdict: Verdict, number: float | None, honest: bool) -> str:
    """Return the outcome of an attack whose verdict may be `number` or no reward, but no other reward."""
    if not honest:
        return _SPOILT
    if verdict.reward not in (None, number):
        return f"WORKED: a reward of {verdict.reward:g}"
    return f"refused: {verdict.why[:60] if verdict.failure else 'its own reward, and no other'}"


def _of_files() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reward.py")
        path.write_text(REWARD_FILE)
        with FunctionWorkers(str(path), _SECONDS, 1, Breaker(1000)) as workers:
            for number, (name, (source, own, defence)) in enumerate(OF_FILES.items(), 1):
                workers.timeout = _SECONDS
                verdict = workers.grade(source, "", str(number))
                workers.timeout = _HONEST_SECONDS
                after = [workers.grade("time.sleep(0.2)", "", str(-n)) for n in (number, number + 1000)]
                # An answer between two calls may cost the first of these its reward, but must not replace it.
                right = after[-1].reward == -number - 1000 and after[0].reward in (-number, None if own else -number)
                yield f"file: {name}", defence, outcome_of_reward(verdict, number if own else None, right)


async def _of_servers() -> list[Row]:
    from openrlhf_shear.rewards.client import RewardClient  # here: only reward servers need aiohttp

    astray: list[bytes] = []
    gone = (OSError, asyncio.IncompleteReadError, asyncio.CancelledError)

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        astray.append(await reader.read(100))
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(*gone):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
                asked = json.loads(body)
                name, label = asked["query"][0], asked["labels"][0]
                if name == "another origin":
                    port = elsewhere.sockets[0].getsockname()[1]
                    place = f"Location: http://127.0.0.1:{port}/"
                    writer.write(_http(b"", place, status="307 Temporary Redirect"))
                else:
                    writer.write(OF_SERVERS[name][0] if name in OF_SERVERS else _said(label))
                if name == "no answer":
                    await asyncio.sleep(3600)
                if name == "a late answer too many":
                    await asyncio.sleep(0.1)
                    writer.write(_said("-1.0"))
                await writer.drain()

    rows: list[Row] = []
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    elsewhere = await asyncio.start_server(other, "127.0.0.1", 0)
    async with server, elsewhere:
        client = RewardClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", timeout=_SECONDS, retries=0)
        for number, (name, (_, own, defence)) in enumerate(OF_SERVERS.items()):
            verdict = await client.grade(name, "", str(number))
            await asyncio.sleep(0.2)
            honest = [(await client.grade("", "", str(-n))).reward == -n for n in (number, number + 1000)]
            said = outcome_of_reward(verdict, _FIRST if own else None, all(honest))
            rows.append((f"server: {name}", defence, "WORKED: it was followed" if astray else said))
        await client.close()
    return rows


def outcomes_of_texts(names: Sequence[str], seconds: float = _READ_SECONDS) -> dict[str, str]:
    """Read texts in a process that can be killed, as nothing interrupts a search; it prints each name that is read."""
    reads = f"from {__name__} import read_text\nfor name in {names!r}: print(read_text(name), flush=True)"
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process, late = subprocess.Popen([sys.executable, "-c", reads], env=paths, **pipes), ""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        late = f"it is not read in {seconds:g} s"
        process.kill()
    out, errors = process.communicate()
    read = out.splitlines()
    return {name: "refused: it is read" if name in read else f"WORKED: {late or errors[-300:]}" for name in names}


def read_text(name: str) -> str:
    """Read a text of `OF_TEXTS` with everything that reads a response or an answer before a limit; return its name."""
    unit = OF_TEXTS[name]
    text = unit * (_TEXT // len(unit))
    for response in (text, f"'''\n{text}", f"```python\n{text}", rf"\boxed{{{text}"):
        readable((code_block(response) or "") + "\u00a0")
        for answer_format in ANSWER_FORMATS:
            final_answer(response, (answer_format,))
        answer_of(response, ""), final_number(response), hidden(response)
    return name
