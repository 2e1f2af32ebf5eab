"""A reward server of which some calls fail in a chosen way, as a fault for `faults.py`; it counts what it did.

    python benchmarks/fault_server.py PORT KIND FIRST SECONDS met.txt

The built-in arithmetic grades. From call FIRST on, all calls of these seconds fail. KIND says how: no answer ("hangs"),
half a body ("half"), a reset ("reset"), or status 503 ("busy").
"""

import itertools
import json
import socket
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from openrlhf_shear.tasks.arithmetic.arithmetic import reward_func

PORT, KIND, FIRST, SECONDS, MET = sys.argv[1:]
CALLS, BROKEN, BEGAN = itertools.count(1), itertools.count(1), []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reward = reward_func(asked["query"], asked["prompts"], asked["labels"])
        body = json.dumps({name: value for name, value in reward.items()}, default=float).encode()
        if next(CALLS) == int(FIRST):
            BEGAN.append(time.monotonic())
        if not BEGAN or time.monotonic() - BEGAN[0] > float(SECONDS):
            return self.answer(body)
        Path(MET).write_text(f"{next(BROKEN)} calls met: {KIND}")
        if KIND == "hangs":
            time.sleep(3600)
        elif KIND == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif KIND == "half":
            self.answer(body, body[: len(body) // 2])
        else:
            self.send_error(503)

    def answer(self, body: bytes, sent: bytes | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if sent is None else sent)


class Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 512


Server(("127.0.0.1", int(PORT)), Handler).serve_forever()
