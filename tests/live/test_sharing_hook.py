"""The hook in real processes, on the emulated driver, against an arbiter that the test plays."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.sharing.native import DRIVER, SOURCES, Built, Compiler, NotBuilt, build, compile_file, find_compiler
from tests.support.launch_cost import measure
from tests.support.scripted_arbiter import (
    CAPPED,
    CHARGE,
    CLOSED,
    GATED,
    HELLO,
    HOLD,
    RETURN,
    WANT,
    Said,
    ScriptedArbiter,
    environment,
    output,
    program,
)

MIB = 1 << 20
COMPILED = build()

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(isinstance(COMPILED, NotBuilt), reason=getattr(COMPILED, "reason", "compiled")),
]

MEMORY_CALLS = (
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemCreate",
    "cuArrayCreate_v2",
    "cuArray3DCreate_v2",
    "cuMipmappedArrayCreate",
)
LAUNCH_CALLS = (
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernel_ptsz",
)


@pytest.fixture
def built() -> Built:
    assert isinstance(COMPILED, Built)
    return COMPILED


@pytest.fixture
def device(tmp_path: Path) -> Path:
    folder = tmp_path / "device"
    folder.mkdir()
    return folder


@pytest.fixture
def slot(tmp_path: Path) -> Path:
    return tmp_path / "slot"


def never(arbiter: ScriptedArbiter, said: Said) -> None:
    """An arbiter that hears and says nothing."""


@pytest.fixture
def arbiter(slot: Path) -> Iterator[ScriptedArbiter]:
    with ScriptedArbiter(slot) as arbiter:
        yield arbiter


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


def test_an_idle_process_gives_its_turn_back(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    arbiter.quota_us = 1_000_000
    text = "d = Driver(); d.launch(1000); d.synchronize(); print('idle', flush=True); sys.stdin.read()"
    job = program(text, arbiter.environment(built, device))
    assert job.stdout is not None
    job.stdout.readline()
    arbiter.wait_for(lambda: bool(arbiter.ops(RETURN)), seconds=2)
    assert arbiter.ops(RETURN)[0].b == 0
    output(job)


def test_a_turn_that_is_revoked_comes_back(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    arbiter.quota_us = 60_000_000
    job = program("d = Driver()\nwhile True: d.launch(1000)", arbiter.environment(built, device))
    arbiter.wait_for(lambda: arbiter.launches > 20)
    arbiter.revoke(arbiter.ops(HELLO)[0].connection, 1)
    arbiter.wait_for(lambda: bool(arbiter.ops(RETURN)), seconds=2)
    assert arbiter.ops(RETURN)[0].turn == 1
    job.kill()
    job.communicate()


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


# memory


@pytest.mark.parametrize("name", MEMORY_CALLS)
def test_no_call_gives_a_byte_beyond_the_cap(built: Built, device: Path, slot: Path, name: str) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        text = f"""
d = Driver()
kept = []
while (at := d.allocate(8 << 20, {name!r})) is not None: kept.append(at)
print(len(kept), *d.memory())
d.free(kept.pop(), {name!r})
print(d.memory()[0], d.allocate(9 << 20, {name!r}), d.allocate(8 << 20, {name!r}) is not None)
"""
        first, second = output(program(text, arbiter.environment(built, device))).splitlines()
        assert first.split() == ["8", "0", str(64 * MIB)]
        assert second.split() == [str(8 * MIB), "None", "True"]
        assert arbiter.denied == 2
        [entry] = arbiter.entries()
        assert entry.memory == 64 * MIB


def test_the_smallest_excess_is_refused(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        text = f"d = Driver(); print(d.allocate({64 * MIB + 1}), d.allocate({64 * MIB}) is not None, d.allocate(1))"
        assert output(program(text, arbiter.environment(built, device))).split() == ["None", "True", "None"]


def test_total_memory_is_the_cap_and_follows_it(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
d = Driver(); size = c_size_t()
def total():
    d.check("cuDeviceTotalMem_v2", byref(size), c_int(0)); return size.value
print(total(), *d.memory(), flush=True)
sys.stdin.readline()
print(total(), *d.memory())
"""
        job = program(text, arbiter.environment(built, device))
        assert job.stdout is not None
        assert set(job.stdout.readline().split()) == {str(64 * MIB)}
        arbiter.set_memory_limit(96 * MIB)
        out, _ = job.communicate("\n", timeout=30)
        assert set(out.split()) == {str(96 * MIB)}


def test_each_process_costs_its_context(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        arbiter.set_context_mib(16)
        text = "d = Driver(); print(d.memory()[0], d.allocate(49 << 20), d.allocate(48 << 20) is not None)"
        assert output(program(text, arbiter.environment(built, device))).split() == [str(48 * MIB), "None", "True"]


def test_threads_streams_graphs_and_memory_survive_an_arbiter_of_moods(built: Built, device: Path, slot: Path) -> None:
    """It forgets WANTs, revokes, holds, frees, dies and comes back; and every byte is given back in the end."""
    text = """
import random, threading
d = Driver(); stop = time.monotonic() + 4; errors = []
graph = d.graph(2, 50)
def work(seed):
    r = random.Random(seed)
    try:
        d.check("cuCtxSetCurrent", d.context)
        streams, kept = [d.stream() for _ in range(3)], []
        while time.monotonic() < stop:
            x, stream = r.random(), r.choice(streams)
            if x < 0.6: d.launch(r.choice((1, 5, 50, 300)), r.choice((stream, None)), r.choice(WAYS))
            elif x < 0.7: d.check("cuGraphLaunch", graph, stream)
            elif x < 0.8: kept.append(d.allocate(r.choice((4096, 1 << 20))))
            elif x < 0.9 and kept: (at := kept.pop()) and d.free(at)
            elif x < 0.92: d.check("cuStreamSynchronize", stream)
            elif x < 0.93: streams[0] = d.check("cuStreamDestroy_v2", streams[0]) or d.stream()
            elif x < 0.94: time.sleep(r.random() / 100)
        for at in filter(None, kept): d.free(at)
    except Exception as error: errors.append(error)
WAYS = ("cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchCooperativeKernel")
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
d.synchronize(); print(errors)
"""
    moods = random.Random(7)

    def answer(arbiter: ScriptedArbiter, said: Said) -> None:
        if said.op == WANT and moods.random() < 0.97:
            arbiter.grant(said.connection, skip=moods.randrange(2))

    with ScriptedArbiter(slot, flags=GATED | CAPPED, memory_limit=1 << 30, answer=answer) as arbiter:
        jobs = [program(text, arbiter.environment(built, device)) for _ in range(2)]
        until = time.monotonic() + 5
        while time.monotonic() < until:
            time.sleep(0.2)
            mood = moods.randrange(6)
            if mood == 0:
                arbiter.set_flags(GATED | HOLD | CAPPED)
                time.sleep(0.05)
            elif mood == 1:
                arbiter.set_flags(CAPPED)
                time.sleep(0.05)
            elif mood == 2:
                arbiter.stop()
                arbiter.start()
            elif mood == 3:
                arbiter.set_memory_limit(moods.choice((4 * MIB, 1 << 30)))
            elif mood == 4:
                arbiter.revoke_all()
            arbiter.set_flags(GATED | CAPPED)
        assert [output(job) for job in jobs] == ["[]\n", "[]\n"]
        assert [entry.memory for entry in arbiter.entries()] == [0, 0]
        assert arbiter.launches > 1000


def test_an_entry_that_was_cleared_by_mistake_is_claimed_again_with_its_memory(
    built: Built, device: Path, slot: Path
) -> None:
    """An arbiter that loses a connection clears the entry, and the process may live on."""
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        text = (
            "d = Driver(); kept = d.allocate(48 << 20); print(flush=True); sys.stdin.readline(); print(d.memory()[0])"
        )
        job = program(text, arbiter.environment(built, device))
        assert job.stdout is not None
        job.stdout.readline()
        arbiter.wait_for(lambda: len(arbiter.ops(HELLO)) == 1)
        arbiter.stop()
        arbiter.clear(job.pid)
        arbiter.start()
        arbiter.wait_for(lambda: len(arbiter.ops(HELLO)) == 2)
        out, _ = job.communicate("\n", timeout=30)
        assert out == f"{16 * MIB}\n"


def test_two_processes_share_one_cap_and_a_killed_one_gives_its_part_back(
    built: Built, device: Path, slot: Path
) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        environ = arbiter.environment(built, device)
        first = program("d = Driver(); d.allocate(48 << 20); print(flush=True); sys.stdin.read()", environ)
        assert first.stdout is not None
        first.stdout.readline()
        text = """
d = Driver()
print(d.allocate(17 << 20), d.allocate(16 << 20) is not None, flush=True)
sys.stdin.readline()
print(d.allocate(48 << 20) is not None)
"""
        second = program(text, environ)
        assert second.stdout is not None
        assert second.stdout.readline().split() == ["None", "True"]
        first.kill()
        first.communicate()
        out, _ = second.communicate("\n", timeout=30)
        assert out == "True\n"


def test_the_driver_itself_refuses_what_the_device_does_not_have(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=1 << 40) as arbiter:
        text = "d = Driver(); print(d.memory()[1], d.allocate(17 << 20), d.memory()[0])"
        environ = arbiter.environment(built, device, WEFT_EMULATED_MEMORY=str(16 * MIB))
        assert output(program(text, environ)).split() == [str(16 * MIB), "None", str(16 * MIB)]
        assert arbiter.entries()[0].memory == 0


def test_mapped_memory_counts_until_it_is_unmapped(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
d = Driver(); at = c_uint64(); size = c_size_t(32 << 20)
handle = d.allocate(32 << 20, "cuMemCreate")
d.check("cuMemAddressReserve", byref(at), size, c_size_t(0), c_uint64(0), c_uint64(0))
d.check("cuMemMap", at, size, c_size_t(0), handle, c_uint64(0))
d.check("cuMemRelease", handle)
print(d.memory()[0] >> 20)
d.check("cuMemUnmap", at, size)
print(d.memory()[0] >> 20)
"""
        assert output(program(text, arbiter.environment(built, device))).split() == ["32", "64"]


def test_what_a_pool_keeps_counts_and_is_given_back_when_it_is_needed(built: Built, device: Path, slot: Path) -> None:
    """As frameworks set their pools: freed memory stays in them."""
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        environ = arbiter.environment(built, device)
        text = """
d = Driver(); pool = c_void_p(); most = c_uint64(1 << 62)
d.check("cuDeviceGetDefaultMemPool", byref(pool), c_int(0))
d.check("cuMemPoolSetAttribute", pool, c_int(4), byref(most))
d.free(d.allocate(48 << 20, "cuMemAllocAsync"), "cuMemAllocAsync")
print(d.memory()[0] >> 20, flush=True); sys.stdin.readline()
again = d.allocate(40 << 20, "cuMemAllocAsync"); print(d.memory()[0] >> 20)
d.free(again, "cuMemAllocAsync"); print(d.memory()[0] >> 20)
print(d.allocate(60 << 20) is not None, d.memory()[0] >> 20)
"""
        first = program(text, environ)
        assert first.stdout is not None
        assert first.stdout.readline() == "16\n"
        second = "d = Driver(); print(d.allocate(17 << 20), d.allocate(8 << 20) is not None)"
        assert output(program(second, environ)).split() == ["None", "True"]
        [entry] = arbiter.entries()[:1]
        arbiter.clear(next(entry.pid for entry in arbiter.entries() if entry.pid != first.pid))
        out, _ = first.communicate("\n", timeout=30)
        assert entry.pid == first.pid
        assert out.split() == ["24", "24", "True", "4"]  # the pool of 48 was given back, and 40 are in it again


def test_a_handle_that_is_retained_counts_on(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
d = Driver(); at = c_uint64(); size = c_size_t(32 << 20); again = c_uint64()
handle = d.allocate(32 << 20, "cuMemCreate")
d.check("cuMemAddressReserve", byref(at), size, c_size_t(0), c_uint64(0), c_uint64(0))
d.check("cuMemMap", at, size, c_size_t(0), handle, c_uint64(0))
d.check("cuMemRetainAllocationHandle", byref(again), at)
d.check("cuMemRelease", handle); d.check("cuMemUnmap", at, size)
print(d.memory()[0] >> 20)
d.check("cuMemRelease", again)
print(d.memory()[0] >> 20)
"""
        assert output(program(text, arbiter.environment(built, device))).split() == ["32", "64"]


def test_the_memory_of_a_graph_counts_until_the_graph_is_destroyed(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
d = Driver(); graph, node = c_void_p(), c_void_p(); wanted = GraphMemory(size=48 << 20)
d.check("cuGraphCreate", byref(graph), c_uint(0))
d.check("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(wanted))
print(d.memory()[0] >> 20, d.call("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(wanted)))
d.check("cuGraphDestroy", graph)
print(d.memory()[0] >> 20)
"""
        assert output(program(text, arbiter.environment(built, device))).split() == ["16", "2", "64"]


def test_contexts_come_and_go_under_the_turn(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    """The hook's events go with their context: none of it is waited for afterwards."""
    text = """
d = Driver()
for _ in range(20):
    own = c_void_p()
    d.check("cuCtxCreate_v2", byref(own), c_uint(0), c_int(0))
    for _ in range(5): d.launch(300)
    d.check("cuCtxDestroy_v2", own)
    d.launch(300)
d.check("cuDevicePrimaryCtxReset_v2", c_int(0))
for _ in range(5): d.launch(300)
d.synchronize(); print("done")
"""
    assert output(program(text, arbiter.environment(built, device))) == "done\n"
    assert arbiter.waits_given_up == 0


def test_a_context_that_is_destroyed_gives_its_memory_back(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
d = Driver(); own = c_void_p()
d.check("cuCtxCreate_v2", byref(own), c_uint(0), c_int(0))
d.allocate(32 << 20); print(d.memory()[0] >> 20)
d.check("cuCtxDestroy_v2", own); print(d.memory()[0] >> 20)
d.allocate(16 << 20); print(d.memory()[0] >> 20)
d.check("cuDevicePrimaryCtxReset_v2", c_int(0)); print(d.memory()[0] >> 20)
"""
        assert output(program(text, arbiter.environment(built, device))).split() == ["32", "64", "48", "64"]


# how a program finds the calls


def test_a_call_asked_for_by_name_is_the_hooked_one_in_its_version(
    built: Built, device: Path, arbiter: ScriptedArbiter
) -> None:
    text = """
d = Driver()
def same(name, version, flags, symbol, older=False):
    status, found = d.address(name, version, flags, older=older)
    print(status == 0 and found == ctypes.cast(getattr(d.library, symbol), c_void_p).value, end=" ")
for older in (False, True):
    for flags, ending in ((0, ""), (1, ""), (2, "_ptsz")):
        same("cuLaunchKernel", 7000, flags, "cuLaunchKernel" + ending, older)
        same("cuGraphLaunch", 12000, flags, "cuGraphLaunch" + ending, older)
        same("cuMemAllocAsync", 11020, flags, "cuMemAllocAsync" + ending, older)
        same("cuMemAlloc", 3020, flags, "cuMemAlloc_v2", older)
        same("cuGetProcAddress", 11030, flags, "cuGetProcAddress", older)
        same("cuGetProcAddress", 12000, flags, "cuGetProcAddress_v2", older)
print()
print(d.address("", 12000)[0], d.address("cuNoSuchCall", 12000)[0], d.address("cuInit", 2000)[1] is not None)
"""
    first, second = output(program(text, arbiter.environment(built, device))).splitlines()
    assert set(first.split()) == {"True"}
    assert second.split() == ["0", "500", "True"]


def test_a_launch_found_by_name_waits_for_the_turn(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, answer=never) as arbiter:
        text = """
d = Driver()
form = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
launch = form(d.address("cuLaunchKernel", 7000, 2)[1])
number = c_uint(1000); parameters = (c_void_p * 1)(ctypes.addressof(number))
print(launch(d.spin, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
"""
        job = program(text, arbiter.environment(built, device))
        arbiter.wait_for(lambda: bool(arbiter.ops(WANT)))
        assert job.poll() is None
        arbiter.grant(1)
        assert output(job) == "0\n"


def test_a_driver_that_answers_with_the_hook_itself_does_not_call_in_a_circle(
    built: Built, device: Path, arbiter: ScriptedArbiter, tmp_path: Path
) -> None:
    """One that is linked without -Bsymbolic: its own table of calls has the preloaded ones."""
    compiler = find_compiler()
    assert isinstance(compiler, Compiler)
    (tmp_path / "driver").mkdir()
    flags = ("-shared", f"-Wl,-soname,{DRIVER}")
    assert compile_file(compiler, tmp_path / "driver" / DRIVER, sorted(SOURCES.glob("emulated*.c")), flags) is None
    text = """
d = Driver()
form = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
launch = form(d.address("cuLaunchKernel", 7000)[1])
number = c_uint(1000); parameters = (c_void_p * 1)(ctypes.addressof(number))
for _ in range(5): assert launch(d.spin, 1, 1, 1, 1, 1, 1, 0, None, parameters, None) == 0
d.launch(1000); d.synchronize()
"""
    output(program(text, arbiter.environment(built, device, LD_LIBRARY_PATH=str(tmp_path / "driver"))))
    assert arbiter.launches == 6


def test_an_object_that_asks_for_the_next_definition_gets_it(
    built: Built, device: Path, arbiter: ScriptedArbiter, tmp_path: Path
) -> None:
    """RTLD_NEXT means the object after the caller: the override must not become the caller."""
    source, library = tmp_path / "next.c", tmp_path / "libnext.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\nint puts(const char *s) { (void)s; return 0; }\n"
        'void *next(void) { return dlsym(RTLD_NEXT, "puts"); }\n'
        'void *versioned(void) { return dlvsym(RTLD_NEXT, "puts", "GLIBC_2.2.5"); }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-fno-builtin", "-o", library, source], check=True, timeout=60)
    text = f"""
lib = ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL)
for name in ("next", "versioned"): getattr(lib, name).restype = c_void_p
libc = ctypes.cast(ctypes.CDLL("libc.so.6").puts, c_void_p).value
print(lib.next() == libc, lib.next() != ctypes.cast(lib.puts, c_void_p).value, lib.versioned() in (libc, None))
"""
    assert output(program(text, arbiter.environment(built, device))).split() == ["True"] * 3


# processes


def test_a_child_of_a_fork_has_neither_turn_nor_entry_of_its_parent(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=GATED | CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
d = Driver(); d.allocate(16 << 20); d.launch(1000); d.synchronize()
child = os.fork()
if child == 0:
    status = d.call("cuInit", c_uint(0))  # the driver cannot be used after a fork
    os._exit(0 if status else 1)
_, status = os.waitpid(child, 0)
d.launch(1000); d.synchronize()
print(os.waitstatus_to_exitcode(status), d.memory()[0] >> 20)
"""
        assert output(program(text, arbiter.environment(built, device))).split() == ["0", "48"]
        assert len(arbiter.ops(HELLO)) == 1


def test_a_child_that_uses_the_gpu_is_a_process_of_its_own(built: Built, device: Path, slot: Path) -> None:
    """Forked before the driver is used, as data loaders and launchers do."""
    with ScriptedArbiter(slot, flags=GATED | CAPPED, memory_limit=64 * MIB) as arbiter:
        text = """
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        d = Driver(); kept = d.allocate(8 << 20); d.launch(1000); d.synchronize()
        time.sleep(0.5); os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
        job = program(text, arbiter.environment(built, device))
        arbiter.wait_for(lambda: len({said.pid for said in arbiter.ops(HELLO)}) == 3)
        arbiter.wait_for(lambda: [entry.memory for entry in arbiter.entries()] == [8 * MIB] * 3)
        assert output(job) == "[0, 0, 0]\n"


def test_a_program_that_becomes_another_takes_its_entry_over(built: Built, device: Path, slot: Path) -> None:
    with ScriptedArbiter(slot, flags=GATED | CAPPED, memory_limit=64 * MIB) as arbiter:
        again = "from tests.support.driver_client import *\nd = Driver(); d.launch(1000); print(d.memory()[0] >> 20)"
        text = f"""
d = Driver(); d.allocate(16 << 20); d.launch(1000); d.synchronize(); print(d.memory()[0] >> 20, flush=True)
os.execv(sys.executable, [sys.executable, "-c", {again!r}])
"""
        assert output(program(text, arbiter.environment(built, device))).split() == ["48", "64"]
        first, second = arbiter.ops(HELLO)
        assert (first.pid, first.a) == (second.pid, second.a)
        assert second.b == first.b + 1


def test_a_job_that_unsets_the_preload_is_seen_nowhere(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    """What the hook cannot hold, and what the attach check is for."""
    environ = arbiter.environment(built, device)
    del environ["LD_PRELOAD"]
    output(program("d = Driver(); d.launch(1000); d.synchronize()", environ))
    assert arbiter.entries() == []
    assert arbiter.launches == 0


def test_a_program_that_closes_every_descriptor_goes_on(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    text = """
d = Driver(); d.launch(1000); d.synchronize()
os.closerange(3, 1000)
kept = [os.open("/dev/null", os.O_RDWR) for _ in range(900)]
for _ in range(20): d.launch(1000)
d.synchronize()
print("done")
"""
    assert output(program(text, arbiter.environment(built, device))) == "done\n"
    arbiter.wait_for(lambda: arbiter.launches == 21)


def test_a_stopped_process_blocks_no_other(built: Built, device: Path, arbiter: ScriptedArbiter) -> None:
    arbiter.set_flags(0)
    text = "d = Driver()\nwhile True: d.launch(1000)"
    stopped = program(text, arbiter.environment(built, device))
    arbiter.wait_for(lambda: arbiter.launches > 20)
    stopped.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    output(
        program("d = Driver()\nfor _ in range(20): d.launch(1000)\nd.synchronize()", arbiter.environment(built, device))
    )
    assert time.monotonic() - begun < 10
    stopped.kill()
    stopped.communicate()


# what it costs


@pytest.mark.alone
def test_a_launch_costs_little(built: Built, tmp_path: Path) -> None:
    """The aims are 60 ns and 300 ns; a busy machine may take some times as long."""
    costs = measure(built, tmp_path)
    assert costs.idle - costs.bare < 200
    assert costs.gated - costs.bare < 1000
