"""Runs that serve requests, and how they are asked from the outside."""

import asyncio
import sys
from typing import Any

from tests.support.runs import find, order
from weft.messages.nodes import Serve, StartRun
from weftd.executor.runs import Run, RunKey, Runtime

# Its body is its environment's port and path; `/slow` takes a second. `mute` never answers, `garbage` answers no HTTP,
# `endless` never ends its headers, `elsewhere` redirects, `ill` answers 503, `closes` takes no connection for long;
# `another` listens at another port, `loopback` at 127.0.0.1 alone.
PROGRAM = """
import os, signal, socket, sys, threading, time
behaviour = sys.argv[1]
own = int(os.environ["WEFT_PORT"])
server = socket.create_server({"loopback": ("127.0.0.1", own), "another": ("", 0)}.get(behaviour, ("", own)))
if behaviour == "another":
    print("port", server.getsockname()[1], flush=True)
stopping = threading.Event()
def gone(*_):
    print("told to stop", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, gone)
print("listening", flush=True)
def answer(connection):
    try:
        if behaviour == "mute":
            time.sleep(3600)
        if behaviour == "closes":
            return connection.close()
        if behaviour == "endless":
            while True:
                connection.sendall(b"X" * 65536)
        path = connection.recv(4096).split(b" ")[1].decode()
        if behaviour == "garbage":
            return connection.sendall(b"\\x00\\xff no such thing" * 100 + b"\\r\\n")
        if path == "/slow":
            time.sleep(1.0)
        moved = "302 Found\\r\\nLocation: http://192.0.2.1/"
        status = {"elsewhere": moved, "ill": "503 Unwell"}.get(behaviour, "200 OK")
        body = os.environ["WEFT_PORT"] + " " + os.environ["PORT"] + " " + os.environ["WEFT_SERVICE_PATH"]
        head = f"HTTP/1.1 {status}\\r\\nContent-Length: {len(body)}\\r\\nConnection: close"
        connection.sendall(f"{head}\\r\\n\\r\\n{body}".encode())
    except OSError:
        pass
    finally:
        if behaviour != "mute":
            connection.close()
while True:
    connection, _ = server.accept()
    threading.Thread(target=answer, args=(connection,), daemon=True).start()
"""

SERVE = Serve(port=8080, ready="/healthz", drain=5.0, address="/s/job-1/")


def server_order(
    behaviour: str = "well", *, serve: Serve = SERVE, python: str = sys.executable, **fields: Any
) -> StartRun:
    return order(command=(python, "-u", "-c", PROGRAM, behaviour), serve=serve, **fields)


async def asked(port: int, path: str = "/", *, address: str = "127.0.0.1") -> str:
    """The body of the answer. Raises OSError if nobody answers."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(address, port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            await writer.drain()
            return (await reader.read()).decode().partition("\r\n\r\n")[2]
        finally:
            writer.close()


async def probed(runtime: Runtime, key: RunKey) -> tuple[Run, str]:
    """The run, and what the runtime says of whether it is ready."""
    run = await find(runtime, key)
    assert run is not None
    return run, await runtime.probe(run)


async def until_ready(runtime: Runtime, key: RunKey, *, seconds_max: float = 30.0) -> Run:
    async with asyncio.timeout(seconds_max):
        while True:
            run, why = await probed(runtime, key)
            if run.port is not None and not why:
                return run
            await asyncio.sleep(0.05)
