"""An emulated model behind HTTP: it takes the time of a model, and computes nothing. Needs nothing but Python.

`GET /healthz` answers 200 once it has loaded, 503 before. `POST /v1/generate` with `{"prompt": "…", "tokens": 8,
"stream": false}` answers `{"text", "tokens", "job", "rank", "seconds"}`; with `"stream": true` it sends a server-sent
event a token, then `data: [DONE]`. It listens at WEFT_PORT. On SIGTERM it takes nothing new, finishes what it has, and
ends.

How it behaves is in its environment:

SERVICE_MS=50        the mean time of a request on a GPU that is as fast as it should be
DIST=constant        or exponential: the time of each request is drawn
SLOTS=1              requests that it serves at once; more wait their turn in it
LOAD_SECONDS=0       until it is ready
SEED=0               of the drawn times
CRASH_AFTER=0        ends with status 1 after so many answers; 0: never
HANG=0               1: it takes connections and never answers
GARBAGE=0            1: it answers what is no HTTP

The time of a request grows with the slowdown of its emulated GPU. With a share of an emulated GPU the time is that of
the GPU: it launches kernels through the driver's own interface, as `kernels.py` does, and so gets what its share gives.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 1 << 20
TOKENS, TOKENS_MAX = 8, 4096
SECONDS_MAX = 600.0  # a drawn time is never longer
WORDS = ("a", "GPU", "that", "is", "shared", "serves", "more", "than", "one")
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class BadRequest(Exception):  # noqa: N818 - mostly the client's
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Knobs:
    """How it behaves, from its environment. Raises ValueError."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.service_seconds = _number(environ, "SERVICE_MS", 50.0, most=SECONDS_MAX * 1000) / 1000
        self.exponential = environ.get("DIST", "constant") == "exponential"
        if environ.get("DIST", "constant") not in ("constant", "exponential"):
            raise ValueError("DIST is constant or exponential")
        self.slots = max(1, int(_number(environ, "SLOTS", 1, most=1024)))
        self.load_seconds = _number(environ, "LOAD_SECONDS", 0.0, most=86400.0)
        self.crash_after = int(_number(environ, "CRASH_AFTER", 0, most=1e9))
        self.hang = environ.get("HANG", "0") == "1"
        self.garbage = environ.get("GARBAGE", "0") == "1"
        self.job = environ.get("WEFT_JOB_ID", "")
        self.rank = int(_number(environ, "WEFT_RANK", 0, most=1e10))
        self.rng = random.Random(f"{environ.get('SEED', '0')}/{self.job}/{self.rank}")
        self.slowdowns = [
            os.path.join(environ.get("WEFT_EMULATED_SLOWDOWNS", ""), index)
            for index in environ.get("WEFT_GPUS", "").split(",")
            if index.isdecimal() and environ.get("WEFT_EMULATED_SLOWDOWNS")
        ]

    def seconds(self) -> float:
        """The time of the next request on its GPU as that is now."""
        drawn = self.rng.expovariate(1.0) if self.exponential else 1.0
        return min(SECONDS_MAX, self.service_seconds * drawn * max(map(_slowdown, self.slowdowns), default=1.0))


def _number(environ: dict[str, str], name: str, default: float, *, most: float) -> float:
    value = float(environ.get(name) or default)
    if not 0 <= value <= most:
        raise ValueError(f"{name} is not between 0 and {most:g}")
    return value


def _slowdown(path: str) -> float:
    try:
        with open(path, encoding="utf-8") as file:
            return min(100.0, max(0.1, float(file.read(64))))
    except (OSError, ValueError):
        return 1.0


class GpuTime:
    """Where the time of a request passes: on an emulated GPU of which it has a share, or in sleep."""

    def __init__(self, slots: int, environ: dict[str, str]) -> None:
        self.turns = asyncio.Semaphore(slots)
        self._launch: Callable[[float], None] | None = _launcher() if environ.get("WEFT_GPUS_EMULATED") == "1" else None
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="gpu")

    async def work(self, seconds: float) -> None:
        if self._launch is None:
            await asyncio.sleep(seconds)
        else:
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._launch, seconds)
            except OSError as error:
                raise BadRequest(500, f"the GPU: {error}") from error


def _launcher() -> Callable[[float], None] | None:
    """What keeps the emulated GPU busy for so many seconds of its time; None where there is no such driver."""
    try:
        from weftd.cli.demo.programs.kernels import KERNEL_US, Driver
    except ImportError:  # in a container, beside that program
        try:
            from kernels import KERNEL_US, Driver  # type: ignore[import-not-found, no-redef]
        except ImportError:
            return None
    own = threading.local()  # the driver's context is that of a thread
    try:
        own.driver = Driver()
    except (OSError, AttributeError):
        return None

    def launch(seconds: float) -> None:
        driver = own.driver = getattr(own, "driver", None) or Driver()
        for _ in range(max(1, round(seconds * 1e6 / KERNEL_US))):
            driver.wait(driver.launch())

    return launch


class EmulatedModel:
    def __init__(self, knobs: Knobs, gpu: GpuTime) -> None:
        self._knobs = knobs
        self._gpu = gpu
        self._ready_at = time.monotonic() + knobs.load_seconds
        self._answered = 0
        self._ending = False
        self._idle: set[asyncio.StreamWriter] = set()
        self._busy = 0
        self.done = asyncio.Event()

    def stop(self) -> None:
        """Take nothing new; `done` is set when everything is finished."""
        self._ending = True
        for writer in self._idle:
            writer.close()
        if not self._busy:
            self.done.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while not self._ending and await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            self._idle.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request. False: the connection is over."""
        self._idle.add(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        self._idle.discard(writer)
        if self._knobs.hang:
            await asyncio.sleep(SECONDS_MAX)
        if self._knobs.garbage:
            writer.write(b"\x00\xffthis is no HTTP\r\n" * 8)
            await writer.drain()
            return False
        self._busy += 1
        try:
            return await self._answer(head.decode("latin-1"), reader, writer)
        finally:
            self._busy -= 1
            if self._ending and not self._busy:
                self.done.set()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = head.split("\r\n")
        method, _, rest = lines[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        goes_on = fields.get("connection", "").lower() != "close"
        try:
            if fields.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await _body(reader, fields)
            if path == "/healthz":
                ready = time.monotonic() >= self._ready_at
                await _tell(writer, 200 if ready else 503, {"ready": ready})
            elif path == "/v1/generate" and method == "POST":
                await self._generate(json.loads(body or b"{}"), writer)
            else:
                raise BadRequest(404, f"there is no {path}: POST /v1/generate")
        except BadRequest as bad:
            goes_on = goes_on and bad.status != 413  # That body is not read to its end.
            await _tell(writer, bad.status, {"error": str(bad)}, close=not goes_on)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            await _tell(writer, 400, {"error": "the body is no JSON"})
        return goes_on and not self._ending

    async def _generate(self, asked: Any, writer: asyncio.StreamWriter) -> None:
        tokens = asked.get("tokens", TOKENS) if isinstance(asked, dict) else None
        if not isinstance(tokens, int) or not 1 <= tokens <= TOKENS_MAX:
            raise BadRequest(400, f"tokens: a whole number from 1 to {TOKENS_MAX}")
        began = time.monotonic()
        seconds = self._knobs.seconds()
        words = [WORDS[number % len(WORDS)] for number in range(tokens)]
        if asked.get("stream"):
            try:
                await self._stream(words, seconds, writer)
            except BadRequest as bad:  # the head is sent: all that is left is to break off
                raise ConnectionError(str(bad)) from bad
        else:
            async with self._gpu.turns:
                await self._gpu.work(seconds)
            took = round(time.monotonic() - began, 6)
            replica = {"job": self._knobs.job, "rank": self._knobs.rank}
            await _tell(writer, 200, {"text": " ".join(words), "tokens": tokens, **replica, "seconds": took})
        self._answered += 1
        if self._knobs.crash_after and self._answered >= self._knobs.crash_after:
            print(f"crashed after {self._answered} answers, on purpose", file=sys.stderr, flush=True)
            os._exit(1)

    async def _stream(self, words: list[str], seconds: float, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        async with self._gpu.turns:
            for word in words:
                await self._gpu.work(seconds / len(words))
                await _chunk(writer, f"data: {json.dumps({'token': word, 'rank': self._knobs.rank})}\n\n".encode())
        await _chunk(writer, b"data: [DONE]\n\n")
        await _chunk(writer, b"")


async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            if not 0 < size <= BODY_BYTES_MAX - len(body):
                raise BadRequest(413, f"a body has at most {BODY_BYTES_MAX} bytes")
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return body
    size = int(fields.get("content-length") or 0)
    if not 0 <= size <= BODY_BYTES_MAX:
        raise BadRequest(413, f"a body has at most {BODY_BYTES_MAX} bytes")
    return await reader.readexactly(size)


async def _tell(writer: asyncio.StreamWriter, status: int, document: dict[str, Any], *, close: bool = False) -> None:
    body = json.dumps(document).encode() + b"\n"
    head = [f"HTTP/1.1 {status} {REASONS[status]}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*head, *(["Connection: close"] if close else []), "", ""]).encode() + body)
    await writer.drain()


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


async def run() -> None:
    environ = dict(os.environ)
    knobs = Knobs(environ)
    model = EmulatedModel(knobs, GpuTime(knobs.slots, environ))
    port = int(environ.get("WEFT_PORT") or environ.get("PORT") or 8080)
    server = await asyncio.start_server(model.serve, port=port, limit=HEAD_BYTES_MAX, backlog=1024, reuse_address=True)
    print(f"rank {knobs.rank} listens at port {port}, ready in {knobs.load_seconds:g} s", flush=True)
    stop = partial(_stop, server, model)
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop)
    await model.done.wait()


def _stop(server: asyncio.Server, model: EmulatedModel) -> None:
    print("told to stop, finishing what there is", flush=True)
    server.close()
    model.stop()


def main() -> int:
    try:
        asyncio.run(run())
    except ValueError as error:
        print(f"model: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
