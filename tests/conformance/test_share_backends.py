"""What holds for every back-end that holds runs to their shares of a GPU, on an emulated one; and what none claims to.

A back-end that names NOT_HELD_TO_SHARES as not enforced holds no run to anything, and is held to that, too: a run then
gets what its share would have refused.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.domain.cluster import NOT_HELD_TO_SHARES, Gpu
from libs.domain.shares import Share
from libs.messages.nodes import StartRun
from libs.sharing.native import Built, NotBuilt, build
from services.executor.home import Home
from services.executor.runs import RunKey
from services.executor.shares.backend import AUTO, CHOICES, Attached, ShareBackend
from services.executor.shares.opening import opened
from tests.support.odd_folders import make_deep, swept
from tests.support.runs import order

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


class Backends:
    """Back-ends of one name on one home, one after the other, as executors open them."""

    def __init__(self, choice: str, folder: Path, driver: Built) -> None:
        self.choice, self._folder, self._driver = choice, folder, driver
        self._stack = AsyncExitStack()
        self.now: ShareBackend

    async def reopen(self) -> ShareBackend:
        await self.close()
        self.now = await self._stack.enter_async_context(opened(self.choice, Home(self._folder / "h")))
        return self.now

    async def close(self) -> None:
        await self._stack.aclose()

    @property
    def holds(self) -> bool:
        return NOT_HELD_TO_SHARES not in self.now.not_enforced

    def allocated(self, attached: Attached, size: int) -> int:
        """The driver's answer to a process of the run that allocates so many bytes."""
        device = self._folder / "d"
        device.mkdir(exist_ok=True)
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._driver.driver_folder),
            "WEFT_EMULATED_DEVICE": str(device),
            "WEFT_EMULATED_MEMORY": str(GPU.memory),
        }
        command = [sys.executable, "-c", ALLOCATE, str(size)]
        done = subprocess.run(
            command, env=attached.added_to(env), capture_output=True, text=True, timeout=60, check=True
        )
        return int(done.stdout)


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


async def test_it_has_the_name_by_which_it_is_chosen_and_says_what_it_does_not_hold(backends: Backends) -> None:
    assert backends.now.name == backends.choice
    assert backends.now.not_enforced in ((), (NOT_HELD_TO_SHARES,))


async def test_the_share_in_force_is_the_one_that_was_ordered_or_none_where_none_is_held(backends: Backends) -> None:
    backend = backends.now
    assert backend.held(KEY) is None
    await attach(backend, ORDER)
    await attach(backend, BESIDE)
    assert backend.held(KEY) == (SHARE if backends.holds else None)
    assert backend.held(RunKey.of(BESIDE)) == (OTHER if backends.holds else None)


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
        assert (why, backends.now.held(KEY)) == ("", replace(OTHER, kind=backends.now.held(KEY).kind))  # type: ignore[union-attr]
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
    found = backend.held(KEY)
    assert (found is None) is (before is None)
    if found is not None and before is not None:
        assert replace(found, kind="") == replace(before, kind="")
    assert backend.held(RunKey.of(BESIDE)) is None
    await attach(backend, ORDER)
    assert backend.held(KEY) == (SHARE if backends.holds else None)


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
