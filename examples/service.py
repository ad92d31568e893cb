"""A service: a program that answers requests, with as many replicas as its load needs.

`python examples/service.py` submits this file and asks it once; `python examples/service.py here` serves.
"""

import json
import os
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import weft


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "rank": weft.rank()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name in the library
        print(self.path, flush=True)


def serve() -> None:
    ThreadingHTTPServer(("", int(os.environ["WEFT_PORT"])), Handler).serve_forever()


def main() -> None:
    service = weft.serve(
        [sys.executable, __file__, "here"],
        name="echo",
        ready="/health",
        replicas={"min": 1, "want": 1, "max": 4},
        gpus=1,
        cpus=0.1,
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},  # so that the job finds the same packages
    )
    url = service.ready(timeout=120)
    request = urllib.request.Request(f"{url}hello", headers=service.headers)
    with urllib.request.urlopen(request) as answer:
        print(json.load(answer))
    service.cancel()
    print(f"{service.name} {service.wait(timeout=120)}")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["here"] else main()
