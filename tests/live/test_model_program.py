"""The emulated model of tests and benchmarks: a real HTTP server in a process of its own."""

import asyncio
import io
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.bench.sharing.rig import rig
from tests.support import compiled
from tests.support.programs import PROGRAMS
from tests.support.tree import PYTHONPATH
from weft.emulation.slowdowns import slow_down
from weft.sharing import native

PROGRAM = PROGRAMS / "model.py"
SECONDS_MAX = 60


@asynccontextmanager
async def model(**environ: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"PATH": os.environ["PATH"], "WEFT_PORT": str(port), **environ}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert b"listens" in await asyncio.wait_for(process.stdout.readline(), SECONDS_MAX)
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_it_is_ready_after_its_time_of_loading() -> None:
    began = time.monotonic()
    async with model(LOAD_SECONDS="4") as (_, url), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/healthz") as answer:
            status = answer.status
        assert status == 503
        async with asyncio.timeout(SECONDS_MAX):
            while status == 503:
                await asyncio.sleep(0.1)
                async with session.get(f"{url}/healthz") as answer:
                    status, told = answer.status, await answer.json()
        assert (status, told) == (200, {"ready": True})
        assert time.monotonic() - began >= 4.0


async def test_it_answers_whole_or_token_by_token_in_its_time(tmp_path: Path) -> None:
    slow_down(tmp_path, 0, 2.0)
    emulated = {"WEFT_EMULATED_SLOWDOWNS": str(tmp_path), "WEFT_GPUS": "0"}
    async with model(SERVICE_MS="1000", **emulated) as (_, url), aiohttp.ClientSession() as session:
        began = time.monotonic()
        async with session.post(f"{url}/v1/generate", json={"prompt": "x", "tokens": 3}) as answer:
            assert (await answer.json())["tokens"] == 3
        assert 2.0 <= time.monotonic() - began < SECONDS_MAX
        times: list[float] = []
        tokens = 0
        async with session.post(f"{url}/v1/generate", json={"tokens": 4, "stream": True}) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
                    assert "token" in json.loads(line[6:])
                    tokens += 1
        assert tokens == 4
        assert times[-1] - times[0] >= 0.5, "1.5 s, if the first is read at once"


async def test_requests_beyond_its_slots_wait_their_turn() -> None:
    async with model(SERVICE_MS="300", SLOTS="2") as (_, url), aiohttp.ClientSession() as session:

        async def one() -> None:
            async with session.post(f"{url}/v1/generate", json={}) as answer:
                assert answer.status == 200

        began = time.monotonic()
        await asyncio.gather(*(one() for _ in range(4)))
        assert time.monotonic() - began >= 0.6


async def test_on_sigterm_it_finishes_what_it_has_and_takes_nothing_new() -> None:
    """The head of a streamed answer comes before its tokens: then the request is there."""
    async with model(SERVICE_MS="2000") as (process, url), aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/generate", json={"stream": True}) as answer:
            process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(ask_on(f"{url}/healthz"), SECONDS_MAX)
            assert (answer.status, (await answer.read()).endswith(b"[DONE]\n\n")) == (200, True)
        assert await asyncio.wait_for(process.wait(), SECONDS_MAX) == 0


async def ask_on(url: str) -> None:
    """Ask over a new connection each time, until none is taken."""
    while True:
        async with aiohttp.ClientSession() as other, other.get(url):
            pass


async def test_an_idle_connection_does_not_keep_it_from_ending() -> None:
    async with model() as (process, url), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/healthz") as answer:
            await answer.read()  # the session keeps the connection
        process.terminate()
        assert await asyncio.wait_for(process.wait(), SECONDS_MAX) == 0


async def test_it_crashes_hangs_and_answers_garbage_on_demand() -> None:
    async with model(CRASH_AFTER="2", SERVICE_MS="1") as (process, url), aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(f"{url}/v1/generate", json={}) as answer:
                assert answer.status == 200
        assert await asyncio.wait_for(process.wait(), SECONDS_MAX) == 1
    async with model(HANG="1") as (_, url), aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            async with session.get(f"{url}/healthz", timeout=aiohttp.ClientTimeout(total=0.5)):
                pass
    async with model(GARBAGE="1") as (_, url), aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.get(f"{url}/healthz"):
                pass


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"tokens": 0}', 400),
        (b'{"tokens": "many"}', 400),
        (b"[" * 100_000, 400),
        (b"x" * ((1 << 20) + 1), 413),
    ],
)
async def test_what_it_cannot_read_is_answered_and_it_goes_on(body: bytes, status: int) -> None:
    async with model(SERVICE_MS="1") as (process, url):
        async with aiohttp.ClientSession() as session:
            try:
                async with session.post(f"{url}/v1/generate", data=io.BytesIO(body)) as answer:
                    assert answer.status == status
            except aiohttp.ClientError:  # it did not read the body to its end
                assert status == 413
            async with session.post(f"{url}/v1/generate", json={}) as answer:
                assert answer.status == 200
        assert process.returncode is None


async def test_knobs_that_are_none_are_named() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        env={"SERVICE_MS": "-1", "WEFT_PORT": "1"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    assert (process.returncode, said) == (2, b"model: SERVICE_MS is not between 0 and 600000\n")


@pytest.mark.alone
async def test_with_a_share_its_time_is_that_of_the_emulated_gpu(tmp_path: Path) -> None:
    built = compiled.build()
    if isinstance(built, native.NotBuilt):
        if os.environ.get("CI"):
            pytest.fail(built.reason)
        pytest.skip(built.reason)
    with rig() as gpu:
        gpu.share("a", 500)
        environ = {**gpu.environment("a"), "WEFT_GPUS_EMULATED": "1", "SERVICE_MS": "300", "SLOTS": "2"}
        environ["PYTHONPATH"] = PYTHONPATH
        async with model(**environ) as (process, url), aiohttp.ClientSession() as session:

            async def one() -> None:
                async with session.post(f"{url}/v1/generate", json={}) as answer:
                    assert answer.status == 200

            began = time.monotonic()
            await asyncio.gather(*(one() for _ in range(4)))
            assert time.monotonic() - began >= 1.2, "one GPU has one time"
            assert gpu.ledger().of[process.pid] == pytest.approx(1.2, abs=0.01)
