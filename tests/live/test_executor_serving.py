"""Runs that serve requests, under a real executor with a real NATS server: readiness, ports, and the drain."""

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.control_plane import ControlPlane
from tests.support.executors import executor
from tests.support.nats_server import NatsServer
from tests.support.runs import until
from tests.support.servers import SERVE, asked, server_order
from weft.messages.nodes import EndReason
from weft.messages.serving import EndpointsSeen, ReplicaServed, ServiceServed, ServicesServed
from weftd.executor.runs import RunKey

KEY = RunKey("job-1", 1, 0)
SHORT = {"EXECUTOR_SYNC_SECONDS": "0.5"}


@pytest.fixture(autouse=True)
def ports() -> dict[str, str]:
    """Ports that tests at the same time do not share."""
    first = random.randrange(61_000, 65_000, 50)
    return {"EXECUTOR_SERVICE_PORT_FIRST": str(first), "EXECUTOR_SERVICE_PORT_LAST": str(first + 49)}


class Endpoints:
    def __init__(self) -> None:
        self.news: list[EndpointsSeen] = []

    async def hear(self, message: EndpointsSeen) -> None:
        self.news.append(message)

    def now(self) -> dict[RunKey, tuple[bool, bool]]:
        """By run: ready, draining."""
        endpoints = self.news[-1].endpoints if self.news else ()
        return {RunKey(one.job_id, one.epoch, one.rank): (one.ready, one.draining) for one in endpoints}


async def listening(bus: Any) -> Endpoints:
    heard = Endpoints()
    await bus.subscribe(EndpointsSeen, heard.hear)
    return heard


def served(in_flight: int, seq: int, *, draining: bool = True) -> ServicesServed:
    replica = ReplicaServed(epoch=1, rank=0, in_flight=in_flight, draining=draining)
    services = (ServiceServed(job_id="job-1", replicas=(replica,)),)
    return ServicesServed(router="r", boot="b", seq=seq, at=0.0, services=services)


async def test_replicas_that_hang_answer_garbage_or_refuse_are_not_ready_and_harm_no_other(
    server: NatsServer, control: ControlPlane, tmp_path: Path, ports: dict[str, str]
) -> None:
    behaviours = ("well", "mute", "garbage", "endless", "ill", "closes", "elsewhere")
    heard = await listening(control.bus)
    async with executor(server, tmp_path / "home", **SHORT, **ports):
        await control.want(*(server_order(name, rank=rank) for rank, name in enumerate(behaviours)))
        ready = {RunKey("job-1", 1, behaviours.index(name)) for name in ("well", "elsewhere")}
        await until(lambda: {key for key, (is_ready, _) in heard.now().items() if is_ready} == ready)
        await asyncio.sleep(5)  # the others go on as they are
        assert {key for key, (is_ready, _) in heard.now().items() if is_ready} == ready
        assert len(heard.now()) == len(behaviours)
        seen = {RunKey(run.job_id, run.epoch, run.rank): run for run in control.reports[-1].runs}
        assert {key for key, run in seen.items() if run.ready} == ready
        assert len({run.port for run in seen.values()}) == len(behaviours)
        mute = behaviours.index("mute")
        last_words = "not ready: no answer within 2 s\nlistening"  # the log of a run is read every few seconds
        await until(lambda: last_words in [run.detail for run in control.reports[-1].runs if run.rank == mute])


async def test_a_replica_keeps_its_port_though_its_executor_is_killed(
    server: NatsServer, control: ControlPlane, tmp_path: Path, ports: dict[str, str]
) -> None:
    home = tmp_path / "home"
    heard = await listening(control.bus)
    async with executor(server, home, keeping=True, **SHORT, **ports) as process:
        await control.want(server_order())
        await until(lambda: heard.now() == {KEY: (True, False)})
        before = heard.news[-1].endpoints[0]
        process.kill()
        await process.wait()
    assert await asked(before.port)
    last = len(heard.news)
    async with executor(server, home, **SHORT, **ports):
        await until(lambda: len(heard.news) > last)
        first = heard.news[last]
        assert first.endpoints == (replace(before, started_at=first.endpoints[0].started_at),), (
            "at no moment it was away"
        )
        assert first.incarnation > heard.news[last - 1].incarnation


async def test_a_replica_finishes_its_requests_before_it_is_told_to_stop(
    server: NatsServer, control: ControlPlane, tmp_path: Path, ports: dict[str, str]
) -> None:
    home = tmp_path / "home"
    log = home / "logs" / f"{KEY}.log"
    heard = await listening(control.bus)
    async with executor(server, home, **SHORT, **ports):
        await control.want(server_order(serve=replace(SERVE, drain=60.0)))
        await until(lambda: heard.now() == {KEY: (True, False)})
        await control.bus.publish(served(1, 1, draining=False))
        request = asyncio.create_task(asked(heard.news[-1].endpoints[0].port, "/slow"))
        await asyncio.sleep(0.2)
        await control.want()
        await until(lambda: heard.now() == {KEY: (True, True)})
        await control.bus.publish(served(1, 2))
        assert await request
        assert "told to stop" not in log.read_text()
        await control.bus.publish(served(0, 3))
        await until(lambda: "told to stop" in log.read_text(), seconds_max=30)
        assert (await control.hears(KEY, "exited")).reason is EndReason.STOPPED
        await until(lambda: heard.now() == {})


async def test_a_drain_has_its_bound_and_goes_on_under_the_next_executor(
    server: NatsServer, control: ControlPlane, tmp_path: Path, ports: dict[str, str]
) -> None:
    home = tmp_path / "home"
    log = home / "logs" / f"{KEY}.log"
    heard = await listening(control.bus)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    async def never_done() -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            await control.bus.publish(served(1, number))
            await asyncio.sleep(0.2)

    router = asyncio.create_task(never_done())
    try:
        async with executor(server, home, keeping=True, **SHORT, **ports) as process:
            await control.want(server_order(serve=replace(SERVE, drain=6.0)))
            await until(lambda: heard.now() == {KEY: (True, False)})
            await control.want()
            await until(lambda: heard.now() == {KEY: (True, True)})
            process.send_signal(signal.SIGKILL)
            await process.wait()
        assert "told to stop" not in log.read_text()
        async with executor(server, home, **SHORT, **ports):
            before = len(heard.news)
            await until(lambda: len(heard.news) > before and heard.now() == {KEY: (True, True)})
            began = loop.time()
            await until(lambda: "told to stop" in log.read_text(), seconds_max=30)
            assert loop.time() - began >= 4.0
            await control.hears(KEY, "exited")
    finally:
        stopped.set()
        await router


async def test_an_executor_that_leaves_drains_first(
    server: NatsServer, control: ControlPlane, tmp_path: Path, ports: dict[str, str]
) -> None:
    heard = await listening(control.bus)
    leaving = {**SHORT, **ports, "EXECUTOR_STOP_JOBS_ON_EXIT": "1"}
    async with executor(server, tmp_path / "home", **leaving) as process:
        await control.want(server_order(serve=replace(SERVE, drain=30.0)))
        await until(lambda: heard.now() == {KEY: (True, False)})
        port = heard.news[-1].endpoints[0].port
        await control.bus.publish(served(1, 1))
        request = asyncio.create_task(asked(port, "/slow"))
        await asyncio.sleep(0.2)
        process.terminate()
        await until(lambda: heard.now() == {KEY: (True, True)})
        assert await request
        await control.bus.publish(served(0, 2))
        assert await asyncio.wait_for(process.wait(), 30) == 0
    assert (await control.hears(KEY, "exited")).reason is EndReason.STOPPED


async def test_a_port_that_another_process_took_in_between_ends_that_replica_alone(
    server: NatsServer, control: ControlPlane, tmp_path: Path, ports: dict[str, str]
) -> None:
    """The command itself waits until its port is taken by somebody else, as if it had been so all along."""
    taken = 'import os, socket; s = socket.create_server(("", int(os.environ["WEFT_PORT"]))); '
    taken += 'import time; open("taken", "w").close(); time.sleep(60)'
    script = f"""python3 -c '{taken}' & while [ ! -e taken ]; do sleep 0.05; done
    exec python3 -c 'import os, socket; socket.create_server(("", int(os.environ["WEFT_PORT"])))'"""
    async with executor(server, tmp_path / "home", **SHORT, **ports):
        other = server_order("well", rank=1)
        await control.want(replace(other, rank=0, command=("sh", "-c", script)), other)
        seen = await control.hears(KEY, "exited")
        assert (seen.reason, seen.exit_code) == (EndReason.EXIT, 1)
        assert "Address already in use" in seen.detail
        await until(lambda: any(run.rank == 1 and run.ready for run in control.reports[-1].runs))
