"""The router's part in the time of streams: a real router between a client and a server of the benchmark, each a
process of its own, beside the same client that goes to the server directly. The server writes the first token at once,
and each other at its time; the client opens streams evenly, so that their number stays the same.

    python -m tests.bench.models.streams server PORT
    python -m tests.bench.models.streams client PLAN
"""

import asyncio
import gc
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.bench.cpu import cpu_of
from tests.bench.figures import Aim, quantile
from tests.support.gateway import place
from tests.support.routers import Replica, free_port, town

MODEL = "emulated"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": " word"}}]}
TOKEN = b"data: " + json.dumps(CHUNK).encode() + b"\n\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 0}}
SECONDS_MAX = 60.0


class Plan(Struct, frozen=True, kw_only=True):
    """`open` streams at any time, each of `tokens` tokens that are `each_s` apart."""

    port: int
    token: str = ""
    open: int
    tokens: int
    each_s: float
    seconds: float


class Found(Struct, frozen=True):
    firsts: list[float]
    failed: int
    tokens: int


async def measure(seed: int, *, quick: bool) -> dict[str, Aim]:
    """`seed` changes nothing here: streams are opened evenly."""
    del seed
    plan = Plan(port=0, open=200, tokens=20, each_s=0.5, seconds=20.0)
    if not quick:
        plan = Plan(port=0, open=2000, tokens=30, each_s=2.0, seconds=120.0)
    _raise_limit()
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        async with place(Path(folder) / "servers") as servers, town(servers, Path(folder)) as there:
            job = await there.service(public=False, model={"name": MODEL}, concurrency=10_000, timeout="30s")
            replica = Replica(0)
            replica.port = free_port()
            server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.bench.models.streams", "server", str(replica.port))
            )
            try:
                await there.tell(replica.endpoint(job))
                await there.known(job, 0)
                direct = await _client(msgspec.structs.replace(plan, port=replica.port))
                before = {name: cpu_of(pid) for name, pid in there.children().items()}
                routed = await _client(msgspec.structs.replace(plan, port=there.port, token=there.tokens["alice"]))
                spent = {name: cpu_of(pid) - before[name] for name, pid in there.children().items()}
            finally:
                server.terminate()
                await server.wait()
    p50, p99 = (1000 * (quantile(routed.firsts, p) - quantile(direct.firsts, p)) for p in (0.5, 0.99))
    cpu = {name: 1000 * 1000 * of / max(1, routed.tokens) for name, of in spent.items()}
    print(f"\n{plan.open} streams of {plan.tokens} tokens at once, {routed.tokens / plan.seconds:.0f} tokens a second")
    for name, found in (("direct", direct), ("routed", routed)):
        shown = ", ".join(f"p{p:g} {1000 * quantile(found.firsts, p / 100):.2f} ms" for p in (50, 99))
        print(f"{name}: first token {shown}; {len(found.firsts)} streams, {found.failed} failed")
    print(f"processor time for 1,000 tokens: {', '.join(f'{name} {ms:.1f} ms' for name, ms in cpu.items())}\n")
    return {
        "streams.added_ttft_p50_ms": Aim(value=round(p50, 3), aim=1.0),
        "streams.added_ttft_p99_ms": Aim(value=round(p99, 3), aim=5.0),
        "streams.cpu_ms_per_1000_tokens": Aim(value=round(sum(cpu.values()), 1), aim=500.0),
        "streams.failed": Aim(value=routed.failed, aim=0),
    }


def _raise_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _client(plan: Plan) -> Found:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.models.streams", "client", msgspec.json.encode(plan).decode()),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    return msgspec.json.decode(said, type=Found)


# in processes of their own


async def _serve(port: int) -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"POST "):
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
                return
            length = next(
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            )
            asked = json.loads(await reader.readexactly(length))
            writer.write(HEAD + TOKEN)
            for _ in range(asked["tokens"] - 1):
                await asyncio.sleep(asked["each_s"])
                writer.write(TOKEN)
                await writer.drain()
            usage = {**USAGE, "usage": {"prompt_tokens": 100, "completion_tokens": asked["tokens"]}}
            writer.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


async def _ask(plan: Plan) -> Found:
    gc.disable()  # a collection of all these tasks is no latency of a server
    body = {
        "model": MODEL,
        "stream": True,
        "tokens": plan.tokens,
        "each_s": plan.each_s,
        "messages": [{"role": "user", "content": "hello " * 100}],
    }
    text = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n"
    head += f"Content-Type: application/json\r\nAuthorization: Bearer {plan.token}\r\nConnection: close\r\n\r\n"
    found = Found([], 0, 0)
    failed = tokens = 0

    async def one() -> None:
        nonlocal failed, tokens
        try:
            async with asyncio.timeout(plan.tokens * plan.each_s + SECONDS_MAX):
                reader, writer = await asyncio.open_connection("127.0.0.1", plan.port)
                began = time.perf_counter()
                writer.write(head.encode() + text)
                seen = 0
                while line := await reader.readline():
                    if line.startswith(b"data: {") and b'"delta"' in line:
                        seen += 1
                        if seen == 1:
                            found.firsts.append(time.perf_counter() - began)
                writer.close()
                tokens += seen
                failed += seen != plan.tokens
        except (OSError, TimeoutError):
            failed += 1

    apart, began, tasks = plan.tokens * plan.each_s / plan.open, time.perf_counter(), []
    while (due := began + len(tasks) * apart) < began + plan.seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    return Found(found.firsts, failed, tokens)


def main(arguments: Sequence[str]) -> None:
    _raise_limit()
    if arguments[0] == "server":
        asyncio.run(_serve(int(arguments[1])))
    else:
        found = asyncio.run(_ask(msgspec.json.decode(arguments[1], type=Plan)))
        print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
