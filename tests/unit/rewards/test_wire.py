"""Frames with a deadline: a reader that was late itself takes what is there, and waits for nothing more."""

import os

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


def test_a_writer_that_goes_on_after_the_deadline_is_late(tmp_path):
    """A file is always ready, and gives at most 1 MiB at a time."""
    (tmp_path / "frame").write_bytes(b"\0\x30\0\0" + bytes(3 << 20))
    with (tmp_path / "frame").open("rb", buffering=0) as file, pytest.raises(TimeoutError):
        wire.receive(file.fileno(), OVER)


def test_a_reader_that_takes_nothing_is_late(pipe):
    _, writes = pipe
    with pytest.raises(TimeoutError):
        wire.send(writes, "x" * (1 << 20), OVER)
