"""The hook in real processes, on the emulated driver: memory and its cap."""

import random
import time
from pathlib import Path

import pytest

from tests.support.compiled import Built
from tests.support.scripted_arbiter import (
    CAPPED,
    GATED,
    HELLO,
    HOLD,
    MIB,
    WANT,
    Said,
    ScriptedArbiter,
    output,
    program,
)

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
