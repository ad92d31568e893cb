"""An emulated model behind HTTP: it takes the time of a model, and computes nothing. Needs nothing but Python.

`GET /healthz` answers 200 once the model has loaded, which takes LOAD_SECONDS, and 503 before. `POST /v1/generate`
answers after SERVICE_MS, SLOTS requests at once. It listens at WEFT_PORT. On SIGTERM it takes nothing new, finishes its
requests, and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = float(os.environ.get("SERVICE_MS", "50")) / 1000
SLOTS = threading.BoundedSemaphore(int(os.environ.get("SLOTS", "1")))
READY_AT = time.monotonic() + float(os.environ.get("LOAD_SECONDS", "0"))


class Server(ThreadingHTTPServer):
    daemon_threads = False  # the end of the server waits for its requests
    request_queue_size = 256


class Model(BaseHTTPRequestHandler):
    timeout = 60.0

    def do_GET(self) -> None:
        ready = time.monotonic() >= READY_AT
        self._answer(404 if self.path != "/healthz" else 200 if ready else 503, {"ready": ready})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        began = time.monotonic()
        with SLOTS:
            time.sleep(SECONDS)
        self._answer(200, {"text": "a GPU that is shared serves more than one", "seconds": time.monotonic() - began})

    def log_request(self, *_: object) -> None:
        """Say nothing about each request."""

    def _answer(self, status: int, document: dict[str, object]) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> int:
    server = Server(("", int(os.environ.get("WEFT_PORT", "8080"))), Model)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever()
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
