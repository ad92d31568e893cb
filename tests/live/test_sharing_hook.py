"""The hook in real processes, on the emulated driver, against an arbiter that the test plays: launches and turns."""

import os
import time
from pathlib import Path

import pytest

from tests.support.compiled import Built
from tests.support.launch_cost import measure
from tests.support.scripted_arbiter import (
    CAPPED,
    CHARGE,
    CLOSED,
    GATED,
    HELLO,
    HOLD,
    MIB,
    RETURN,
    WANT,
    ScriptedArbiter,
    environment,
    never,
    output,
    program,
)

LAUNCH_CALLS = (
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernel_ptsz",
)

# without limits


def test_without_weft_share_the_preloaded_library_does_nothing(built: Built, device: Path) -> None:
    environ = {**os.environ, **environment(built, device), "LD_PRELOAD": str(built.hook)}
    environ.pop("WEFT_SHARE", None)
    text = """
d = Driver()
d.launch(1000); d.synchronize()
print(d.memory()[1], d.allocate(1 << 20) is not None)
"""
    assert output(program(text, environ)).split() == [str(16 << 30), "True"]


def test_a_job_folder_that_is_not_there_limits_nothing(built: Built, device: Path, tmp_path: Path) -> None:
    environ = {**os.environ, **environment(built, device), "LD_PRELOAD": str(built.hook)}
    text = "d = Driver(); d.launch(1000); d.synchronize(); print('done')"
    assert output(program(text, {**environ, "WEFT_SHARE": str(tmp_path / "none")})) == "done\n"


@pytest.mark.parametrize("name", ["limits", "use", "socket"])
@pytest.mark.parametrize("content", [b"", b"x" * 10, b"x" * 4096])
def test_a_job_folder_with_anything_in_it_stops_no_job(
    built: Built, device: Path, slot: Path, name: str, content: bytes
) -> None:
    with ScriptedArbiter(slot, flags=GATED | CAPPED) as arbiter:
        environ = arbiter.environment(built, device)
    (slot / name).unlink(missing_ok=True)
    (slot / name).write_bytes(content)
    text = "d = Driver(); d.launch(1000); d.allocate(4096); d.synchronize(); print('done')"
    assert output(program(text, environ)) == "done\n"


@pytest.mark.alone
def test_a_job_that_starts_before_its_arbiter_waits_for_the_pages(built: Built, device: Path, slot: Path) -> None:
    slot.mkdir()
    text = "d = Driver(); print(d.memory()[1]); d.launch(1000); d.synchronize()"
    environ = {**os.environ, **environment(built, device), "LD_PRELOAD": str(built.hook), "WEFT_SHARE": str(slot)}
    job = program(text, environ)
    time.sleep(0.7)
    with ScriptedArbiter(slot, flags=GATED | CAPPED, memory_limit=64 * MIB) as arbiter:
        assert output(job) == f"{64 * MIB}\n"
        assert len(arbiter.ops(WANT)) >= 1


def test_launches_are_counted_and_nothing_waits_while_no_flag_is_set(
    built: Built, device: Path, arbiter: ScriptedArbiter
) -> None:
    arbiter.set_flags(0)
    text = "d = Driver()\nfor _ in range(50): d.launch(100)\nd.synchronize()"
    output(program(text, arbiter.environment(built, device)))
    assert arbiter.launches == 50
    assert arbiter.ops(WANT) == []


def test_ordinary_programs_run_under_the_preload(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    text = """
import ssl, hashlib, subprocess, ctypes
print(subprocess.run(["sh", "-c", "echo child"], capture_output=True, text=True).stdout.strip())
print(ctypes.CDLL(None).strlen(b"four"))
"""
    assert output(program(text, arbiter.environment(built, device))).split() == ["child", "4"]


# the turn


@pytest.mark.parametrize("name", LAUNCH_CALLS)
@pytest.mark.alone
def test_every_way_to_launch_waits_for_the_turn(built: Built, device: Path, slot: Path, name: str) -> None:
    with ScriptedArbiter(slot, answer=never) as arbiter:
        text = f"d = Driver(); print('ready', flush=True); d.launch(1000, name={name!r}); d.synchronize(); print('ran')"
        job = program(text, arbiter.environment(built, device))
        arbiter.wait_for(lambda: bool(arbiter.ops(WANT)))
        time.sleep(0.3)
        assert job.poll() is None
        arbiter.grant(arbiter.ops(WANT)[0].connection)
        assert output(job) == "ready\nran\n"
        [hello] = arbiter.ops(HELLO)
        assert (hello.pid, hello.a) == (job.pid, 0)
        assert arbiter.waits_given_up == 0


@pytest.mark.parametrize("name", ["cuGraphLaunch", "cuGraphLaunch_ptsz"])
@pytest.mark.alone
def test_graphs_wait_for_the_turn_and_their_capture_does_not(built: Built, device: Path, slot: Path, name: str) -> None:
    with ScriptedArbiter(slot, answer=never) as arbiter:
        text = f"""
d = Driver()
graph = d.graph(3, 1000)
print('captured', flush=True)
d.check({name!r}, graph, None); d.synchronize()
print('ran')
"""
        job = program(text, arbiter.environment(built, device))
        arbiter.wait_for(lambda: bool(arbiter.ops(WANT)))
        assert job.stdout is not None
        assert job.stdout.readline() == "captured\n"
        arbiter.grant(arbiter.ops(WANT)[0].connection)
        assert output(job) == "ran\n"
        arbiter.wait_for(lambda: len(arbiter.ops(HELLO)) == 1)


@pytest.mark.alone
def test_a_capture_in_one_thread_is_not_broken_by_gated_launches_in_another(
    built: Built, device: Path, arbiter: ScriptedArbiter
) -> None:
    text = """
import threading
d = Driver()
captured, graph, stop = d.stream(), c_void_p(), threading.Event()
def others():
    d.check("cuCtxSetCurrent", d.context)
    stream, mode = d.stream(), c_int(2)
    d.check("cuThreadExchangeStreamCaptureMode", byref(mode))  # as frameworks do
    mode = c_int(0)
    d.check("cuThreadExchangeStreamCaptureMode", byref(mode))
    while not stop.is_set(): d.launch(500, stream)
thread = threading.Thread(target=others); thread.start()
time.sleep(0.1)
d.check("cuStreamBeginCapture_v2", captured, c_int(0))
for _ in range(20):
    d.launch(300, captured); time.sleep(0.005)
print(d.call("cuStreamEndCapture", captured, byref(graph)))
stop.set(); thread.join(); d.synchronize()
"""
    assert output(program(text, arbiter.environment(built, device))) == "0\n"
    assert arbiter.busy_us > 10_000


@pytest.mark.alone
def test_what_a_turn_cost_is_reported_and_no_turn_is_longer_than_its_quota(
    built: Built, device: Path, arbiter: ScriptedArbiter
) -> None:
    """The device itself knows best how long it was busy."""
    arbiter.quota_us = 20_000
    text = """
d = Driver()
for _ in range(200): d.launch(2000)
d.synchronize(); time.sleep(0.2)
"""
    output(program(text, arbiter.environment(built, device)))
    returned = [said.a for said in arbiter.ops(RETURN)]
    corrections = sum(said.a - (1 << 64) * (said.a >> 63) for said in arbiter.ops(CHARGE))
    assert sum(returned) + corrections == pytest.approx(400_000, rel=0.2)
    assert max(returned) <= 30_000
    assert arbiter.busy_us == pytest.approx(400_000, rel=0.2)
    assert 1900 <= arbiter.longest_kernel_us <= 20_000
    assert arbiter.waits_given_up == 0


@pytest.mark.alone
def test_different_kernels_and_a_graph_are_told_apart(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    text = """
d = Driver()
graph = d.graph(4, 1000)
for _ in range(60):
    d.launch(200); d.launch(3000); d.check("cuGraphLaunch", graph, None)
d.synchronize(); time.sleep(0.2)
"""
    output(program(text, arbiter.environment(built, device)))
    charged = sum(said.a for said in arbiter.ops(RETURN))
    corrections = sum(said.a - (1 << 64) * (said.a >> 63) for said in arbiter.ops(CHARGE))
    assert charged + corrections == pytest.approx(60 * 7_200, rel=0.2)


@pytest.mark.alone
def test_work_in_flight_is_bounded_in_time(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    """Launching is as slow as the device: no more than the bound is ahead of it."""
    arbiter.quota_us, arbiter.bound_us = 1_000_000, 5_000
    text = """
d = Driver()
for _ in range(10): d.launch(2000)
d.synchronize()
left = []
for _ in range(5):
    for _ in range(10): d.launch(2000)
    begun = time.monotonic(); d.synchronize(); left.append(time.monotonic() - begun)
print(min(left))
"""
    left = float(output(program(text, arbiter.environment(built, device))))
    assert left < 0.015  # unbounded it is 0.02 of queued kernels


@pytest.mark.alone
def test_an_idle_process_gives_its_turn_back(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    arbiter.quota_us = 1_000_000
    text = "d = Driver(); d.launch(1000); d.synchronize(); print('idle', flush=True); sys.stdin.read()"
    job = program(text, arbiter.environment(built, device))
    assert job.stdout is not None
    job.stdout.readline()
    arbiter.wait_for(lambda: bool(arbiter.ops(RETURN)), seconds=2)
    assert arbiter.ops(RETURN)[0].b == 0
    output(job)


@pytest.mark.alone
def test_a_turn_that_is_revoked_comes_back(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    arbiter.quota_us = 60_000_000
    job = program("d = Driver()\nwhile True: d.launch(1000)", arbiter.environment(built, device))
    arbiter.wait_for(lambda: arbiter.launches > 20)
    arbiter.revoke(arbiter.ops(HELLO)[0].connection, 1)
    arbiter.wait_for(lambda: bool(arbiter.ops(RETURN)), seconds=2)
    assert arbiter.ops(RETURN)[0].turn == 1
    job.kill()
    job.communicate()


@pytest.mark.alone
def test_a_hold_stops_the_launches_at_once_and_its_end_lets_them_go_on(
    built: Built, device: Path, arbiter: ScriptedArbiter
) -> None:
    arbiter.quota_us = 60_000_000
    job = program("d = Driver()\nwhile True: d.launch(100)", arbiter.environment(built, device))
    arbiter.wait_for(lambda: arbiter.launches > 100)
    arbiter.set_flags(GATED | HOLD)
    time.sleep(0.05)
    held = arbiter.launches
    time.sleep(0.3)
    assert arbiter.launches <= held + 1  # counted before it waits
    arbiter.set_flags(GATED)
    arbiter.wait_for(lambda: arbiter.launches > held + 100, seconds=5)
    job.kill()
    job.communicate()


@pytest.mark.alone
def test_the_last_launch_comes_within_a_millisecond_of_a_hold(
    built: Built, device: Path, arbiter: ScriptedArbiter
) -> None:
    """The best of some holds: this machine may do something else in between. The job writes when it launched last."""
    arbiter.set_flags(0)
    text = """
import mmap, struct
d = Driver()
page = mmap.mmap(os.open(os.environ["LAST"], os.O_RDWR), 4096)
nothing = d.function("nothing")
while True:
    d.check("cuLaunchKernel", nothing, *(c_uint(1),) * 6, c_uint(0), None, None, None)
    struct.pack_into("<Q", page, 0, time.monotonic_ns())
"""
    last = arbiter.folder / "last"
    last.write_bytes(bytes(4096))
    job = program(text, arbiter.environment(built, device, LAST=str(last)))
    late = []
    for _ in range(10):
        launched = arbiter.launches
        arbiter.wait_for(lambda launched=launched: arbiter.launches > launched + 100)  # type: ignore[misc]
        arbiter.set_flags(HOLD)
        at = time.monotonic_ns()
        time.sleep(0.02)
        late.append(int.from_bytes(last.read_bytes()[:8], "little") - at)
        arbiter.set_flags(0)
    job.kill()
    job.communicate()
    assert min(late) < 5_000_000


@pytest.mark.alone
def test_a_process_that_uses_two_gpus_is_not_gated(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, answer=never) as arbiter:
        text = """
first = Driver(0)
mode = c_int()
first.check("cuCtxSetCurrent", first.context)
import threading
print("ready", flush=True)
def here(): first.check("cuCtxSetCurrent", first.context); first.launch(1000)
thread = threading.Thread(target=here); thread.start()
time.sleep(0.3); print(thread.is_alive())
second = Driver(1); second.launch(1000); second.synchronize()
thread.join(5); print(thread.is_alive())
"""
        job = program(text, arbiter.environment(built, device, WEFT_GPUS="0,1"))
        assert output(job).split() == ["ready", "True", "False"]


# an arbiter that is not there


@pytest.mark.alone
def test_an_arbiter_that_says_nothing_holds_a_launch_up_for_two_seconds(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, answer=never) as arbiter:
        arbiter.beating = False
        text = """
d = Driver()
begun = time.monotonic(); d.launch(1000); print(time.monotonic() - begun)
begun = time.monotonic(); d.launch(1000); d.launch(1000); print(time.monotonic() - begun)
"""
        first, then = map(float, output(program(text, arbiter.environment(built, device))).split())
        assert 1.0 < first < 8.0
        assert then < 1.0
        assert arbiter.waits_given_up == 1


@pytest.mark.alone
def test_an_arbiter_that_is_gone_lets_an_open_job_run(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    job = program("d = Driver()\nwhile True: d.launch(1000)", arbiter.environment(built, device))
    arbiter.wait_for(lambda: arbiter.launches > 50)
    arbiter.stop()
    launched = arbiter.launches
    arbiter.wait_for(lambda: arbiter.launches > launched + 200, seconds=5)
    said = len(arbiter.said)
    arbiter.start()
    arbiter.wait_for(lambda: len(arbiter.ops(HELLO)) == 2, seconds=5)
    arbiter.wait_for(lambda: len(arbiter.said) > said + 5, seconds=5)
    assert arbiter.said[said].op == HELLO
    job.kill()
    job.communicate()


@pytest.mark.alone
def test_an_arbiter_that_is_gone_stops_a_closed_job_until_it_is_back(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=GATED | CLOSED) as arbiter:
        job = program("d = Driver()\nwhile True: d.launch(1000)", arbiter.environment(built, device))
        arbiter.wait_for(lambda: arbiter.launches > 50)
        arbiter.stop()
        time.sleep(0.1)
        launched = arbiter.launches
        time.sleep(0.5)
        assert arbiter.launches <= launched + 1
        arbiter.start()
        arbiter.wait_for(lambda: arbiter.launches > launched + 50, seconds=5)
        job.kill()
        job.communicate()


@pytest.mark.alone
def test_a_killed_holder_ends_its_connection(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    """By which the arbiter knows; and the device is free for the next one at once."""
    arbiter.quota_us = 60_000_000
    holder = program("d = Driver()\nwhile True: d.launch(1000)", arbiter.environment(built, device))
    arbiter.wait_for(lambda: arbiter.launches > 20)
    holder.kill()
    holder.communicate()
    begun = time.monotonic()
    text = "d = Driver(); d.launch(1000); d.synchronize()"
    output(program(text, arbiter.environment(built, device)))
    assert time.monotonic() - begun < 10


# what it costs


@pytest.mark.alone
def test_a_launch_costs_little(built: Built, tmp_path: Path) -> None:
    """The aims are 60 ns and 300 ns; a busy machine may take some times as long."""
    costs = measure(built, tmp_path)
    assert costs.idle - costs.bare < 200
    assert costs.gated - costs.bare < 1000
