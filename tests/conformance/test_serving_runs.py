"""Runs that serve requests, by every runtime that runs anything: where they listen, and whether they are ready."""

import asyncio
import os

import pytest
from msgspec.structs import replace

from tests.support.engine import need_images
from tests.support.rig import IMAGE_WITH_PYTHON, Rig
from tests.support.runs import find, in_state, logged
from tests.support.servers import PROGRAM, SERVE, asked, probed, until_ready
from weft.messages.nodes import EndReason, RunState, Serve, StartRun
from weftd.executor.machine.ports import PortRange
from weftd.executor.runs import RunKey


def served(rig: Rig, behaviour: str = "well", *, serve: Serve = SERVE, **fields: object) -> StartRun:
    """An order for a server; a skip where nothing is run."""
    rig.needs("commands")
    if rig.docker:
        need_images(IMAGE_WITH_PYTHON)
        fields["image"] = IMAGE_WITH_PYTHON
    return rig.shell(("python3", "-u", "-c", PROGRAM, behaviour), serve=serve, **fields)


async def test_a_run_that_serves_requests_is_reached_at_its_port_and_knows_it(rig: Rig) -> None:
    order = served(rig)
    key = RunKey.of(order)
    await rig.runtime.start(order)
    run = await until_ready(rig.runtime, key)
    assert run.port is not None
    assert run.serve == SERVE
    inside, port, path = (await asked(run.port)).split()
    assert inside == port == (str(SERVE.port) if rig.docker else str(run.port))
    assert path == "/s/job-1/"


async def test_the_next_executor_finds_a_run_at_the_port_that_it_had(rig: Rig) -> None:
    order = served(rig)
    key = RunKey.of(order)
    await rig.runtime.start(order)
    before = await until_ready(rig.runtime, key)
    runtime = await rig.reopen()
    after = await until_ready(runtime, key)
    assert (after.port, after.serve) == (before.port, before.serve)
    assert await asked(after.port or 0)


async def test_runs_of_one_node_have_ports_of_their_own(rig: Rig) -> None:
    orders = [served(rig) for _ in range(3)]
    await asyncio.gather(*(rig.runtime.start(order) for order in orders))
    ports = [(await until_ready(rig.runtime, RunKey.of(order))).port for order in orders]
    assert len(set(ports)) == 3


@pytest.mark.parametrize(
    ("behaviour", "ready", "why"),
    [
        ("well", "/healthz", ""),
        ("well", "", ""),
        ("elsewhere", "/healthz", ""),
        ("ill", "/healthz", "it answers 503 for /healthz"),
        ("garbage", "/healthz", "its answer is no HTTP"),
        ("endless", "/healthz", "its answer is no HTTP"),
        ("mute", "/healthz", "no answer within 2 s"),
        ("closes", "", "it closes connections at once"),
        ("closes", "/healthz", "its answer is no HTTP"),
    ],
)
async def test_a_run_is_ready_when_its_path_answers_well(rig: Rig, behaviour: str, ready: str, why: str) -> None:
    order = served(rig, behaviour, serve=replace(SERVE, ready=ready))
    key = RunKey.of(order)
    await rig.runtime.start(order)
    await logged(rig.runtime, key, b"listening")
    await until_port(rig, key)
    began = asyncio.get_running_loop().time()
    _, found = await probed(rig.runtime, key)
    assert asyncio.get_running_loop().time() - began < 4
    if why == "its answer is no HTTP":
        assert found in (why, "Connection reset by peer")
    else:
        assert found == why


async def test_a_run_that_listens_elsewhere_is_not_ready_and_the_reason_names_where(rig: Rig) -> None:
    order = served(rig, "another")
    key = RunKey.of(order)
    await rig.runtime.start(order)
    port = (await logged(rig.runtime, key, b"listening")).split()[1].decode()
    await until_port(rig, key)
    run, why = await probed(rig.runtime, key)
    nothing = "no process listens at 0.0.0.0:8080 in the container"
    assert why == f"{nothing if rig.docker else f'connection refused at port {run.port}'}; it listens on port {port}"


async def test_a_container_that_listens_on_its_loopback_alone_is_not_reached_and_the_reason_says_so(rig: Rig) -> None:
    order = served(rig, "loopback")
    key = RunKey.of(order)
    await rig.runtime.start(order)
    await logged(rig.runtime, key, b"listening")
    await until_port(rig, key)
    _, why = await probed(rig.runtime, key)
    only = "no process listens at 0.0.0.0:8080 in the container; it listens on 127.0.0.1:8080 only"
    assert why == (only if rig.docker else ""), "a process has the loopback of its node"


async def test_a_run_that_does_not_listen_is_not_ready_by_its_connection_alone(rig: Rig) -> None:
    rig.needs("commands")
    order = rig.shell(("sleep", "60"), serve=Serve(port=8080))
    key = RunKey.of(order)
    await rig.runtime.start(order)
    await until_port(rig, key)
    assert (await probed(rig.runtime, key))[1]  # the engine's own proxy takes the connection, and closes it


async def test_an_ended_run_has_no_port(rig: Rig) -> None:
    order = served(rig)
    key = RunKey.of(order)
    await rig.runtime.start(order)
    await until_ready(rig.runtime, key)
    await rig.runtime.signal(key, kill=True)
    run = await in_state(rig.runtime, key, RunState.EXITED)
    assert await rig.runtime.probe(run)
    assert run.serve == SERVE


@pytest.mark.parametrize("port", [0, -1, 65_536, 10**12])
async def test_a_port_out_of_range_is_refused_where_a_container_should_listen_there(rig: Rig, port: int) -> None:
    order = served(rig, serve=replace(SERVE, port=port))
    await rig.runtime.start(order)
    if not rig.docker:  # there the node chooses
        await until_ready(rig.runtime, RunKey.of(order))
        return
    run = await in_state(rig.runtime, RunKey.of(order), RunState.EXITED)
    assert (run.reason, run.detail) == (
        EndReason.START_FAILED,
        f"service.port: {port} is not between 1 and 65535",
    )


async def test_without_a_free_port_a_process_is_refused_and_others_go_on(rig: Rig) -> None:
    rig.needs("commands")
    if rig.docker:
        pytest.skip("the engine gives the ports of containers")
    first = served(rig)
    await rig.runtime.start(first)
    only = (await until_ready(rig.runtime, RunKey.of(first))).port
    assert only is not None
    rig.node.ports = PortRange(first=only, last=only)
    second = served(rig)
    await rig.runtime.start(second)
    run = await in_state(rig.runtime, RunKey.of(second), RunState.EXITED)
    assert (run.reason, run.detail) == (EndReason.START_FAILED, f"no port is free for it among {only} to {only}")
    assert await asked(only)


async def until_port(rig: Rig, key: RunKey) -> None:
    async with asyncio.timeout(30):
        while (run := await find(rig.runtime, key)) is None or run.port is None:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


async def test_a_removed_run_leaves_no_record(rig: Rig) -> None:
    order = served(rig)
    key = RunKey.of(order)
    await rig.runtime.start(order)
    await until_ready(rig.runtime, key)
    await rig.runtime.signal(key, kill=True)
    await in_state(rig.runtime, key, RunState.EXITED)
    await rig.runtime.remove(key)
    runtime = await rig.reopen()
    assert await find(runtime, key) is None
    assert not [name for name in os.listdir(rig.home.root / "serving") if not name.startswith(".")]
