"""What a router adds: `python -m tests.bench routing [--quick] [--seed N]`; at its end one line of JSON.

A real router between real clients and a real HTTP server, each in a process of its own, beside the same clients that go
to the server directly. Arrivals are open-loop: a request is sent when it is due, whatever became of those before.
"""

import argparse
import asyncio
import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web

from tests.bench.cpu import cpu_of, memory_of
from tests.bench.figures import Aim, line_of, quantile
from tests.support.gateway import place
from tests.support.routers import Replica, Town, free_port, town
from weft.domain.job import Job

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"
CHANGES_PER_SECOND = 50.0


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["server"]:
        asyncio.run(_server(int(arguments[1])))
        return 0
    if arguments[:1] == ["client"]:
        print(json.dumps(asyncio.run(_client(json.loads(arguments[1])))))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.bench routing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args(arguments)
    aims = asyncio.run(_measure(asked.seed, quick=asked.quick))
    for name, aim in aims.items():
        bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
        print(f"{name}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}")
    print(line_of(aims, seed=asked.seed))
    return 0


async def _measure(seed: int, *, quick: bool) -> dict[str, Aim]:
    seconds, rounds = (4.0, 2) if quick else (10.0, 5)
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        async with place(Path(folder) / "servers") as servers, town(servers, Path(folder)) as there:
            job = await there.service(concurrency=1000)
            port = free_port()
            server = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.bench.routing", "server", str(port)
            )
            try:
                replica = Replica(0)
                replica.port = port
                await there.tell(replica.endpoint(job))
                await there.known(job, 0)
                aims = await _beside_direct(there, job, port, seed, seconds=seconds, rounds=rounds)
            finally:
                server.terminate()
                await server.wait()
            aims |= await _lost(there, seed, seconds=seconds * 2)
            return aims


async def _beside_direct(there: Town, job: Job, port: int, seed: int, *, seconds: float, rounds: int) -> dict[str, Aim]:
    routes = {"direct": (port, "/"), "routed": (there.port, f"/s/{job.id}/")}
    most = {}
    before = {name: cpu_of(pid) for name, pid in there.children().items()}
    for route, (to, path) in routes.items():
        found = await _run(port=to, path=path, rate=0.0, seconds=seconds, seed=seed)
        most[route] = found["count"] / seconds
        print(f"{route}: {most[route]:.0f} requests a second with 32 at once; {found['failed']} failed")
    memory = {name: memory_of(pid) for name, pid in there.children().items()}
    count = most["routed"] * seconds
    cpu = {name: (cpu_of(pid) - before[name]) / count * 1e6 for name, pid in there.children().items()}
    print(f"processor time for each request: {', '.join(f'{name} {of:.0f} us' for name, of in cpu.items())}")
    rate = most["routed"] / 2
    p50: dict[str, list[float]] = {"direct": [], "routed": []}
    p99: dict[str, list[float]] = {"direct": [], "routed": []}
    failed = 0
    for turn in range(rounds):
        for route, (to, path) in routes.items():
            found = await _run(port=to, path=path, rate=rate, seconds=seconds, seed=seed + turn)
            p50[route].append(found["p50"])
            p99[route].append(found["p99"])
            failed += found["failed"]
            print(f"{route} at {rate:.0f} a second: p50 {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms")
    print(f"memory after the most: {', '.join(f'{name} {mib:.0f} MiB' for name, mib in memory.items())}")
    added = {
        name: quantile(of["routed"], 0.5) - quantile(of["direct"], 0.5) for name, of in (("p50", p50), ("p99", p99))
    }
    return {
        "added p50 at half its maximum (ms)": Aim(value=round(added["p50"], 3), aim=1.0),
        "added p99 at half its maximum (ms)": Aim(value=round(added["p99"], 3), aim=5.0),
        "failed requests": Aim(value=failed, aim=0),
        "its maximum (requests/s)": Aim(value=round(most["routed"]), aim=0, at_least=True),
        "maximum without it (requests/s)": Aim(value=round(most["direct"]), aim=0, at_least=True),
        "processor time of Caddy and gate (us/request)": Aim(value=round(sum(cpu.values())), aim=700),
        "memory of Caddy and gate (MiB)": Aim(value=round(sum(memory.values())), aim=400),
    }


async def _lost(there: Town, seed: int, *, seconds: float) -> dict[str, Aim]:
    """Requests lost while replicas come and go 50 times a second: each is drained, ended, and begun anew elsewhere."""

    async def short(request: aiohttp.web.Request) -> aiohttp.web.Response:
        await request.read()
        await asyncio.sleep(0.01)
        return aiohttp.web.Response(text="ok")

    job = await there.service("changing", concurrency=4)
    fleet = [await there.replica(rank, short) for rank in range(6)]
    await there.tell(*(one.endpoint(job) for one in fleet))
    await there.known(job, *range(6))
    asking = asyncio.create_task(
        _run(port=there.port, path=f"/s/{job.id}/", rate=100.0, seconds=seconds, seed=seed, post=True)
    )
    drawn, changes, ended = random.Random(seed), 0, 0
    began = time.monotonic()
    while not asking.done():
        out = drawn.randrange(len(fleet))
        await there.tell(*(one.endpoint(job, draining=one.rank == out, ready=one.rank != out) for one in fleet))
        changes += 1
        await asyncio.sleep(max(0.0, began + changes / CHANGES_PER_SECOND - time.monotonic()))
        if changes % 25 == 0 and fleet[out].now == 0:  # the node waits for that before it ends one
            await asyncio.sleep(0.1)
            if fleet[out].now == 0:
                await fleet[out].stop()
                ended += 1
                await fleet[out].start()
    found = await asking
    per_second = changes / (time.monotonic() - began)
    print(
        f"{per_second:.0f} changes a second, {ended} replicas ended: {found['count']} requests, {found['failed']} lost"
    )
    return {"requests lost under 50 changes a second": Aim(value=found["failed"], aim=0)}


async def _run(**asked: Any) -> dict[str, Any]:
    """One client's run, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.routing", "client", json.dumps(asked)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    found: dict[str, Any] = json.loads(said)
    return found


# in processes of their own


class _Serving(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER * data.count(b"\r\n\r\n"))


async def _server(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Serving, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


async def _client(asked: dict[str, Any]) -> dict[str, Any]:
    """`rate` 0: 32 requests at once, each followed by the next."""
    gc.disable()  # a collection of so many tasks stops this client for 50 to 120 ms, which is no latency of a server
    drawn, seconds, rate = random.Random(asked["seed"]), asked["seconds"], asked["rate"]
    method = "POST" if asked.get("post") else "GET"
    url = f"http://127.0.0.1:{asked['port']}{asked['path']}"
    took: list[float] = []
    failed = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(due: float) -> None:
            nonlocal failed
            try:
                async with session.request(method, url, data=b"x" if method == "POST" else None) as answer:
                    await answer.read()
                    if answer.status != 200:
                        failed += 1
                        return
            except aiohttp.ClientError:
                failed += 1
                return
            took.append(time.perf_counter() - due)

        began = time.perf_counter()
        if rate:
            tasks = []
            due = began
            while (due := due + drawn.expovariate(rate)) < began + seconds:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.append(asyncio.create_task(one(max(due, time.perf_counter() - 0.0005))))
            await asyncio.gather(*tasks)
        else:
            await asyncio.gather(*(_again(one, began + seconds) for _ in range(32)))
    return {
        "count": len(took),
        "failed": failed,
        "p50": quantile(took, 0.5) * 1000,
        "p99": quantile(took, 0.99) * 1000,
    }


async def _again(one: Callable[[float], Any], end: float) -> None:
    while time.perf_counter() < end:
        await one(time.perf_counter())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
