"""What holds for every runtime that can change the limits of what runs: they bite, and harm no run."""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.support.doubles.runtime import FakeRuntime
from tests.support.rig import MEBIBYTE, Rig, opened
from tests.support.runs import find, in_state, killed_for_memory, logged
from weft.messages.nodes import RunState, StartRun
from weftd.executor.runs import NO_LIMIT, Limits, RunKey, Runtime
from weftd.executor.thinking.rounding import lacking

KILOBYTE = 1000
FREE_SECONDS_MAX = 40.0

# A line each fifth of a second: seconds of the host's uptime, then hundredths of a second of CPU that the shell used.
BUSY = """
last=
while :; do
  i=0; while [ $i -lt 300 ]; do i=$((i+1)); done
  read -r now rest </proc/uptime
  [ "${now%?}" = "$last" ] && continue
  last=${now%?}
  read -r line </proc/$$/stat
  set -- $line
  echo "at $now $((${14} + ${15}))"
done
"""
# Fills 48 MiB of memory and keeps them; tells of it.
KEEPS = """
exec 3>"/dev/shm/$WEFT_JOB_ID" && rm "/dev/shm/$WEFT_JOB_ID"
dd if=/dev/zero bs=1048576 count=48 >&3 2>/dev/null || exit 1
echo kept
while :; do sleep 1; done
"""
SENDS = """
while :; do nc "$MASTER_ADDR" "$MASTER_PORT" </dev/zero; sleep 0.1; done &
while :; do
  read -r now rest </proc/uptime
  read -r sent </sys/class/net/eth0/statistics/tx_bytes
  echo "at $now $sent"
  sleep 0.1
done
"""
RECEIVES = 'while :; do tail -f /dev/null | nc -l -p "$MASTER_PORT" >/dev/null; done'


@pytest.fixture(
    params=[
        "fake",
        "simulated",
        "process",
        "process-cgroups",
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("docker-beside", marks=pytest.mark.docker),
    ]
)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened(request.param, tmp_path) as built:
        yield built


class Told(Struct, frozen=True):
    at: float
    total: float


async def rate_of(runtime: Runtime, key: RunKey, seconds: float, *, settling: float = 0.5) -> float:
    """What a run's lines `at TIME TOTAL` grow by per second, from now on; what was under way before is left out."""
    begun = await _told(runtime, key)
    end = begun.at + settling + seconds
    first = last = begun
    async with asyncio.timeout(30):
        while last.at < end:
            await asyncio.sleep(0.05)
            last = await _told(runtime, key)
            first = last if last.at < begun.at + settling else first
    return (last.total - first.total) / (last.at - first.at)


async def _told(runtime: Runtime, key: RunKey) -> Told:
    """The newest whole line."""
    async with asyncio.timeout(30):
        while True:
            size = (await runtime.read_log(key, offset=0, limit=1)).size
            data = (await runtime.read_log(key, offset=max(0, size - 400), limit=400)).data
            lines = [line for line in data.decode().split("\n")[1:-1] if line.startswith("at ")]
            if lines:
                _, at, total = lines[-1].split()
                return Told(float(at), float(total))
            await asyncio.sleep(0.05)


async def has(runtime: Runtime, key: RunKey) -> Limits:
    run = await find(runtime, key)
    assert run is not None
    return run.limits


async def begun(rig: Rig, asked: StartRun) -> RunKey:
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.RUNNING)
    return RunKey.of(asked)


def cpu_share(hundredths_per_second: float) -> float:
    return hundredths_per_second / 100


async def test_a_run_has_the_limits_of_its_order(rig: Rig) -> None:
    asked = rig.order("stays", cpus=0.7, memory=128 * MEBIBYTE + 3)
    key = await begun(rig, asked)
    limits = await has(rig.runtime, key)
    assert lacking(limits, Limits(cpus=0.7, memory=128 * MEBIBYTE + 3, egress=NO_LIMIT)) is None
    assert (limits == Limits()) is (rig.name == "process")


async def test_where_limits_cannot_be_held_there_are_none_and_they_cannot_be_changed(rig: Rig) -> None:
    if rig.name != "process":
        pytest.skip("the others can")
    key = await begun(rig, rig.order("stays"))
    assert await rig.runtime.resize(key, Limits(cpus=0.5)) == "this host does not allow new control groups"
    assert "network" in await rig.runtime.resize(key, Limits(egress=NO_LIMIT))
    assert await has(rig.runtime, key) == Limits()
    assert {"cpus", "memory", "egress"} <= set(rig.runtime.not_enforced)


async def test_each_limit_changes_by_itself_and_all_at_once(rig: Rig) -> None:
    rig.needs("resize")
    key = await begun(rig, rig.order("stays", cpus=1.0, memory=128 * MEBIBYTE))
    egress = NO_LIMIT if (await has(rig.runtime, key)).egress is not None else None
    assert await rig.runtime.resize(key, Limits(cpus=0.5)) == ""
    assert await has(rig.runtime, key) == Limits(cpus=0.5, memory=128 * MEBIBYTE, egress=egress)
    assert await rig.runtime.resize(key, Limits(memory=256 * MEBIBYTE)) == ""
    assert await has(rig.runtime, key) == Limits(cpus=0.5, memory=256 * MEBIBYTE, egress=egress)
    assert await rig.runtime.resize(key, Limits(cpus=2.25, memory=64 * MEBIBYTE)) == ""
    assert await has(rig.runtime, key) == Limits(cpus=2.25, memory=64 * MEBIBYTE, egress=egress)
    assert await rig.runtime.resize(key, Limits()) == ""
    run = await find(rig.runtime, key)
    assert run is not None
    assert run.live


async def test_less_cpu_and_more_cpu_are_felt_at_once(rig: Rig) -> None:
    rig.needs("resize", "cpus", "commands")
    key = await begun(rig, rig.shell(("sh", "-c", BUSY), cpus=0.1))
    assert cpu_share(await rate_of(rig.runtime, key, 2.0)) < 0.16
    assert await rig.runtime.resize(key, Limits(cpus=1.0)) == ""
    assert (await has(rig.runtime, key)).cpus == 1.0
    async with asyncio.timeout(30):  # the host may be busy with others for a while
        while cpu_share(await rate_of(rig.runtime, key, 2.0)) <= 0.25:
            pass
    assert await rig.runtime.resize(key, Limits(cpus=0.2)) == ""
    assert cpu_share(await rate_of(rig.runtime, key, 2.0)) < 0.28


async def test_memory_grows_with_the_limit_and_does_not_shrink_below_what_is_in_use(rig: Rig) -> None:
    rig.needs("resize", "memory", "commands")
    key = await begun(rig, rig.shell(("sh", "-c", KEEPS), memory=256 * MEBIBYTE))
    await logged(rig.runtime, key, b"kept")
    assert await rig.runtime.resize(key, Limits(memory=512 * MEBIBYTE)) == ""
    why = await rig.runtime.resize(key, Limits(memory=48 * MEBIBYTE, cpus=0.5))
    assert why.startswith(f"memory {48 * MEBIBYTE}: it uses ")
    limits = await has(rig.runtime, key)
    assert (limits.memory, limits.cpus) == (512 * MEBIBYTE, 0.5)
    assert await rig.runtime.resize(key, Limits(memory=192 * MEBIBYTE)) == ""
    assert (await has(rig.runtime, key)).memory == 192 * MEBIBYTE
    run = await in_state(rig.runtime, key, RunState.RUNNING)
    assert run.live


async def test_a_raised_limit_lets_a_run_live_that_would_have_died(rig: Rig) -> None:
    rig.needs("resize", "memory", "commands")
    script = 'cd "$(dirname "$WEFT_PROGRESS")" && mkfifo go && echo up && read -r word <go && ' + KEEPS.strip()

    async def goes(*, raised: bool) -> RunKey:
        key = await begun(rig, rig.shell(("sh", "-c", script), memory=24 * MEBIBYTE))
        await logged(rig.runtime, key, b"up")
        if raised:
            assert await rig.runtime.resize(key, Limits(memory=256 * MEBIBYTE)) == ""
        await asyncio.to_thread(_say_go, rig, key)
        return key

    await killed_for_memory(rig.runtime, partial(goes, raised=False), engine=rig.docker)
    await logged(rig.runtime, await goes(raised=True), b"kept")


def _say_go(rig: Rig, key: RunKey) -> None:
    folder = Path(rig.node.checkpoints).parent / "home" / "runs" / str(key)
    (folder / "go").write_text("go\n")


async def test_the_next_executor_finds_the_limits_as_they_were_left(rig: Rig) -> None:
    rig.needs("resize")
    key = await begun(rig, rig.order("stays", cpus=1.0, memory=128 * MEBIBYTE))
    wanted = Limits(cpus=0.3, memory=96 * MEBIBYTE)
    if "egress" not in rig.runtime.not_enforced:
        wanted = Limits(cpus=0.3, memory=96 * MEBIBYTE, egress=500 * KILOBYTE)
    assert await rig.runtime.resize(key, wanted) == ""
    runtime = await rig.reopen()
    await in_state(runtime, key, RunState.RUNNING)
    assert lacking(await has(runtime, key), wanted) is None
    assert lacking(await has(runtime, key), Limits(cpus=1.0)) == Limits(cpus=1.0)


async def test_a_run_that_has_ended_is_not_resized_and_neither_is_one_that_never_was(rig: Rig) -> None:
    key = await begun(rig, rig.order("stays"))
    await rig.runtime.signal(key, kill=True)
    await in_state(rig.runtime, key, RunState.EXITED)
    assert await rig.runtime.resize(key, Limits(cpus=0.5)) == "it does not run"
    assert await rig.runtime.resize(RunKey("job-never", 1, 0), Limits(memory=MEBIBYTE)) == "it does not run"
    assert await has(rig.runtime, key) == Limits()


async def test_a_run_that_ends_while_it_is_resized_harms_nobody(rig: Rig) -> None:
    key = await begun(rig, rig.order("stays"))
    changes = [rig.runtime.resize(key, Limits(cpus=0.5 + number / 10, memory=100 * MEBIBYTE)) for number in range(4)]
    await asyncio.gather(*changes, rig.runtime.signal(key, kill=True))
    run = await in_state(rig.runtime, key, RunState.EXITED)
    assert run.exit_code == 137
    assert run.limits == Limits()


@pytest.mark.parametrize(
    "garbage",
    [
        {"cpus": math.nan},
        {"cpus": math.inf},
        {"cpus": 0.0},
        {"cpus": -1.0},
        {"memory": 0},
        {"memory": -1},
        {"memory": 1 << 70},
        {"egress": 0},
        {"egress": 100},
        {"egress": -2},
        {"cpus": 0.5, "memory": -5},
    ],
)
async def test_limits_that_make_no_sense_change_nothing(rig: Rig, garbage: dict[str, Any]) -> None:
    key = await begun(rig, rig.order("stays", cpus=1.0, memory=128 * MEBIBYTE))
    before = await has(rig.runtime, key)
    assert await rig.runtime.resize(key, Limits(**garbage))
    assert await has(rig.runtime, key) == before


async def test_the_smallest_and_the_largest_limits_that_make_sense_are_taken(rig: Rig) -> None:
    rig.needs("resize")
    key = await begun(rig, rig.order("stays", cpus=1.0, memory=128 * MEBIBYTE))
    for wanted in (Limits(cpus=0.001, memory=64 << 40), Limits(cpus=4096.0, memory=12 * MEBIBYTE)):
        assert await rig.runtime.resize(key, wanted) == ""
        assert lacking(await has(rig.runtime, key), wanted) is None


async def test_egress_is_held_to_its_limit_and_let_go_again(rig: Rig) -> None:
    rig.needs("egress", "commands")
    peers = {"worker": (rig.node.address, rig.node.address)}
    gang = {"job_id": f"job-{uuid.uuid4().hex[:8]}", "world_size": 2, "master_port": 2345, "peers": peers}
    await begun(rig, rig.shell(("sh", "-c", RECEIVES), **gang))
    key = await begun(rig, rig.shell(("sh", "-c", SENDS), rank=1, egress=500 * KILOBYTE, **gang))
    assert (await has(rig.runtime, key)).egress == 500 * KILOBYTE
    runtime = rig.runtime
    for limit in (500, 2000, 200):
        assert await runtime.resize(key, Limits(egress=limit * KILOBYTE)) == ""
        rate = await rate_of(runtime, key, 2.5, settling=1.0) / KILOBYTE
        assert 0.75 * limit < rate < 1.15 * limit
        runtime = await rig.reopen()
        assert (await has(runtime, key)).egress == limit * KILOBYTE
    assert await runtime.resize(key, Limits(egress=NO_LIMIT)) == ""
    assert (await has(runtime, key)).egress == NO_LIMIT
    async with asyncio.timeout(FREE_SECONDS_MAX):  # a busy machine sends as fast as this now and then only
        while await rate_of(runtime, key, 1.5, settling=1.0) <= 10_000 * KILOBYTE:
            pass


async def test_a_fake_refuses_what_it_is_told_to_refuse(rig: Rig) -> None:
    if not isinstance(rig.runtime, FakeRuntime):
        pytest.skip("the others have reasons of their own")
    host = rig.runtime.host
    key = await begun(rig, rig.order("stays", cpus=1.0))
    host.refuse = lambda _key, limits: "too hot" if limits.cpus == 2.0 else ""
    assert await rig.runtime.resize(key, Limits(cpus=2.0)) == "too hot"
    assert await rig.runtime.resize(key, Limits(cpus=3.0)) == ""
    assert [limits for _, limits in host.resizes] == [Limits(cpus=2.0), Limits(cpus=3.0)]
    assert (await has(rig.runtime, key)).cpus == 3.0
