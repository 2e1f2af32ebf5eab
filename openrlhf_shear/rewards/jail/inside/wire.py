"""Frames between a jail and its parent: four bytes of length (big endian), then JSON. Nothing is ever unpickled."""

import json
import math
import os
import select
import struct
import time

MAX_FRAME = 64 << 20
_HEAD = struct.Struct(">I")


def send(fd: int, message: object, deadline: float | None = None) -> None:
    """Write a frame: any JSON value; lone surrogates, nan and inf pass.

    Args:
        deadline: on the clock of `time.monotonic` [s]; None waits for ever.

    Raises:
        TimeoutError: the reader was too slow. BrokenPipeError: it is gone. ValueError: the message is too large.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"a frame must be at most {MAX_FRAME} bytes: got {len(body)}; send less")
    left, late = memoryview(_HEAD.pack(len(body)) + body), False
    if deadline is not None:
        os.set_blocking(fd, False)
    while left:
        late = _wait(fd, select.POLLOUT, deadline, late)
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            continue


def receive(fd: int, deadline: float | None = None, limit: int = MAX_FRAME) -> object:
    """Read a frame. Safe on hostile bytes.

    Raises:
        EOFError: the writer is gone. TimeoutError: there is no whole frame before the deadline.
        ValueError: the frame is larger than `limit` bytes, or not JSON.
    """
    (length,) = _HEAD.unpack(_read(fd, _HEAD.size, deadline))
    if length > limit:
        raise ValueError(f"a frame must be at most {limit} bytes: got {length}")
    try:
        return json.loads(_read(fd, length, deadline))
    except RecursionError:
        raise ValueError("a frame must not be nested that deeply") from None


def _read(fd: int, count: int, deadline: float | None) -> bytes:
    parts, late = bytearray(), False
    while len(parts) < count:
        late = _wait(fd, select.POLLIN, deadline, late)
        part = os.read(fd, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        parts += part
    return bytes(parts)


def _wait(fd: int, event: int, deadline: float | None, late: bool) -> bool:
    """Wait until `fd` is ready, and return whether the deadline is over.

    If it is, this process may be the late one: what is ready counts, but once (`late`), as the other side may go on.
    """
    if deadline is None:
        return False
    poll = select.poll()
    poll.register(fd, event)
    left = deadline - time.monotonic()
    if late or not poll.poll(max(0, math.ceil(1000 * left))):
        raise TimeoutError("the other side did not answer in time")
    return left <= 0
