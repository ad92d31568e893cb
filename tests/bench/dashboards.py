"""What open dashboards cost: `python -m tests.bench dashboards [--quick] [--seed N]`; at its end one line of JSON.

A real gateway in a process of its own over a real NATS and a real Postgres; 1,024 GPUs of 16 nodes are told of once a
second by a process of their own, and are emulated. Two such gateways take submissions at the same time, each as fast as
it can, eight at once from a process of its own; fifty streams are open at one of them, then at the other, so that what
is compared are the same seconds on the same machine. A first view is what a browser fetches for it, without the
browser's own work.
"""

import argparse
import asyncio
import gzip
import json
import os
import posixpath
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.cpu import cpu_of, memory_of
from tests.bench.figures import Aim, line_of, quantile
from tests.support.builders import GIB, node
from tests.support.filled import fill_queued
from tests.support.gateway import Place, add_nodes, place
from tests.support.gateway_process import GatewayProcess, gateway_process
from weft.bus.nats import NatsBus
from weft.domain.cluster import Node
from weft.messages.signals import GpuSample, HostSample, NodeSampled

NODES, GPUS_EACH = 16, 64
STREAMS, TENANTS = 50, 25  # half of the streams are the administrator's
AT_ONCE = 8
WAIT_SECONDS_MAX = 60.0
SPEC = {"name": "bench", "command": ["true"], "roles": {"worker": {"gpus": 1}}}


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] and arguments[0] in ALONE:
        print(json.dumps(asyncio.run(ALONE[arguments[0]](json.loads(arguments[1])))))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.bench dashboards", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    print(f"load of the machine before: {load:.1f} on {os.cpu_count()} processors")
    aims = asyncio.run(_measure(asked.seed, quick=asked.quick))
    for name, aim in aims.items():
        bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
        print(f"{name}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}")
    print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
    print(line_of(aims, seed=asked.seed))
    return 0


async def _measure(seed: int, *, quick: bool) -> dict[str, Aim]:
    seconds, pairs, many = (3.0, 6, 20_000) if quick else (5.0, 16, 20_000)
    names = [f"node-{number}" for number in range(1, NODES + 1)]
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        async with place(Path(folder) / "servers", names) as servers:
            await add_nodes(servers, *(_node(name) for name in names))
            await fill_queued(servers.stores.owner, 10, at=time.time())
            asked = {"nats": servers.nats_url, "names": names, "seed": seed, "folder": str(servers.credentials.folder)}
            async with (
                _alone("telemetry", **asked),
                _gateway(servers, Path(folder) / "gateway.log") as gateway,
                _gateway(servers, Path(folder) / "other.log") as other,
            ):
                tokens = await _tokens(gateway, servers)
                aims = await _first_view(gateway, tokens[0], 10)
                aims |= await _beside((gateway, other), tokens, seconds=seconds, pairs=pairs)
                await servers.stores.owner.execute("TRUNCATE asks, submissions, jobs, events, outbox CASCADE")
                await fill_queued(servers.stores.owner, many, at=time.time())
                await servers.stores.owner.execute("VACUUM ANALYZE", timeout=60)
                await _looked(gateway, tokens[0])
                aims |= await _first_view(gateway, tokens[0], many)
                aims |= await _streams_alone(gateway, tokens, many, seconds=seconds * 2)
            return aims


def _node(name: str) -> Node:
    return node(name, gpus=GPUS_EACH)


@asynccontextmanager
async def _gateway(servers: Place, log: Path) -> AsyncIterator[GatewayProcess]:
    dsn = servers.stores.server.dsn
    most = {
        "GATEWAY_CHANGES_PER_SECOND": "0",
        "GATEWAY_READS_PER_SECOND": "0",
        "GATEWAY_TENANT_JOBS_OPEN_MAX": "10000000",
    }
    most["GATEWAY_TENANT_SPEC_BYTES_MAX"] = str(1 << 40)
    async with gateway_process(log, servers.credentials, nats_url=servers.nats_url, pg_dsn=dsn, **most) as running:
        yield running


async def _tokens(gateway: GatewayProcess, servers: Place) -> list[str]:
    """The administrator's, and one of each tenant."""
    admin = servers.credentials.admin_token_file.read_text().strip()
    found = [admin]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {admin}"}) as http:
        for number in range(TENANTS):
            body = {"tenant": f"tenant-{number}", "label": "bench"}
            async with http.post(f"{gateway.url}/v1/tokens", json=body) as answer:
                found.append((await answer.json())["token"])
    return found


async def _beside(
    gateways: Sequence[GatewayProcess], tokens: list[str], *, seconds: float, pairs: int
) -> dict[str, Aim]:
    """Submissions to two gateways at the same time, fifty streams open at one of them: first at the one, then at the
    other, so that what differs between the two counts for nothing."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    p50: dict[bool, list[float]] = {False: [], True: []}
    resident = 0.0
    for turn in range(pairs):
        opened, closed = (gateways[0], gateways[1]) if turn % 2 else (gateways[1], gateways[0])
        async with _alone("streams", url=opened.url, tokens=_readers(tokens)):
            with_, without = await asyncio.gather(
                *(_ran("submit", url=one.url, token=tokens[1], seconds=seconds) for one in (opened, closed))
            )
            resident = max(resident, memory_of(opened.process.pid))
        for has_streams, found in ((True, with_), (False, without)):
            rates[has_streams].append(found["count"] / seconds)
            p50[has_streams].append(found["p50"])
            if found["failed"]:
                raise SystemExit(f"{found['failed']} submissions failed: {opened.tail()} {closed.tail()}")
        print(
            f"50 streams | none: {rates[True][-1]:.0f} | {rates[False][-1]:.0f} submissions a second,"
            f" p50 {with_['p50']:.1f} | {without['p50']:.1f} ms, p99 {with_['p99']:.1f} | {without['p99']:.1f} ms",
            flush=True,
        )
    for name, by in (("submissions a second", rates), ("p50", p50)):
        print(
            f"{name} with the streams against without, pair by pair: {', '.join(f'{one:.2f}' for one in _ratios(by))}"
        )
    return {
        "submissions a second fewer with 50 streams (%)": _percent(1 - sum(rates[True]) / sum(rates[False])),
        "submissions a second fewer with 50 streams, middle pair (%)": _percent(1 - quantile(_ratios(rates), 0.5)),
        "submissions take longer with 50 streams, p50 (%)": _percent(quantile(_ratios(p50), 0.5) - 1),
        "memory of the gateway with 50 streams (MiB)": Aim(value=round(resident), aim=512),
    }


def _ratios(by: dict[bool, list[float]]) -> list[float]:
    """With the streams against without, each pair measured at the same time."""
    return [opened / closed for opened, closed in zip(by[True], by[False], strict=True)]


def _percent(part: float) -> Aim:
    return Aim(value=round(part * 100, 1), aim=10.0)


async def _looked(gateway: GatewayProcess, token: str) -> None:
    """Until the gateway has looked at a store that was filled behind its back."""
    headers = {"Authorization": f"Bearer {token}"}
    async with asyncio.timeout(WAIT_SECONDS_MAX), aiohttp.ClientSession(headers=headers) as http:
        for path in ("/v1/queue?limit=1", "/v1/live?follow=0"):
            while True:
                async with http.get(f"{gateway.url}{path}") as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(1.0)


async def _streams_alone(gateway: GatewayProcess, tokens: list[str], jobs: int, *, seconds: float) -> dict[str, Aim]:
    """What the gateway takes while nothing but telemetry comes, with the streams and without."""
    used = {}
    for opened in (False, True):
        async with AsyncExitStack() as stack:
            if opened:
                await stack.enter_async_context(_alone("streams", url=gateway.url, tokens=_readers(tokens)))
            await asyncio.sleep(1.0)
            before, began = cpu_of(gateway.process.pid), time.monotonic()
            await asyncio.sleep(seconds)
            used[opened] = (cpu_of(gateway.process.pid) - before) / (time.monotonic() - began)
        print(
            f"{STREAMS if opened else 0} streams, {jobs} jobs, {NODES * GPUS_EACH} GPUs: {used[opened]:.3f} processors"
        )
    return {
        f"processors of the gateway for 50 streams at {jobs} jobs": Aim(
            value=round(used[True] - used[False], 3), aim=0.5
        ),
        f"memory of the gateway with 50 streams at {jobs} jobs (MiB)": Aim(
            value=round(memory_of(gateway.process.pid)), aim=1024
        ),
    }


def _readers(tokens: list[str]) -> list[str]:
    return [tokens[0] if number % 2 else tokens[1 + number // 2] for number in range(STREAMS)]


async def _first_view(gateway: GatewayProcess, token: str, jobs: int) -> dict[str, Aim]:
    """Three first views, each from an empty cache: the middle one counts."""
    found = [await _ran("view", url=gateway.url, token=token) for _ in range(3)]
    found.sort(key=lambda one: one["row_ms"])
    print(f"first view at {jobs} jobs: {found[1]}")
    return {
        f"first view at {jobs} jobs (KiB)": Aim(value=round(found[1]["bytes"] / 1024, 1), aim=300.0),
        f"first row at {jobs} jobs, without the browser's work (ms)": Aim(value=round(found[1]["row_ms"]), aim=1000),
    }


async def _ran(kind: str, **asked: Any) -> dict[str, Any]:
    """One client's run, in a process of its own."""
    process = await _begun(kind, asked)
    said, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{kind} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found


@asynccontextmanager
async def _alone(kind: str, **asked: Any) -> AsyncIterator[None]:
    """A process that does its work meanwhile; it has begun when it says so."""
    process = await _begun(kind, asked)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            if await process.stdout.readline() != b"begun\n":
                raise SystemExit(f"{kind} did not begin")
        yield
        if process.returncode is not None:
            raise SystemExit(f"{kind} ended too soon")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _begun(kind: str, asked: dict[str, Any]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.dashboards", kind, json.dumps(asked)), stdout=asyncio.subprocess.PIPE
    )


# in processes of their own


async def _telemetry(asked: dict[str, Any]) -> dict[str, Any]:
    """Every node tells of its GPUs once a second, for as long as it is let."""
    drawn = random.Random(asked["seed"])
    folder = Path(asked["folder"])
    async with AsyncExitStack() as stack:
        buses = []
        for name in asked["names"]:
            user = f"telemetry-{name}"
            password = (folder / "nats" / user).read_text().strip()
            connecting = NatsBus.connect(asked["nats"], name=user, user=user, password=password)
            buses.append((name, await stack.enter_async_context(connecting)))
        print("begun", flush=True)
        while True:
            began = time.monotonic()
            for name, bus in buses:
                await bus.publish(_sampled(name, drawn))
            await asyncio.sleep(max(0.0, began + 1.0 - time.monotonic()))


def _sampled(name: str, drawn: random.Random) -> NodeSampled:
    host = HostSample(cpus=64, cpus_used=drawn.uniform(0, 64), memory_total=256 * GIB, memory_used=GIB)
    gpus = tuple(
        GpuSample(
            index=index,
            uuid=f"EMULATED-{index}",
            model="Emulated GPU",
            emulated=True,
            utilisation=round(drawn.random(), 2),
            memory_used=drawn.randrange(16 * GIB),
        )
        for index in range(GPUS_EACH)
    )
    return NodeSampled(node_id=name, pool="default", at=time.time(), host=host, gpus=gpus)


async def _streams(asked: dict[str, Any]) -> dict[str, Any]:
    """Open streams that are read as they come, for as long as it is let. It has begun once each had its snapshot."""
    opened = 0
    all_open = asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as http:

        async def one(token: str) -> None:
            nonlocal opened
            headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
            async with http.get(f"{asked['url']}/v1/live", headers=headers) as answer:
                answer.raise_for_status()
                seen = b""
                async for part in answer.content.iter_any():
                    if seen is not None and b"snapshot" in (seen := seen + part):
                        opened += 1
                        seen = None
                        if opened == len(asked["tokens"]):
                            all_open.set()
            raise SystemExit("a stream ended")

        tasks = [asyncio.create_task(one(token)) for token in asked["tokens"]]
        waiting = asyncio.create_task(all_open.wait())
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if all_open.is_set():
            print("begun", flush=True)
        await asyncio.gather(*tasks)
    return {}


async def _submit(asked: dict[str, Any]) -> dict[str, Any]:
    took: list[float] = []
    failed = 0
    headers = {"Authorization": f"Bearer {asked['token']}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        until = time.perf_counter() + asked["seconds"]

        async def one_after_another() -> None:
            nonlocal failed
            while (began := time.perf_counter()) < until:
                async with http.post(f"{asked['url']}/v1/jobs", json=SPEC) as answer:
                    await answer.read()
                    if answer.status == 201:
                        took.append(time.perf_counter() - began)
                    else:
                        failed += 1

        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    ms = [1000 * one for one in took]
    return {"count": len(took), "failed": failed, "p50": quantile(ms, 0.5), "p99": quantile(ms, 0.99)}


async def _view(asked: dict[str, Any]) -> dict[str, Any]:
    """The page with all that it imports, as they are found; then the snapshot and the first rows of the queue."""
    connector = aiohttp.TCPConnector(limit_per_host=6)  # as browsers have
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as http:
        began = time.perf_counter()
        sizes: dict[str, int] = {}

        async def load(path: str) -> None:
            if path in sizes:
                return
            sizes[path] = 0
            async with http.get(f"{asked['url']}{path}", headers={"Accept-Encoding": "gzip"}) as answer:
                answer.raise_for_status()
                body = await answer.read()
                sizes[path] = len(body) + sum(len(name) + len(value) + 4 for name, value in answer.raw_headers)
                plain = gzip.decompress(body) if answer.headers.get("Content-Encoding") == "gzip" else body
            await asyncio.gather(*(load(found) for found in _wanted(path, plain.decode())))

        await load("/")
        loaded = time.perf_counter()
        headers = {"Authorization": f"Bearer {asked['token']}"}
        snapshot, rows = await asyncio.gather(
            _first_frame(http, asked["url"], headers), _rows(http, asked["url"], headers)
        )
        return {
            "bytes": sum(sizes.values()),
            "files": len(sizes),
            "page_ms": round(1000 * (loaded - began), 1),
            "row_ms": round(1000 * (max(snapshot[0], rows[0]) - began), 1),
            "snapshot_bytes": snapshot[1],
            "queue_bytes": rows[1],
        }


def _wanted(path: str, text: str) -> list[str]:
    """What a browser loads next: of the page its files, of a module its imports, of the first module the first page."""
    if path == "/":
        return re.findall(r'(?:href|src)="(/face/[^"]+)"', text)
    folder = path.rpartition("/")[0]
    if not path.endswith(".js"):
        return []
    found = re.findall(r'^(?:import|export)[^;"]*"(\.\.?/[\w./-]+)"', text, re.MULTILINE)
    if path.endswith("/app.js"):
        found.append("./pages/cluster.js")
    return [posixpath.normpath(f"{folder}/{name}") for name in found]


async def _first_frame(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> tuple[float, int]:
    seen = b""
    async with http.get(f"{url}/v1/live", headers={**headers, "Accept": "text/event-stream"}) as answer:
        answer.raise_for_status()
        async for part in answer.content.iter_any():
            seen += part
            place = seen.find(b"snapshot")
            if place >= 0 and b"\n\n" in seen[place:]:
                return time.perf_counter(), len(seen)
    raise SystemExit("the stream had no snapshot")


async def _rows(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> tuple[float, int]:
    async with http.get(f"{url}/v1/queue?limit=100", headers=headers) as answer:
        body = await answer.read()
        answer.raise_for_status()
        assert json.loads(body)["rows"], "the queue has rows"
        return time.perf_counter(), len(body)


ALONE = {"telemetry": _telemetry, "streams": _streams, "submit": _submit, "view": _view}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
