"""What a hostile tenant does with its own token and nothing else: each attack goes on until it is stopped.

Everything is drawn from the seed. It connects from an address of its own (127.0.0.2), as a tenant elsewhere would.
"""

import asyncio
import base64
import json
import random
import resource
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiohttp
import msgspec
from msgspec import Struct

ADDRESS = "127.0.0.2"
ANSWER_SECONDS_MAX = 40.0
AFTER_ERROR_SECONDS = 0.05
COMES_SECONDS, COMES_AGAIN_SECONDS = (0.0, 6.0), (5.0, 25.0)  # before a connection is made, and when it was cut again
WAITING = {"gpus": 4, "cpus": 0.1, "memory": "64MiB"}  # all GPUs of a node: all but the first jobs wait
SPEC_BYTES = 960 << 10
YAML_BYTES = (1 << 20) - 64
UPDATE_BYTES = 880_000
LARGE_EVENTS = 60
SESSIONS = 80  # more than a tenant may have at once
READ_SECONDS_MAX = 10.0
HTTP_ACCEPTED = 202
SERVICE = {"kind": "inference", "service": {}, "roles": {"worker": {**WAITING, "replicas": {"want": 2}}}}
PATTERN = "(?i)(?P<a>x)" + "[!-\uffff]" * 195  # and some letters, so that no two are alike


class Target(Struct, frozen=True, kw_only=True):
    """Whom to attack, as whom, with how much. `seconds_max` ends it even if nobody does."""

    attack: str
    url: str
    token: str
    seed: int
    seconds_max: float
    specifications: int
    jobs: int
    connections: int


class Hostile:
    def __init__(self, target: Target, session: aiohttp.ClientSession, answers: Counter[str]) -> None:
        self.target = target
        self.answers = answers
        self.ids: list[str] = []
        self.random = random.Random(f"{target.attack} {target.seed}")
        self.session = session
        self.blob = base64.b85encode(self.random.randbytes(SPEC_BYTES * 4 // 5)).decode()
        self._number = 0

    async def ask(
        self, method: str, path: str, body: bytes | None = None, content: str = "application/json"
    ) -> tuple[int, bytes]:
        """The status and the answer; 0 where there was none."""
        headers = {"Content-Type": content} if body else {}
        try:
            async with self.session.request(method, f"{self.target.url}{path}", data=body, headers=headers) as response:
                answer = await response.read()
                self.answers[str(response.status)] += 1
                return response.status, answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.answers[type(error).__name__] += 1
            await asyncio.sleep(AFTER_ERROR_SECONDS)
            return 0, b""

    async def submit(self, **fields: object) -> str | None:
        self._number += 1
        spec = {"name": f"hostile-{self._number}", "command": ["sleep", "3600"], "grace": "1s", **fields}
        spec.setdefault("roles", {"worker": WAITING})
        status, answer = await self.ask("POST", "/v1/jobs", json.dumps(spec).encode())
        if status not in (200, 201):
            return None
        self.ids.append(str(msgspec.json.decode(answer)["id"]))
        return self.ids[-1]

    async def fill(self, count: int, *, at_once: int = 32, **fields: object) -> None:
        """Queue so many jobs, or until the bound on them is met."""
        for _ in range(0, count, at_once):
            made = await asyncio.gather(*(self.submit(**fields) for _ in range(at_once)))
            if not any(made):
                return

    async def hammer(self, at_once: int, act: Callable[[], Awaitable[object]]) -> None:
        """For ever, so many at a time; refusals change nothing."""

        async def one() -> None:
            while True:
                await act()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(one())


Ready = Callable[[], None]
Attack = Callable[[Hostile, Ready], Awaitable[None]]


async def large_specifications(hostile: Hostile, ready: Ready) -> None:
    async def one() -> object:
        cut = hostile.random.randrange(len(hostile.blob))
        value = hostile.blob[cut:] + hostile.blob[:cut]
        parts = {f"V{number}": value[at : at + 30_000] for number, at in enumerate(range(0, len(value), 30_000))}
        return await hostile.submit(env=parts)

    until = hostile.target.specifications
    for _ in range(0, until, 8):
        if not any(await asyncio.gather(*(one() for _ in range(8)))):
            break
    ready()
    if hostile.answers["429"]:
        await hostile.hammer(8, one)
    await asyncio.Event().wait()


async def queued_jobs(hostile: Hostile, ready: Ready) -> None:
    await hostile.fill(hostile.target.jobs, at_once=64)
    ready()
    if hostile.answers["429"]:
        await hostile.hammer(16, hostile.submit)
    await asyncio.Event().wait()


async def event_streams(hostile: Hostile, ready: Ready) -> None:
    """All streams that it can open, which read slowly, and a job that is changed all the time."""
    job = await hostile.submit()
    ready()

    async def stream() -> None:
        path = hostile.random.choice(("/v1/events?follow=1", f"/v1/jobs/{job}/events?follow=1"))
        try:
            async with hostile.session.get(
                f"{hostile.target.url}{path}", timeout=aiohttp.ClientTimeout(total=None)
            ) as response:
                hostile.answers[str(response.status)] += 1
                async for _ in response.content.iter_chunked(64):
                    await asyncio.sleep(0.5)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            hostile.answers[type(error).__name__] += 1
        await asyncio.sleep(AFTER_ERROR_SECONDS)

    async def change() -> None:
        body = json.dumps({"priority": hostile.random.randrange(-10, 1)}).encode()
        await hostile.ask("POST", f"/v1/jobs/{job}/priority", body)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hostile.hammer(300, stream))
        tasks.create_task(hostile.hammer(2, change))


async def past(hostile: Hostile, ready: Ready) -> None:
    """The cluster as it was, twenty times at once."""
    await hostile.fill(hostile.target.jobs // 4)
    ready()

    async def one() -> None:
        ago = hostile.random.uniform(0.0, 5.0)
        await hostile.ask("GET", f"/v1/cluster?at={time.time() - ago:.3f}")

    await hostile.hammer(20, one)


async def explanations(hostile: Hostile, ready: Ready) -> None:
    await hostile.fill(hostile.target.jobs // 4)
    ready()

    async def one() -> None:
        await hostile.ask("GET", f"/v1/jobs/{hostile.random.choice(hostile.ids or ['none'])}/explain")

    await hostile.hammer(20, one)


async def event_reads(hostile: Hostile, ready: Ready) -> None:
    """Events of a tenant that has none lately, behind every cursor and from the newest on."""
    ready()

    async def one() -> None:
        path = hostile.random.choice(("/v1/events", "/v1/events?limit=1000", "/v1/events?after=1-1&limit=1000"))
        await hostile.ask("GET", path)

    await hostile.hammer(40, one)


async def large_yaml(hostile: Hostile, ready: Ready) -> None:
    shapes = (
        b"x: 1" + b":10" * ((YAML_BYTES - 4) // 3),
        b"[" + b"1," * (YAML_BYTES // 2),
        b"[" + b"[]," * (YAML_BYTES // 3),
        b"".join(b"k%d: 2001-01-01\n" % number for number in range(YAML_BYTES // 20)),
    )
    ready()

    async def one() -> None:
        await hostile.ask("POST", "/v1/jobs", hostile.random.choice(shapes), content="application/yaml")

    await hostile.hammer(4, one)


async def patterns(hostile: Hostile, ready: Ready) -> None:
    ready()

    async def one() -> None:
        await hostile.submit(progress={"pattern": PATTERN + "".join(hostile.random.choices("abcdefgh", k=8))})

    await hostile.hammer(4, one)


async def idle_connections(hostile: Hostile, ready: Ready) -> None:
    """Connections without a token, each of which asks one small thing, and then stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, hostile.target.connections + 200)), hard))
    count = min(hostile.target.connections, hard - 200)
    host, port = hostile.target.url.removeprefix("http://").split(":")
    kept: set[asyncio.StreamWriter] = set()

    async def stay(between: tuple[float, float]) -> None:
        await asyncio.sleep(hostile.random.uniform(*between))
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=(ADDRESS, 0))
                kept.add(writer)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: weft\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
            hostile.answers["connected"] += 1
            await reader.read()  # until it is closed
            kept.discard(writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            hostile.answers[type(error).__name__] += 1

    async def come() -> None:
        await stay(COMES_SECONDS)
        await hostile.hammer(1, lambda: stay(COMES_AGAIN_SECONDS))

    coming = asyncio.gather(*(come() for _ in range(count)))
    await asyncio.sleep(COMES_SECONDS[1])
    ready()
    await coming


async def storms(hostile: Hostile, ready: Ready) -> None:
    """Everything that may be asked of one's own jobs, in no order."""
    await hostile.fill(200)
    ready()

    async def one() -> None:
        job = hostile.random.choice(hostile.ids or ["none"])
        what = hostile.random.choice(("cancel", "requeue", "priority"))
        body = json.dumps({"priority": hostile.random.randrange(-1000, 1001)}).encode() if what == "priority" else None
        await hostile.ask("POST", f"/v1/jobs/{job}/{what}", body)

    await hostile.hammer(32, one)


async def log_reads(hostile: Hostile, ready: Ready) -> None:
    """A log of 32 MiB, read whole by sixteen at once, and its end again and again by as many."""
    script = "head -c 33554432 /dev/zero | tr '\\0' x; sleep 3600"
    role = {"gpus": 0, "cpus": 0.1, "memory": "64MiB"}
    job = await hostile.submit(command=["sh", "-c", script], roles={"worker": role})
    for _ in range(100):
        status, answer = await hostile.ask("GET", f"/v1/jobs/{job}/logs?tail=16")
        if status in (200, 206) and len(answer) == 16:
            break
        await asyncio.sleep(0.1)
    ready()

    async def one() -> None:
        await hostile.ask("GET", f"/v1/jobs/{job}/logs" + hostile.random.choice(("", "?tail=65536")))

    await hostile.hammer(32, one)


def environment(hostile: Hostile, count: int) -> bytes:
    """The body of an update of about this size, unlike every other."""
    cut = hostile.random.randrange(1 << 16)
    value = (hostile.blob[cut:] + hostile.blob[:cut])[:count]
    parts = {f"V{number}": value[at : at + 30_000] for number, at in enumerate(range(0, len(value), 30_000))}
    return json.dumps({"env": parts}).encode()


async def _update(hostile: Hostile, job: str | None, count: int) -> int:
    """The status: 202, or a refusal where the tenant has as many bytes as it may."""
    status, _ = await hostile.ask("POST", f"/v1/jobs/{job}/update", environment(hostile, count))
    return status


async def updates(hostile: Hostile, ready: Ready) -> None:
    """Services that wait, each updated with as large an environment as one request may have, and then again."""
    services = hostile.target.specifications
    for _ in range(0, services, 8):
        made = await asyncio.gather(*(hostile.submit(**SERVICE) for _ in range(8)))
        assert hostile.ids, "no service was taken: there is nothing to update"
        taken = await asyncio.gather(*(_update(hostile, job, UPDATE_BYTES) for job in made if job))
        if not any(status == HTTP_ACCEPTED for status in taken):
            break
    ready()
    await hostile.hammer(8, lambda: _update(hostile, hostile.random.choice(hostile.ids or ["none"]), UPDATE_BYTES))


async def large_events(hostile: Hostile, ready: Ready) -> None:
    """Many updates of one service, and then its events: six lists at once, as long as they may be, and streams."""
    job = await hostile.submit(**SERVICE)
    assert job is not None, "the service was not taken: there is nothing to update"
    for _ in range(LARGE_EVENTS):
        await _update(hostile, job, UPDATE_BYTES)
    ready()
    paths = (
        "/v1/events?limit=1000",
        "/v1/events?limit=1000&after=0-0",
        f"/v1/jobs/{job}/events",
        f"/v1/jobs/{job}/events?follow=1&after=0-0",
        "/v1/events?follow=1&after=0-0",
    )

    async def one() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS_MAX):  # a stream goes on
                await hostile.ask("GET", hostile.random.choice(paths))

    await hostile.hammer(6, one)


async def sessions(hostile: Hostile, ready: Ready) -> None:
    """The maximum number of sessions in a run: some write without end and are read slowly, others come and go, with a
    command as long as the story of a job takes."""
    role = {"gpus": 0, "cpus": 0.1, "memory": "64MiB"}
    job = await hostile.submit(roles={"worker": role})
    for _ in range(100):
        _, answer = await hostile.ask("GET", f"/v1/jobs/{job}")
        if b'"state":"running"' in answer:
            break
        await asyncio.sleep(0.1)
    ready()
    commands = (["yes", "x" * 1000], ["true", "x" * 4000])

    async def one() -> None:
        command = hostile.random.choice(commands)
        try:
            async with (
                asyncio.timeout(READ_SECONDS_MAX),
                hostile.session.ws_connect(f"{hostile.target.url}/v1/jobs/{job}/attach?kind=exec") as socket,
            ):
                await socket.send_str(json.dumps({"command": command}))
                async for _ in socket:
                    await asyncio.sleep(0.05 * (command[0] == "yes"))
                hostile.answers["session"] += 1
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            hostile.answers[type(error).__name__] += 1
            await asyncio.sleep(AFTER_ERROR_SECONDS)

    await hostile.hammer(SESSIONS, one)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        event_reads,
        large_yaml,
        patterns,
        idle_connections,
        event_streams,
        storms,
        log_reads,
        explanations,
        past,
        queued_jobs,
        sessions,
        large_events,
        updates,
        large_specifications,
    )
}


async def attack(target: Target, ready: Ready, answers: Counter[str]) -> None:
    """Until it is cancelled, or its time is over. `answers` counts what came back, by status or error."""
    connector = aiohttp.TCPConnector(limit=0, local_addr=(ADDRESS, 0), family=socket.AF_INET)
    headers = {"Authorization": f"Bearer {target.token}"}
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        with suppress(TimeoutError):
            async with asyncio.timeout(target.seconds_max):
                await ATTACKS[target.attack](Hostile(target, session, answers), ready)
