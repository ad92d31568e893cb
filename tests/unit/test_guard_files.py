"""What the executor and its guard write for each other is whole, or it is as if it were not there."""

import os
from pathlib import Path

from weftd.executor.files.home import Home
from weftd.executor.guard.files import SYNCED_BYTES, Fenced, Slot, Synced, read_orders, read_slot, write_orders
from weftd.executor.guard.thinking import FenceTimings
from weftd.executor.runs import RunKey
from weftd.executor.state_file import DiskStateFile
from weftd.executor.thinking.core import Memory, Stop

KEY, OTHER = RunKey("job-1", 1, 0), RunKey("job-2", 1, 0)


def state_file(home: Home, *, boot_id: str = "boot-1") -> DiskStateFile:
    return DiskStateFile(home, boot_id=boot_id, now=0.0)


def test_a_record_is_overwritten_in_place_and_read_whole(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot", SYNCED_BYTES)
    assert slot.read(Synced) is None
    for synced_at in (1.0, 123456.789, 2.0):
        slot.write(Synced(boot_id="boot-1", synced_at=synced_at))
        assert read_slot(tmp_path / "slot", SYNCED_BYTES, Synced) == Synced(boot_id="boot-1", synced_at=synced_at)
    assert os.fstat(slot.fd).st_size == SYNCED_BYTES
    slot.close()


def test_orders_have_one_form_for_guards_and_executors_of_every_version(tmp_path: Path) -> None:
    """A guard outlives its executor, so the two may be of different versions."""
    stored = (
        b'{"fencing":true,"boot_id":"boot-1","timings":{"fence_seconds":90.0,"slack_seconds":5.0,"grace_max":30.0,'
        b'"kill_again_seconds":2.0},"runtime":"process","node_id":"node-1","cluster":"","engine":""}'
    )
    path = tmp_path / "guard.json"
    path.write_bytes(stored)
    orders = read_orders(path)
    assert orders is not None
    assert orders.timings == FenceTimings(fence_seconds=90.0, slack_seconds=5.0, grace_max=30.0)
    write_orders(path, orders)
    assert path.read_bytes() == stored


def test_half_a_record_is_none(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot", SYNCED_BYTES)
    slot.write(Synced(boot_id="boot-1", synced_at=1.0))
    os.pwrite(slot.fd, b"9", 40)
    assert slot.read(Synced) is None
    slot.write(Synced(boot_id="boot-1", synced_at=2.0))
    assert slot.read(Fenced) == Fenced(boot_id="boot-1"), "fields that another version does not know are passed over"
    os.pwrite(slot.fd, b"\0" * 18, 0)
    assert slot.read(Synced) is None
    slot.close()


def test_the_last_good_sync_outlives_a_memory_that_could_not_be_written(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = state_file(home)
    first.save(Memory(synced_at=5.0, stops=(Stop(key=KEY, kill_at=9.0),)))
    os.mkdir(f"{home.state}.new")  # now it cannot be
    first.save(Memory(synced_at=7.0))
    assert first.memory == Memory(synced_at=7.0)
    first.close()
    second = state_file(home)
    assert second.memory == Memory(synced_at=7.0, stops=(Stop(key=KEY, kill_at=9.0),))
    second.close()


def test_a_memory_that_could_not_be_written_is_written_as_soon_as_it_can_be(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = state_file(home)
    os.mkdir(f"{home.state}.new")
    memory = Memory(synced_at=7.0, stops=(Stop(key=KEY, kill_at=9.0),))
    first.save(memory)
    os.rmdir(f"{home.state}.new")
    first.save(memory)
    first.close()
    second = state_file(home)
    assert second.memory == memory
    second.close()


def test_of_another_boot_only_the_runs_that_were_told_to_stop_are_known(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = state_file(home)
    first.save(Memory(synced_at=5.0, stops=(Stop(key=OTHER, kill_at=9.0, killed_at=9.0),)))
    fenced = Slot(home.root / "fenced", 1 << 16)
    fenced.write(Fenced(boot_id="boot-1", runs=(KEY,)))
    fenced.close()
    assert first.fenced() == {KEY}
    first.close()
    second = state_file(home, boot_id="boot-2")
    assert second.memory == Memory(stops=(Stop(key=KEY, kill_at=0.0, fenced=True), Stop(key=OTHER, kill_at=0.0)))
    assert second.fenced() == frozenset()
    second.close()
