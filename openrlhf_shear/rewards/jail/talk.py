"""Frames to and from a process in a jail (see `inside.wire`), each with a deadline on the clock of `time.monotonic`."""

from __future__ import annotations

import subprocess

from openrlhf_shear.rewards.jail.inside import wire

START_SECONDS = 60.0  # until a process in a jail says that it is ready


def tell(process: subprocess.Popen[bytes], message: object, deadline: float) -> None:
    wire.send(process.stdin.fileno(), message, deadline)


def hear(process: subprocess.Popen[bytes], deadline: float) -> object:
    return wire.receive(process.stdout.fileno(), deadline)
