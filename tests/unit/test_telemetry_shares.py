"""What a run got of its share: the rates between two counts of the arbiter, and slot folders with anything in them."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.compiled import Built, build
from weft.emulation.device import EmulatedDevices
from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample, ShareSample
from weft.sharing import places
from weft.sharing.native import NotBuilt
from weft.sharing.pages import SlotLimits, limits_bytes
from weft.sharing.places import device_of
from weft.sharing.records import SlotSeen, SlotShare
from weft.sharing.slots import JOB, LIMITS, SEEN, SHARE, make_slot, write_seen
from weftd.telemetry.metrics import NodeGauges
from weftd.telemetry.processes import started_at
from weftd.telemetry.shares import ShareReader
from weftd.telemetry.thinking.readings import FoundRun
from weftd.telemetry.thinking.shares import ShareRates, ShareReading

KEY = ("j-1", 1, 0)
PROGRAMS = Path(__file__).parents[2] / "services/weftd/cli/demo/programs"
SHARE_OF = SlotShare(gpu="GPU-7", request=300, limit=800, memory=1 << 30)
SECOND = 1_000_000_000


def reading(at: float, *, counted_at: float, beat_at: float | None = None, **counted: int) -> ShareReading:
    return ShareReading(
        share=SHARE_OF,
        seen=SlotSeen(at_ns=round(counted_at * SECOND), **counted),
        beat_ns=round((at if beat_at is None else beat_at) * SECOND),
        at_ns=round(at * SECOND),
    )


def used(*readings: ShareReading | None) -> list[float | None]:
    """What the sample of each reading says was used."""
    rates = ShareRates()
    found = [rates.sampled({} if each is None else {KEY: each}) for each in readings]
    return [each[KEY].used if KEY in each else None for each in found]


def test_what_was_used_borrowed_and_lent_is_a_part_of_the_gpus_time() -> None:
    rates = ShareRates()
    rates.sampled({KEY: reading(10.1, counted_at=10.0, device_us=500_000)})
    after = reading(
        12.1, counted_at=12.0, device_us=1_500_000, borrowed_us=400_000, lent_us=100_000, turns=9, wait_p99_us=2_500,
        memory=7, denied=2, overruns=1, given_up=3,
    )  # fmt: skip
    assert rates.sampled({KEY: after})[KEY] == ShareSample(
        gpu_uuid="GPU-7", request=0.3, limit=0.8, used=0.5, borrowed=0.2, lent=0.05, wait_p99_seconds=0.0025,
        memory_used=7, memory_limit=1 << 30, refused=2, overruns=1, given_up=3, outside=0,
    )  # fmt: skip


def test_without_two_counts_nothing_is_known_of_the_rate() -> None:
    assert used(reading(10.1, counted_at=10.0, device_us=5)) == [None]
    no_counts = ShareReading(share=SHARE_OF, beat_ns=0, at_ns=SECOND)
    assert used(no_counts, no_counts) == [None, None]
    (sample,) = ShareRates().sampled({KEY: no_counts}).values()
    assert sample == ShareSample(gpu_uuid="GPU-7", request=0.3, limit=0.8, memory_limit=1 << 30)


def test_a_saturating_run_is_not_called_idle_when_the_same_count_is_read_twice() -> None:
    counted = [(at, round((at - 10.0) * 700_000)) for at in (10.0, 11.05, 12.1, 13.15, 14.2)]

    def at(now: float) -> ShareReading:
        when, us = max(each for each in counted if each[0] <= now)
        return reading(now, counted_at=when, device_us=us)

    found = used(*(at(second / 10) for second in range(101, 150, 9)))
    assert [value for value in found if value is not None] == [pytest.approx(0.7, abs=0.01)] * 4
    assert found.count(None) == len(found) - 4


def test_a_run_that_does_nothing_is_idle_and_its_first_second_after_it_counts_as_a_second_or_two() -> None:
    idle = [reading(at, counted_at=10.0, device_us=100) for at in (10.1, 11.1, 12.1, 13.1, 60.1)]
    found = used(*idle, reading(61.1, counted_at=61.0, device_us=800_100))
    assert found[:5] == [None, None, None, 0.0, 0.0]
    assert found[5] is not None
    assert 0.4 <= found[5] <= 0.8


def test_processes_on_the_gpu_that_the_arbiter_does_not_know_are_told_of_once_they_were_seen_twice() -> None:
    rates = ShareRates()

    def outside(second: float, on_gpu: set[int], known: tuple[int, ...], **more: Any) -> int | None:
        one = reading(second, counted_at=second, **more)
        one = replace(one, on_gpu=dict.fromkeys(on_gpu), seen=replace(one.seen, pids=known))
        return rates.sampled({KEY: one})[KEY].outside

    assert outside(10.0, {7, 8}, (7,)) == 0, "8 may have come a moment ago"
    assert outside(11.0, {7, 8}, (7,)) == 1
    assert outside(12.0, {7, 8, 9}, (7, 8)) == 0
    assert outside(13.0, {9}, ()) == 1
    assert outside(14.0, {9}, (0,)) is None, "the arbiter does not see which processes these are"
    assert outside(18.0, {9}, (), beat_at=15.0) is None, "the arbiter is silent"


def test_memory_that_the_driver_counts_and_the_processes_do_not_is_told() -> None:
    rates = ShareRates()

    def uncounted(
        on_gpu: dict[int, int | None], counted: int, *, context: int = 512, second: float = 10.0
    ) -> int | None:
        one = reading(second, counted_at=second, memory=counted)
        one = replace(one, on_gpu=on_gpu, share=replace(one.share, context_mib=context))
        return rates.sampled({KEY: one})[KEY].uncounted

    mib = 1 << 20
    assert uncounted({7: 812 * mib, 8: 712 * mib}, 500 * mib) == 0
    assert uncounted({7: 812 * mib, 8: 712 * mib}, 400 * mib) == 100 * mib
    assert uncounted({7: 300 * mib}, 500 * mib) == 0, "a context may be smaller than is reckoned"
    assert uncounted({7: 300 * mib}, 100 * mib, context=0) == 200 * mib
    assert uncounted({}, 100 * mib) is None
    assert uncounted({7: 1 << 60, 8: None}, 100 * mib) is None


def test_processes_on_emulated_gpus_are_those_that_live_and_launched(tmp_path: Path, native_built: Built) -> None:
    gpu = GpuSample(index=3, uuid="EMULATED-1", model="Emulated GPU", emulated=True)
    devices = EmulatedDevices(tmp_path, started_at=started_at)
    assert devices.with_processes((gpu,)) == (gpu,)
    folder = device_of(tmp_path, gpu.uuid)
    folder.mkdir()
    environ = os.environ | {
        "LD_LIBRARY_PATH": str(native_built.driver_folder),
        "WEFT_EMULATED_DEVICE": str(folder),
        "WEFT_EMULATED_MEMORY": str(1 << 30),
        "WEFT_GPUS": "3",
    }
    command = [sys.executable, str(PROGRAMS / "kernels.py"), "--seconds", "30"]
    process = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        (sampled,) = devices.with_processes((gpu,))
        assert [one.pid for one in sampled.processes] == [process.pid]
    finally:
        process.kill()
        process.communicate()
    assert devices.with_processes((gpu,)) == (gpu,)
    (folder / "device-3").unlink()
    os.mkfifo(folder / "device-3")
    assert devices.with_processes((gpu,)) == (gpu,), "whatever a job puts there"


def test_a_silent_or_new_arbiter_says_nothing_of_the_past() -> None:
    first, second = reading(10.1, counted_at=10.0, device_us=100), reading(11.1, counted_at=11.0, device_us=200)
    assert used(first, reading(13.2, counted_at=11.0, device_us=200, beat_at=11.1), second) == [None, None, None]
    assert used(first, second, reading(12.1, counted_at=12.0, device_us=7)) == [None, pytest.approx(1e-4), None]
    assert used(first, None, second) == [None, None, None]


def test_no_counter_makes_a_value_that_no_message_may_have() -> None:
    wild = [0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 12 * SECOND]
    for device, at in [(device, at) for device in wild for at in wild]:
        rates = ShareRates()
        for number, us in pairwise([0, device, 0, device]):
            counted = dict.fromkeys(("device_us", "borrowed_us", "lent_us", "memory", "turns", "wait_p99_us"), us)
            seen = SlotSeen(at_ns=at + number % 1000, **counted)
            one = ShareReading(share=SHARE_OF, seen=seen, beat_ns=10 * SECOND, at_ns=10 * SECOND)
            (sample,) = rates.sampled({KEY: one}).values()
            run = RunSample(job_id="j-1", epoch=1, rank=0, source="", share=sample)
            host = HostSample(cpus=1, memory_total=1, memory_used=1)
            sampled = NodeSampled(node_id="node-1", pool="default", at=1.0, host=host, runs=(run,))
            assert decoded(sampled) == sampled


def decoded(sampled: NodeSampled) -> NodeSampled:
    return msgspec.json.decode(msgspec.json.encode(sampled), type=NodeSampled)


# folders


@pytest.fixture
def native_built() -> Built:
    built = build()
    if isinstance(built, NotBuilt):
        pytest.skip(built.reason)
    return built


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        yield Path(folder)


@pytest.fixture
def slot(short: Path) -> Path:
    """A slot folder as the executor and the arbiter leave it, read at second 10."""
    root = short / "shares"
    root.mkdir()
    make_slot(root, places.slot_of(*KEY), SHARE_OF)
    folder = root / places.slot_of(*KEY)
    write_seen(folder, SlotSeen(at_ns=9 * SECOND, device_us=5, turns=1))
    (folder / JOB / LIMITS).write_bytes(limits_bytes(SlotLimits(beat_ns=10 * SECOND)))
    return folder


def read(folder: Path) -> ShareReading | None:
    reader = ShareReader(folder.parent, clock=lambda: 10.5)
    runs = [FoundRun(job_id=KEY[0], epoch=KEY[1], rank=KEY[2], pid=1), FoundRun(job_id="j-2", epoch=1, rank=0, pid=2)]
    found = reader.read(runs)
    assert found.keys() <= {KEY}
    return found.get(KEY)


def test_a_slot_folder_is_found_by_its_run_and_read(slot: Path) -> None:
    found = read(slot)
    seen = SlotSeen(at_ns=9 * SECOND, device_us=5, turns=1)
    assert found == ShareReading(share=SHARE_OF, seen=seen, beat_ns=10 * SECOND, at_ns=round(10.5 * SECOND))


def test_without_folders_no_run_has_a_share(tmp_path: Path, slot: Path) -> None:
    assert ShareReader(tmp_path / "none").read([FoundRun(job_id="j-1", epoch=1, rank=0, pid=1)]) == {}
    shutil.rmtree(slot)
    assert read(slot) is None


HARMS: list[tuple[str, Callable[[Path], object]]] = [
    ("missing", lambda path: None),
    ("fifo", os.mkfifo),
    ("folder", lambda path: (path / "below").mkdir(parents=True)),
    ("garbage", lambda path: path.write_bytes(b"\xff\0{]" * 900)),
    ("huge", lambda path: path.write_bytes(b" " * (1 << 20))),
    ("deep", lambda path: path.write_bytes(b'{"x":' + b"[" * 60_000)),
    ("link", lambda path: path.symlink_to("/dev/zero")),
    ("itself", lambda path: path.symlink_to(path.name)),
    ("numbers", lambda path: path.write_bytes(b'{"at_ns": 1e999, "request": -5, "gpu": 7}')),
]


@pytest.mark.parametrize(("kind", "harm"), HARMS, ids=[kind for kind, _ in HARMS])
@pytest.mark.parametrize("name", [SHARE, SEEN, f"{JOB}/{LIMITS}", JOB])
def test_whatever_is_in_a_slot_folder_stops_nothing(
    slot: Path, name: str, kind: str, harm: Callable[[Path], object]
) -> None:
    path = slot / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    harm(path)
    found = read(slot)
    if name == SHARE:
        assert found is None
    elif name == SEEN:
        assert found is not None
        assert found.seen is None
    else:
        assert found is not None
        assert found.beat_ns is None
        assert ShareRates().sampled({KEY: found})[KEY].used is None


def test_a_slot_that_is_a_link_is_not_followed(slot: Path, tmp_path: Path) -> None:
    slot.rename(tmp_path / "elsewhere")
    slot.symlink_to(tmp_path / "elsewhere")
    assert read(slot) is None


def test_the_root_is_in_the_home_unless_a_sockets_path_would_be_too_long(tmp_path: Path) -> None:
    assert places.root_of(Path("/home/weft")) == Path("/home/weft/shares")
    long = Path("/" + "x" * 80)
    root = places.root_of(long)
    assert root != places.root_of(Path("/" + "y" * 80))
    assert len(os.fsencode(root / places.slot_of("j" * 64, 1 << 31, 1 << 31) / "job" / "socket")) < 100


# gauges


def test_a_share_has_gauges_and_what_is_not_known_of_it_has_none() -> None:
    registry, gauges = CollectorRegistry(), NodeGauges()
    registry.register(gauges)
    share = ShareSample(gpu_uuid="GPU-7", request=0.3, limit=0.8, used=0.5, refused=2)
    run: dict[str, Any] = {"job_id": "j-1", "epoch": 1, "source": "cgroup2"}
    runs = (RunSample(rank=0, share=share, **run), RunSample(rank=1, **run))
    host = HostSample(cpus=1, memory_total=1, memory_used=1)
    gauges.show(NodeSampled(node_id="node-1", pool="default", at=5.0, host=host, runs=runs))
    lines = [line for line in generate_latest(registry).decode().splitlines() if line.startswith("weft_share_")]
    labels = '{epoch="1",gpu_uuid="GPU-7",job_id="j-1",node="node-1",rank="0"}'
    assert sorted(lines) == [
        f"weft_share_allocations_refused_total{labels} 2.0",
        f"weft_share_limit_ratio{labels} 0.8",
        f"weft_share_request_ratio{labels} 0.3",
        f"weft_share_used_ratio{labels} 0.5",
    ]
