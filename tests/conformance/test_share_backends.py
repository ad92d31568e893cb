"""What holds for every back-end that holds runs to their shares of a GPU, on an emulated one; and what none claims to.

A back-end that names NOT_HELD_TO_SHARES as not enforced holds no run to anything, and is held to that, too: a run then
gets what its share would have refused.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.compiled import Built, build
from tests.support.odd_folders import make_deep, swept
from tests.support.runs import order
from tests.support.tree import PYTHONPATH
from weft.domain.cluster import NOT_HELD_TO_SHARES, Gpu
from weft.domain.shares import Share
from weft.emulation.device import EmulatedDriver, read_device
from weft.messages.nodes import StartRun
from weft.sharing.native import NotBuilt
from weftd.executor.files.home import Home
from weftd.executor.runs import RunKey
from weftd.executor.shares.backend import AUTO, CHOICES, Attached, ShareBackend
from weftd.executor.shares.opening import opened

MIB = 1 << 20
GPU = Gpu(index=0, uuid="emulated-0", model="emulated", memory=4096 * MIB, emulated=True)
SHARE = Share(request=300, limit=500, memory=256 * MIB, kind="batch")
OTHER = Share(request=200, limit=400, memory=128 * MIB, kind="batch")
ORDER = replace(order("job-1", gpus=(0,)), share=SHARE)
KEY = RunKey.of(ORDER)
BESIDE = replace(order("job-2", gpus=(0,)), share=OTHER)
OUT_OF_MEMORY = 2  # of the driver

ALLOCATE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert not cuda.cuInit(0)
assert not cuda.cuDeviceGet(ctypes.byref(device), 0)
assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
assert not cuda.cuCtxSetCurrent(context)
print(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(sys.argv[1]))))
"""


SATURATE = """
from tests.support.driver_client import Driver
driver = Driver()
driver.launch(1000)
driver.synchronize()
print("ready", flush=True)
while True:
    for _ in range(8):
        driver.launch(1000)
    driver.synchronize()
"""
WARM_SECONDS, WATCHED_SECONDS = 1.0, 2.0


class Backends:
    """Back-ends of one name on one home, one after the other, as executors open them."""

    def __init__(self, choice: str, folder: Path, driver: Built) -> None:
        self.choice, self._folder, self._driver = choice, folder, driver
        self._stack = AsyncExitStack()
        self.now: ShareBackend

    async def reopen(self) -> ShareBackend:
        await self.close()
        home = Home(self._folder / "h")
        self.now = await self._stack.enter_async_context(opened(self.choice, home, driver=EmulatedDriver()))
        return self.now

    async def close(self) -> None:
        await self._stack.aclose()

    @property
    def holds(self) -> bool:
        return NOT_HELD_TO_SHARES not in self.now.not_enforced

    @property
    def device(self) -> Path:
        """Where a run's emulated GPU keeps its account, unless the back-end gives it another one."""
        folder = self._folder / "d"
        folder.mkdir(exist_ok=True)
        return folder

    def environment(self, attached: Attached) -> dict[str, str]:
        """Of a process of the run."""
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._driver.driver_folder),
            "WEFT_EMULATED_DEVICE": str(self.device),
            "WEFT_EMULATED_MEMORY": str(GPU.memory),
            "PYTHONPATH": PYTHONPATH,
        }
        return attached.added_to(env)

    def allocated(self, attached: Attached, size: int) -> int:
        """The driver's answer to a process of the run that allocates so many bytes."""
        command = [sys.executable, "-c", ALLOCATE, str(size)]
        done = subprocess.run(
            command, env=self.environment(attached), capture_output=True, text=True, timeout=60, check=True
        )
        return int(done.stdout)

    def first_part(self, *runs: Attached) -> float:
        """Of the device time that two saturating processes got together, what the first got, by the GPU's account."""
        jobs: list[subprocess.Popen[str]] = []
        try:
            for run in runs:
                command = [sys.executable, "-c", SATURATE]
                jobs.append(subprocess.Popen(command, env=self.environment(run), stdout=subprocess.PIPE, text=True))
            for job in jobs:
                assert job.stdout is not None
                assert job.stdout.readline() == "ready\n"
            time.sleep(WARM_SECONDS)
            folder = Path(self.environment(runs[0])["WEFT_EMULATED_DEVICE"])
            before = read_device(folder)
            time.sleep(WATCHED_SECONDS)
            after = read_device(folder)
        finally:
            for job in jobs:
                job.kill()
                job.communicate()
        first, second = (after.busy_of(job.pid) - before.busy_of(job.pid) for job in jobs)
        return first / (first + second)


@pytest.fixture(params=[choice for choice in CHOICES if choice != AUTO])
async def backends(request: pytest.FixtureRequest) -> AsyncIterator[Backends]:
    driver = build()
    if isinstance(driver, NotBuilt):
        if os.environ.get("CI"):
            pytest.fail(driver.reason)
        pytest.skip(driver.reason)
    folder = Path(tempfile.mkdtemp(prefix="wsb-"))  # a short path, as sockets need
    with swept(folder):
        made = Backends(request.param, folder, driver)
        await made.reopen()
        yield made
        await made.close()


async def attach(backend: ShareBackend, asked: StartRun, *, contained: bool = False) -> Attached:
    return await backend.attach(asked, GPU, contained=contained)


def settled(share: Share | None) -> Share | None:
    """Without the kind of its job, which holds a run to nothing."""
    return None if share is None else replace(share, kind="")


async def test_it_has_the_name_by_which_it_is_chosen_and_says_what_it_does_not_hold(backends: Backends) -> None:
    assert backends.now.name == backends.choice
    assert backends.now.not_enforced in ((), (NOT_HELD_TO_SHARES,))


async def test_the_share_in_force_is_the_one_that_was_ordered_or_none_where_none_is_held(backends: Backends) -> None:
    backend = backends.now
    assert backend.held(KEY) is None
    await attach(backend, ORDER)
    await attach(backend, BESIDE)
    assert settled(backend.held(KEY)) == (settled(SHARE) if backends.holds else None)
    assert settled(backend.held(RunKey.of(BESIDE))) == (settled(OTHER) if backends.holds else None)


async def test_a_second_attach_changes_nothing(backends: Backends) -> None:
    first = await attach(backends.now, ORDER)
    held = backends.now.held(KEY)
    assert await attach(backends.now, ORDER) == first
    assert backends.now.held(KEY) == held


async def test_a_process_needs_no_mounts_and_a_container_finds_each_of_its_own(backends: Backends) -> None:
    assert (await attach(backends.now, ORDER)).mounts == ()
    inside = await attach(backends.now, replace(BESIDE, image="an-image"), contained=True)
    assert all(os.path.exists(mount.source) for mount in inside.mounts)  # noqa: ASYNC240 - a look takes no time
    assert len({mount.target for mount in inside.mounts}) == len(inside.mounts)
    assert bool(inside.mounts) is backends.holds


async def test_another_share_is_in_force_once_it_is_applied_and_why_not_is_said_otherwise(backends: Backends) -> None:
    await attach(backends.now, ORDER)
    why = await backends.now.resize(KEY, OTHER)
    if backends.holds:
        assert (why, settled(backends.now.held(KEY))) == ("", settled(OTHER))
    else:
        assert why.startswith("share: ")
        assert backends.now.held(KEY) is None


async def test_a_run_that_was_never_attached_has_no_share_to_change_or_to_lose(backends: Backends) -> None:
    assert (await backends.now.resize(KEY, OTHER)).startswith("share: ")
    backends.now.detach(KEY)
    assert backends.now.held(KEY) is None


async def test_a_detached_run_holds_nothing_and_may_be_attached_again(backends: Backends) -> None:
    for _ in range(3):
        await attach(backends.now, ORDER)
        backends.now.detach(KEY)
        assert backends.now.held(KEY) is None
        backends.now.detach(KEY)


async def test_the_next_executor_knows_the_shares_of_the_runs_that_are_left_and_of_no_others(
    backends: Backends,
) -> None:
    await attach(backends.now, ORDER)
    await attach(backends.now, BESIDE)
    await backends.now.resize(KEY, OTHER)
    before = backends.now.held(KEY)
    backend = await backends.reopen()
    await backend.keep([KEY])
    assert settled(backend.held(KEY)) == settled(before)
    assert backend.held(RunKey.of(BESIDE)) is None
    await attach(backend, ORDER)
    assert settled(backend.held(KEY)) == (settled(SHARE) if backends.holds else None)


async def test_whatever_a_run_leaves_in_what_it_was_given_its_end_and_the_next_executor_are_not_stopped(
    backends: Backends,
) -> None:
    attached, beside = await attach(backends.now, ORDER), await attach(backends.now, BESIDE)
    for each in (attached, beside):
        if folder := each.env.get("WEFT_SHARE"):
            await asyncio.to_thread(make_deep, Path(folder, "deep"), 3000)
    backends.now.detach(KEY)
    assert backends.now.held(KEY) is None
    backend = await backends.reopen()
    await backend.keep([])
    assert backend.held(RunKey.of(BESIDE)) is None
    await attach(backend, ORDER)


async def test_memory_beyond_the_share_is_refused_as_the_driver_refuses_it_or_not_at_all(backends: Backends) -> None:
    attached = await attach(backends.now, ORDER)

    async def allocated(size: int) -> int:
        return await asyncio.to_thread(backends.allocated, attached, size)

    assert await allocated(SHARE.memory - MIB) == 0
    assert await allocated(SHARE.memory + MIB) == (OUT_OF_MEMORY if backends.holds else 0)
    if backends.holds:
        assert await backends.now.resize(KEY, OTHER) == ""
        async with asyncio.timeout(10):  # until the arbiter has taken it up
            while await allocated(SHARE.memory - MIB) == 0:  # noqa: ASYNC110 - what is waited for is of another process
                await asyncio.sleep(0.1)
        assert await allocated(OTHER.memory - MIB) == 0


async def test_each_run_gets_its_part_of_the_time_or_as_much_as_the_other(backends: Backends) -> None:
    share, other = (Share(request=request, limit=1000, memory=64 * MIB, kind="batch") for request in (750, 250))
    one = await attach(backends.now, replace(ORDER, share=share))
    two = await attach(backends.now, replace(BESIDE, share=other))
    part = await asyncio.to_thread(backends.first_part, one, two)
    assert part == pytest.approx(0.75 if backends.holds else 0.5, abs=0.1)
    if backends.holds:
        for key, request in ((KEY, 250), (RunKey.of(BESIDE), 750)):
            assert await backends.now.resize(key, replace(share, request=request)) == ""
        part = await asyncio.to_thread(backends.first_part, one, two)
        assert part == pytest.approx(0.25, abs=0.1)
