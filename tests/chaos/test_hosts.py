"""A short run of the chaos over three hosts: the primary's host is switched off, then the leader's split off."""

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.audit import FAULTY
from tests.chaos.faults import LEADER, PRIMARY, Fault
from tests.chaos.front import Front
from tests.chaos.member import Member
from tests.chaos.run import Asked, chaos
from tests.hosts.laboratory import Laboratory, why_no_laboratory
from tests.support.nats_cluster import until
from tests.support.postgres import durable
from weftd.cli.local.plan import Service, Stage
from weftd.cli.local.ports import free_port

SECONDS, SEED = 16.0, 7
STRUCK = (
    Fault(at=4.0, what="switch off", target=PRIMARY, seconds=4.0),
    Fault(at=9.0, what="split off", target=LEADER, seconds=4.0),
)
SECONDS_MAX = 280.0


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timeout(SECONDS_MAX + 20)
async def test_nothing_is_lost_or_run_twice_when_a_host_is_switched_off_and_another_is_split_off() -> None:
    if why := why_no_laboratory(engines=False):
        pytest.skip(why)
    with durable():
        result = await chaos(Asked(seconds=SECONDS, seed=SEED, settle=180.0, enemies=False, hosts=True, faults=STRUCK))
    figures = result.figures
    assert [finding for finding in result.findings if finding.kind in FAULTY] == []
    jobs = figures["jobs"]
    assert isinstance(jobs, int)
    assert figures["acknowledged"] == jobs > 5
    assert figures["faults_done"] == len(STRUCK)
    assert figures["faults_failed"] == []


async def test_a_service_of_a_host_that_was_stopped_goes_on_and_is_started_again_when_it_ends(tmp_path: Path) -> None:
    if why := why_no_laboratory(engines=False):
        pytest.skip(why)
    service = Service(name="web", module="http.server", stage=Stage.NODE, settings={}, log=tmp_path / "log")
    with Laboratory(1, engines=False) as laboratory:
        member = Member(service, laboratory.hosts[0])
        member.start()
        try:
            await until(lambda: member.pid and Path(f"/proc/{member.pid}/task/{member.pid}/children").read_text())
            parent = member.pid
            member.send(signal.SIGSTOP)
            await until(lambda: Path(f"/proc/{parent}/stat").read_text().split()[2] == "T")
            member.send(signal.SIGCONT)
            await until(lambda: Path(f"/proc/{parent}/stat").read_text().split()[2] == "S")
            member.send(signal.SIGKILL)
            await until(lambda: member.starts == 2)
            assert member.exits == []
        finally:
            await member.stop()


async def test_whoever_connects_reaches_a_gateway_that_takes_connections() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    port = free_port()
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # nothing listens there
        gateway = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with gateway, Front(port, [dead.getsockname(), gateway.sockets[0].getsockname()]):
            for _ in range(4):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await reader.read() == b"hello"
                writer.close()


async def test_whoever_connects_is_let_go_where_no_gateway_takes_connections() -> None:
    port = free_port()
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        async with Front(port, [dead.getsockname()]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
