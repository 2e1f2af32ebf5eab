"""Frames with a deadline: a reader that was late itself takes what is there, and waits for nothing more."""

import contextlib
import os
import threading
import time

import pytest

from openrlhf_shear.rewards.jail.inside import wire

OVER = 0.0  # a deadline that is over


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_frame_that_is_there_is_read_after_the_deadline(pipe):
    reads, writes = pipe
    wire.send(writes, {"correct": True}, OVER)
    assert wire.receive(reads, OVER) == {"correct": True}
    with pytest.raises(TimeoutError):
        wire.receive(reads, OVER)


def test_half_a_frame_is_late(pipe):
    reads, writes = pipe
    os.write(writes, b"\0\0\0\4tr")
    with pytest.raises(TimeoutError):
        wire.receive(reads, OVER)


def test_a_writer_that_goes_on_after_the_deadline_is_late(pipe):
    """Something is there whenever the reader looks, for much longer than the test takes."""
    reads, writes = pipe
    os.write(writes, b"\0\x10\0\0")
    os.set_blocking(writes, False)
    stop = threading.Event()

    def drip() -> None:
        while not stop.is_set():
            with contextlib.suppress(BlockingIOError):
                os.write(writes, b" ")

    writer = threading.Thread(target=drip)
    writer.start()
    try:
        with pytest.raises(TimeoutError):
            wire.receive(reads, time.monotonic() + 0.2)
    finally:
        stop.set()
        writer.join()


def test_a_reader_that_takes_nothing_is_late(pipe):
    _, writes = pipe
    with pytest.raises(TimeoutError):
        wire.send(writes, "x" * (1 << 20), OVER)
