"""The node's own files are read for what they say, and what they do not say stays unknown.

The texts are written by us in the form that Linux writes them.
"""

from pathlib import Path

import pytest

from weft.cgroups.counters import Traffic, keyed, stalled_seconds
from weft.cgroups.files import read_text
from weft.messages.signals import HostSample
from weftd.telemetry.counters import part, rate
from weftd.telemetry.host import cpu_seconds, disk_traffic, memory_total_and_used, network_traffic, read_host
from weftd.telemetry.thinking.core import host_sample
from weftd.telemetry.thinking.readings import HostReading

STAT = """\
cpu  17000 100 7000 255000 1000 40 260 41 500 20
cpu0 8500 50 3500 127500 500 20 130 20 250 10
cpu1 8500 50 3500 127500 500 20 130 21 250 10
intr 123 0 0
"""

MEMINFO = """\
MemTotal:       24684084 kB
MemFree:        20000000 kB
MemAvailable:   22000000 kB
HugePages_Total:       0
"""

DISKSTATS = """\
   7       0 loop0 5 0 1000 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 10 0 200 1 20 0 400 1 0 1 1 0 0 0 0 0 0
 259       1 nvme0n1p1 10 0 200 1 20 0 400 1 0 1 1 0 0 0 0 0 0
   8       0 sda 1 0 8 1 1 0 16 1 0 1 1 0 0 0 0 0 0
   8       1 sda1 1 0 8 1 1 0 16 1 0 1 1 0 0 0 0 0 0
 252       0 dm-0 10 0 200 1 20 0 400 1 0 1 1 0 0 0 0 0 0
 253       0 zram0 3 0 99 0 3 0 99 0 0 0 0 0 0 0 0 0 0
"""

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes packets ...|bytes packets ...
    lo: 9999 31 0 0 0 0 0 0 9999 31 0 0 0 0 0 0
  eth0: 1000 10 0 0 0 0 0 0 2000 12 0 0 0 0 0 0
  ib0: 30 1 0 0 0 0 0 0 40 1 0 0 0 0 0 0
docker0: 456 26 0 0 0 0 0 0 425 37 0 6 0 0 0 0
vethab12: 456 26 0 0 0 0 0 0 425 37 0 6 0 0 0 0
eth0.100: 456 26 0 0 0 0 0 0 425 37 0 6 0 0 0 0
"""

PRESSURE = """\
some avg10=3.54 avg60=1.29 avg300=1.58 total=16668617
full avg10=0.00 avg60=0.00 avg300=0.00 total=5
"""


def reading(at: float, **values: object) -> HostReading:
    plain: dict[str, object] = {
        "cpus": 2, "cpu_seconds": 0.0, "memory_total": 100, "memory_used": 10, "disk_total": 0, "disk_used": 0,
    }  # fmt: skip
    return HostReading(at=at, **plain | values)  # type: ignore[arg-type]


def test_working_time_is_neither_idle_nor_waiting_nor_stolen_nor_counted_twice_for_guests() -> None:
    assert cpu_seconds(STAT, 100) == (17000 + 100 + 7000 + 40 + 260) / 100


def test_memory_used_is_what_no_new_program_could_have() -> None:
    assert memory_total_and_used(MEMINFO) == (24684084 * 1024, 2684084 * 1024)


def test_an_old_kernel_tells_only_what_is_free() -> None:
    without = "".join(line for line in MEMINFO.splitlines(keepends=True) if "Available" not in line)
    assert memory_total_and_used(without) == (24684084 * 1024, 4684084 * 1024)


def test_each_disk_counts_once_and_what_is_built_on_it_does_not() -> None:
    assert disk_traffic(DISKSTATS) == Traffic((200 + 8) * 512, (400 + 16) * 512)


def test_a_partition_counts_where_its_disk_is_not_listed() -> None:
    assert disk_traffic(" 202 1 xvda1 1 0 8 1 1 0 16 1 0 1 1 0 0 0 0 0 0") == Traffic(8 * 512, 16 * 512)


def test_traffic_counts_once_however_many_interfaces_carry_it_on() -> None:
    assert network_traffic(NET_DEV) == Traffic(1030, 2040)


def test_stalled_time_is_the_total_of_some() -> None:
    assert stalled_seconds(PRESSURE) == pytest.approx(16.668617)


@pytest.mark.parametrize("text", ["", "some", "full avg10=0.00 total=5"])
def test_without_pressure_nothing_is_made_up(text: str) -> None:
    assert stalled_seconds(text) is None
    assert stalled_seconds(None) is None


def test_empty_files_say_nothing() -> None:
    assert cpu_seconds("", 100) is None
    assert memory_total_and_used("") == (0, 0)
    assert disk_traffic("") == Traffic()
    assert network_traffic("") == Traffic()
    assert keyed(None) == {}


def test_a_rate_needs_two_readings_time_between_them_and_a_counter_that_did_not_begin_anew() -> None:
    assert rate(10, 30, 2.0) == 10
    assert rate(10, 10, 2.0) == 0
    assert [rate(None, 3, 1), rate(3, None, 1), rate(1, 2, 0), rate(30, 10, 1)] == [None] * 4


def test_a_part_is_of_the_new_events_only() -> None:
    assert part((10, 100), (30, 150)) == 0.4
    assert [part(None, (1, 2)), part((1, 2), (1, 2)), part((5, 10), (1, 20)), part((5, 10), (6, 2))] == [None] * 4


def test_the_first_sample_has_amounts_and_no_rates() -> None:
    first = host_sample(None, reading(5.0, cpu_seconds=100.0, disk=Traffic(1, 2)))
    assert first == HostSample(cpus=2.0, memory_total=100, memory_used=10)


def test_rates_are_per_second_of_what_passed_between_two_readings() -> None:
    before = reading(10.0, cpu_seconds=100.0, disk=Traffic(1000, 0), network=Traffic(0, 50), cpu_stalled=1.0)
    after = reading(12.0, cpu_seconds=103.0, disk=Traffic(3000, 10), network=Traffic(8, 50), cpu_stalled=1.5)
    assert host_sample(before, after) == HostSample(
        cpus=2.0,
        cpus_used=1.5,
        memory_total=100,
        memory_used=10,
        disk_read_rate=1000.0,
        disk_write_rate=5.0,
        network_receive_rate=4.0,
        network_send_rate=0.0,
        cpu_pressure=0.25,
    )


def test_a_host_is_read_from_its_files(tmp_path: Path) -> None:
    for name, text in {"stat": STAT, "meminfo": MEMINFO, "diskstats": DISKSTATS, "net/dev": NET_DEV}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    read = read_host(disk=tmp_path, proc=str(tmp_path), clock=lambda: 7.0)
    assert (read.at, read.memory_total, read.network) == (7.0, 24684084 * 1024, Traffic(1030, 2040))
    assert read.disk_total >= read.disk_used > 0
    assert read.cpu_stalled is None


def test_a_folder_without_any_of_the_files_is_still_a_reading(tmp_path: Path) -> None:
    read = read_host(disk=tmp_path / "nowhere", proc=str(tmp_path), clock=lambda: 7.0)
    assert (read.cpu_seconds, read.memory_total, read.disk, read.disk_total) == (None, 0, Traffic(), 0)


def test_a_file_that_is_not_there_or_not_a_file_is_none(tmp_path: Path) -> None:
    assert read_text(f"{tmp_path}/nothing") is None
    assert read_text(str(tmp_path)) is None
