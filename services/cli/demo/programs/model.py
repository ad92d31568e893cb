"""A stand-in for a model that answers requests: each answer takes as long as it is told, and nothing is computed.

It listens where WEFT_PORT says. `/healthz` is answered with 200 once the model is loaded, which takes `--load` seconds;
`/stream` sends its answer in pieces. At most `--concurrency` answers are made at once, the others wait. With `--broken`
it never becomes ready. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKENS = 8  # in a stream
BODY_BYTES_MAX = 1 << 20
IDLE_SECONDS_MAX = 60.0


class Model:
    def __init__(self, *, seconds: float, concurrency: int, load: float, broken: bool) -> None:
        self.seconds = seconds
        self.slots = threading.BoundedSemaphore(concurrency)
        self._ready_at = float("inf") if broken else time.monotonic() + load
        self._answered = 0
        self._lock = threading.Lock()

    @property
    def is_ready(self) -> bool:
        return time.monotonic() >= self._ready_at

    def count(self) -> int:
        with self._lock:
            self._answered += 1
            return self._answered


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS_MAX
    model: Model

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._answer(200 if self.model.is_ready else 503, {"ready": self.model.is_ready})
        elif self.path.partition("?")[0] == "/stream":
            self._stream()
        else:
            self._think()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and int(length) <= BODY_BYTES_MAX):
            self.close_connection = True
            self._answer(
                413 if length.isdigit() else 411, {"error": f"send at most {BODY_BYTES_MAX} bytes, with their length"}
            )
            return
        self.rfile.read(int(length))
        self.do_GET()

    def _think(self) -> None:
        with self.model.slots:
            time.sleep(self.model.seconds)
        self._answer(200, {"rank": os.environ.get("WEFT_RANK", ""), "answers": self.model.count()})

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with self.model.slots:
            for token in range(TOKENS):
                piece = f"data: {token}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
                time.sleep(self.model.seconds / TOKENS)
        self.wfile.write(b"0\r\n\r\n")
        self.model.count()

    def _answer(self, status: int, told: dict[str, object]) -> None:
        body = json.dumps(told).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: a line for each request would fill the log."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.1, metavar="N", help="that one answer takes")
    parser.add_argument("--concurrency", type=int, default=2, metavar="N", help="answers that are made at once")
    parser.add_argument("--load", type=float, default=0.5, metavar="N", help="seconds until it is ready")
    parser.add_argument("--broken", action="store_true", help="it never becomes ready")
    parser.add_argument("--host", default="127.0.0.1", help="where it listens; 0.0.0.0 in a container")
    parser.add_argument("--port", type=int, default=int(os.environ.get("WEFT_PORT", "8080")))
    args = parser.parse_args()
    Handler.model = Model(seconds=args.seconds, concurrency=args.concurrency, load=args.load, broken=args.broken)
    server = Server((args.host, args.port), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    print(f"listens at {args.host}:{args.port}, an answer takes {args.seconds:g} s", flush=True)
    server.serve_forever(poll_interval=0.05)
    print(f"answered {Handler.model.count() - 1} requests", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
