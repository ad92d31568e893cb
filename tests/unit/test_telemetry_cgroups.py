"""What a run uses is found in its own cgroup, of either version, and else in its processes.

The texts are written by us in the form that Linux writes them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cgroups.counters import Traffic
from weft.cgroups.files import KeptOpen
from weft.cgroups.places import Mount, folders, memberships, mounts, processes_in, threads_in
from weft.cgroups.use import CgroupUse, blkio_traffic, cgroup_use, io_traffic
from weftd.telemetry.counters import interfaces, segments_resent
from weftd.telemetry.processes import members, parse_process, process_traffic, processes_use
from weftd.telemetry.thinking.core import measures_lost, run_sample
from weftd.telemetry.thinking.readings import FoundRun, Process, ThreadUse
from weftd.telemetry.threads import LOOK_SECONDS, Thread, parse_thread, thread_use
from weftd.telemetry.usage import UsageReader

MOUNTS_V1 = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
36 31 0:33 / /sys/fs/cgroup/memory rw,relatime shared:10 master:2 - cgroup cgroup rw,memory
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
MOUNTS_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

PROCESS_V1 = """\
12:memory:/docker/abc
11:blkio:/docker/abc
4:cpu,cpuacct:/docker/abc
1:name=systemd:/docker/abc
0::/
"""
PROCESS_V2 = "0::/system.slice/docker-abc.scope\n"

V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n"
    "nr_periods 200\nnr_throttled 50\nthrottled_usec 900000\n",
    "memory.current": "1000000\n",
    "memory.stat": "anon 700000\nfile 300000\ninactive_file 200000\nworkingset_refault_file 3\npgmajfault 12\n",
    "memory.max": "2000000\n",
    "memory.events": "low 1\nhigh 3\nmax 40\noom 2\noom_kill 1\noom_group_kill 0\n",
    "cpu.max": "150000 100000\n",
    "io.stat": "8:0 rbytes=1000 wbytes=2000 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=5 wbytes=6 rios=1 wios=1\n",
    "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=1\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\n",
}
V1 = {
    "cpu/cpu.stat": "nr_periods 200\nnr_throttled 50\nthrottled_time 900000000\n",
    "cpu/cpuacct.usage": "2500000000\n",
    "memory/memory.usage_in_bytes": "1000000\n",
    "cpu/cpu.cfs_quota_us": "150000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "memory/memory.failcnt": "43\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    "memory/memory.stat": "cache 300000\nrss 700000\ninactive_file 1\nhierarchical_memory_limit 2000000\n"
    "pgmajfault 1\ntotal_inactive_file 200000\ntotal_pgmajfault 12\n",
    "blkio/blkio.throttle.io_service_bytes_recursive": "8:0 Read 1000\n8:0 Write 2000\n8:0 Sync 5\n8:0 Total 3000\n"
    "Total 3000\n",
}

STAT = (
    "{pid} (a (bad) name) S {parent} {group} {session} 0 -1 4194560 100 0 9 2 {ticks} 5 3 2 20 0 1 0 141295 3133440 "
    "{pages} 18446744073709551615 1 1"
)


def files(folder: str, texts: Mapping[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in texts.items()}


def process(pid: int, parent: int, *, session: int = 0, group: int = 0) -> Process:
    return Process(pid=pid, parent=parent, group=group or session, session=session, ticks=1, pages=1)


def nothing(_path: str) -> None:
    return None


def write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_each_controller_has_its_mount_and_version_2_has_the_empty_name() -> None:
    assert mounts(MOUNTS_V1) == {
        "cpu": Mount("/sys/fs/cgroup/cpu,cpuacct", "/"),
        "cpuacct": Mount("/sys/fs/cgroup/cpu,cpuacct", "/"),
        "memory": Mount("/sys/fs/cgroup/memory", "/"),
        "blkio": Mount("/sys/fs/cgroup/blkio", "/"),
        "": Mount("/sys/fs/cgroup/unified", "/"),
    }
    assert mounts(MOUNTS_V2) == {"": Mount("/sys/fs/cgroup", "/")}


def test_the_folders_of_a_process_are_found_in_version_1() -> None:
    assert folders(memberships(PROCESS_V1), mounts(MOUNTS_V1)) == {
        "memory": "/sys/fs/cgroup/memory/docker/abc",
        "blkio": "/sys/fs/cgroup/blkio/docker/abc",
        "cpu": "/sys/fs/cgroup/cpu,cpuacct/docker/abc",
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct/docker/abc",
    }


def test_the_folder_of_a_process_is_found_in_version_2() -> None:
    found = folders(memberships(PROCESS_V2), mounts(MOUNTS_V2))
    assert found == {"": "/sys/fs/cgroup/system.slice/docker-abc.scope"}


def test_a_path_with_a_colon_stays_whole() -> None:
    assert memberships("0::/a:b\n") == {"": "/a:b"}


def test_a_process_in_the_topmost_cgroup_has_none_of_its_own() -> None:
    assert folders({"": "/"}, mounts(MOUNTS_V2)) == {}


def test_where_only_a_part_of_a_hierarchy_is_seen_paths_count_from_there_and_others_are_not_seen() -> None:
    part = {"memory": Mount("/sys/fs/cgroup/memory", "/docker/outer")}
    assert folders({"memory": "/docker/outer/run"}, part) == {"memory": "/sys/fs/cgroup/memory/run"}
    assert folders({"memory": "/docker/outer"}, part) == {}
    assert folders({"memory": "/docker/outer-2/run"}, part) == {}
    assert folders({"": "/../sibling"}, {"": Mount("/sys/fs/cgroup", "/")}) == {}


def test_version_2_tells_everything() -> None:
    assert cgroup_use({"": "/g"}, files("/g", V2).get) == CgroupUse(
        sources=frozenset({"cgroup2"}),
        cpu_seconds=2.5,
        cpus_limit=1.5,
        periods=(50, 200),
        memory_used=800_000,
        memory_limit=2_000_000,
        memory_failures=43,
        oom_kills=1,
        major_faults=3,
        disk=Traffic(1005, 2006),
        cpu_stalled=1.5,
        memory_stalled=0.0,
        disk_stalled=0.25,
    )


def test_version_1_tells_the_same_but_pressure() -> None:
    where = {"cpu": "/g/cpu", "cpuacct": "/g/cpu", "memory": "/g/memory", "blkio": "/g/blkio"}
    assert cgroup_use(where, files("/g", V1).get) == CgroupUse(
        sources=frozenset({"cgroup1"}),
        cpu_seconds=2.5,
        cpus_limit=1.5,
        periods=(50, 200),
        memory_used=800_000,
        memory_limit=2_000_000,
        memory_failures=43,
        oom_kills=1,
        major_faults=12,
        disk=Traffic(1000, 2000),
    )


def test_a_failure_is_counted_with_swap_where_both_have_one_limit() -> None:
    counted = V1 | {"memory/memory.failcnt": "0\n", "memory/memory.memsw.failcnt": "7\n"}
    assert cgroup_use({"memory": "/g/memory"}, files("/g", counted).get).memory_failures == 7


def test_pages_that_were_missed_again_count_and_not_those_that_were_read_first() -> None:
    stat = "total_workingset_refault_file 5\ntotal_workingset_refault_anon 2\ntotal_pgmajfault 12\n"
    use = cgroup_use({"memory": "/g/memory"}, files("/g", V1 | {"memory/memory.stat": stat}).get)
    assert use.major_faults == 7


def test_a_version_1_that_names_no_disk_leaves_the_question_to_the_processes() -> None:
    uncounted = V1 | {f"blkio/blkio.throttle.io_service_bytes{end}": "Total 0\n" for end in ("", "_recursive")}
    assert cgroup_use({"blkio": "/g/blkio"}, files("/g", uncounted).get).disk == Traffic()


def test_no_limit_is_none_in_both_versions() -> None:
    unlimited = V2 | {"memory.max": "max\n"}
    assert cgroup_use({"": "/g"}, files("/g", unlimited).get).memory_limit is None
    assert cgroup_use({"": "/g"}, files("/g", V2 | {"cpu.max": "max 100000\n"}).get).cpus_limit is None
    unlimited = V1 | {
        "memory/memory.stat": "hierarchical_memory_limit 9223372036854771712\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
    }
    use = cgroup_use({"memory": "/g/memory", "cpu": "/g/cpu"}, files("/g", unlimited).get)
    assert (use.memory_limit, use.cpus_limit) == (None, None)


def test_what_a_kernel_does_not_count_is_unknown_and_not_nought() -> None:
    old = {name: text for name, text in V1.items() if not name.endswith(("failcnt", "oom_control"))}
    old["memory/memory.stat"] = "total_inactive_file 0\n"
    use = cgroup_use({"memory": "/g/memory"}, files("/g", old).get)
    assert use.memory_used == 1_000_000
    assert (use.memory_failures, use.oom_kills, use.major_faults, use.cpus_limit) == (None, None, None, None)
    assert (use.cpu_stalled, use.memory_stalled, use.disk_stalled) == (None, None, None)


def test_pressure_of_a_version_1_run_is_from_its_group_in_version_2_where_both_are_mounted() -> None:
    pressure = {name: text for name, text in V2.items() if name.endswith("pressure")}
    where = {"cpu": "/g/cpu", "cpuacct": "/g/cpu", "memory": "/g/memory", "blkio": "/g/blkio", "": "/u"}
    use = cgroup_use(where, (files("/g", V1) | files("/u", pressure)).get)
    assert use.sources == {"cgroup1"}
    assert (use.cpu_seconds, use.cpu_stalled, use.disk_stalled) == (2.5, 1.5, 0.25)


@given(
    st.dictionaries(
        st.sampled_from(sorted({*V2, *V1})), st.text(alphabet="0123456789 \n:=.maxRWreadbytes-²", max_size=60)
    ),
    st.booleans(),
)
def test_garbage_is_unknown_and_breaks_nothing(texts: dict[str, str], new: bool) -> None:
    where = {"": "/g"} if new else {name: f"/g/{name}" for name in ("cpu", "cpuacct", "memory", "blkio")}
    use = cgroup_use(where, files("/g", (V2 if new else V1) | texts).get)
    assert all(number is None or number >= 0 for number in (use.cpu_seconds, use.memory_used, use.oom_kills))


@given(st.text(max_size=200))
def test_no_text_of_a_process_breaks_its_reader(text: str) -> None:
    parse_process(text)
    parse_process(f"7 (a) S {text}")
    parse_thread(f"7 (a) S {text}")
    process_traffic(text)
    list(interfaces(f"eth0: {text}"))
    segments_resent(f"Tcp: RetransSegs {text}\nTcp: {text}")
    memberships(text)
    mounts(text)


def test_a_version_2_cgroup_without_controllers_still_tells_its_cpu_time() -> None:
    use = cgroup_use({"": "/g"}, {"/g/cpu.stat": "usage_usec 1000000\n"}.get)
    assert (use.cpu_seconds, use.periods, use.memory_used, use.disk) == (1.0, None, None, Traffic())
    assert use.sources == {"cgroup2"}


def test_an_idle_cgroup_has_used_no_disk_and_an_absent_one_is_unknown() -> None:
    assert cgroup_use({"": "/g"}, {"/g/io.stat": ""}.get).disk == Traffic(0, 0)
    assert cgroup_use({"": "/g"}, nothing) == CgroupUse()


def test_a_working_set_is_never_negative() -> None:
    texts = {"/g/memory.current": "100\n", "/g/memory.stat": "inactive_file 4096\n"}
    assert cgroup_use({"": "/g"}, texts.get).memory_used == 0


def test_disk_traffic_is_told_by_device() -> None:
    assert io_traffic(V2["io.stat"] + "\n8:32\n") == {"8:0": Traffic(1000, 2000), "8:16": Traffic(5, 6)}
    blkio = V1["blkio/blkio.throttle.io_service_bytes_recursive"]
    assert blkio_traffic(blkio + "8:16 Write 7\n") == {"8:0": Traffic(1000, 2000), "8:16": Traffic(0, 7)}


def test_the_processes_of_a_cgroup_are_listed() -> None:
    assert processes_in({"memory": "/g"}, {"/g/cgroup.procs": "12\n13\n"}.get) == [12, 13]
    assert processes_in({"memory": "/g"}, nothing) is None
    assert processes_in({}) is None
    assert processes_in({"memory": "/g"}, {"/g/cgroup.procs": "12\nx\n"}.get) == [12]


def test_the_threads_of_a_cgroup_are_listed_by_either_version() -> None:
    texts = {"/one/tasks": "12\n13\n", "/two/cgroup.threads": "14\n"}
    assert threads_in({"memory": "/one"}, texts.get) == [12, 13]
    assert threads_in({"": "/two"}, texts.get) == [14]
    assert threads_in({"memory": "/gone"}, texts.get) is None


def test_a_process_is_read_whatever_its_name_is() -> None:
    stat = STAT.format(pid=7, parent=1, group=6, session=5, ticks=10, pages=42)
    expected = Process(
        pid=7, parent=1, group=6, session=5, ticks=10 + 5 + 3 + 2, pages=42, started=141295, major_faults=11
    )
    assert parse_process(stat) == expected
    assert parse_process(stat.replace(") S ", ") Z ")) == msgspec.structs.replace(expected, ended=True)
    assert parse_process("") is None
    assert parse_process("7 (half") is None
    assert parse_process(stat.replace("42", "many")) is None


def test_a_runs_processes_are_its_session_its_group_and_all_that_descend_from_them() -> None:
    everyone = [
        process(1, 0),
        process(100, 1, session=100),
        process(101, 100, session=100),
        process(102, 1, session=100),  # its parent ended
        process(103, 101, session=103),  # left the session
        process(104, 103, session=103),
        process(105, 1, session=9, group=100),
        process(200, 1, session=200),
    ]
    assert [one.pid for one in members(everyone, 100)] == [100, 101, 102, 103, 104, 105]


def test_what_processes_use_is_added_up() -> None:
    use = processes_use([process(1, 0), process(2, 1), process(3, 1)])
    assert use.cpu_seconds == 3 / os.sysconf("SC_CLK_TCK")
    assert use.memory_used == 3 * os.sysconf("SC_PAGE_SIZE")
    assert use.major_faults == 0


def test_disk_traffic_of_a_process_is_what_reached_disks() -> None:
    io = "rchar: 9\nwchar: 9\nsyscr: 1\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n"
    assert process_traffic(io) == Traffic(4096, 8192)
    assert process_traffic("") == Traffic()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A /proc with the run's process 100, its child 101, and a stranger."""
    stats = [(100, 1, 100), (101, 100, 100), (200, 1, 200)]
    for pid, parent, session in stats:
        stat = STAT.format(pid=pid, parent=parent, group=session, session=session, ticks=90, pages=10)
        write(tmp_path / "proc" / str(pid), {"stat": stat, "io": "read_bytes: 5\nwrite_bytes: 6\n"})
    for name, network in {"self": "host", "1": "host", "100": "own", "101": "own", "200": "host"}.items():
        (tmp_path / "proc" / name / "ns").mkdir(parents=True)
        (tmp_path / "proc" / name / "ns/net").symlink_to(f"net:[{network}]")
    dev = " lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\neth0: 70 0 0 0 0 0 0 0 80 0 0 0 0 0 0 0\n"
    snmp = "Ip: Forwarding\nIp: 1\nTcp: OutSegs RetransSegs InErrs\nTcp: 900 31 0\n"
    write(tmp_path / "proc/100/net", {"dev": dev, "snmp": snmp})
    write(tmp_path / "proc/200/net", {"dev": dev, "snmp": snmp})
    write(tmp_path / "group", V2)
    return tmp_path


def reader(host: Path) -> UsageReader:
    return UsageReader(proc=str(host / "proc"), clock=lambda: 3.0)


def run(pid: int = 100, *, cgroups: dict[str, str] | None = None, leads_session: bool = True) -> FoundRun:
    return FoundRun(job_id="j", epoch=1, rank=0, pid=pid, cgroups=cgroups, leads_session=leads_session)


def test_a_run_without_a_cgroup_is_measured_by_its_processes(host: Path) -> None:
    (reading,) = reader(host).read([run(cgroups={})])
    assert (reading.source, reading.at) == ("processes", 3.0)
    assert reading.cpu_seconds == 2 * 100 / os.sysconf("SC_CLK_TCK")
    assert reading.memory_used == 20 * os.sysconf("SC_PAGE_SIZE")
    assert reading.disk == Traffic(10, 12)
    assert (reading.periods, reading.memory_limit, reading.cpu_stalled) == (None, None, None)


def test_a_run_with_a_cgroup_is_measured_by_that(host: Path) -> None:
    (reading,) = reader(host).read([run(cgroups={"": str(host / "group")})])
    assert (reading.source, reading.cpu_seconds, reading.memory_used) == ("cgroup2", 2.5, 800_000)
    assert reading.disk == Traffic(1005, 2006)


def test_what_a_cgroup_does_not_tell_comes_from_the_processes_in_it_and_that_is_said(host: Path) -> None:
    write(host / "cpu", {"cpu.stat": V1["cpu/cpu.stat"], "cgroup.procs": "100\n101\n"})
    (reading,) = reader(host).read([run(cgroups={"cpu": str(host / "cpu")})])
    assert (reading.source, reading.periods, reading.major_faults) == ("processes", (50, 200), 22)
    write(host / "memory", {"memory.usage_in_bytes": "100", "memory.stat": "", "cgroup.procs": "100\n101\n"})
    both = {"cpu": str(host / "cpu"), "memory": str(host / "memory")}
    (reading,) = reader(host).read([run(cgroups=both)])
    assert (reading.source, reading.memory_used) == ("cgroup1+processes", 100)
    assert reading.cpu_seconds == 2 * 100 / os.sysconf("SC_CLK_TCK")


def test_a_containers_cgroup_is_found_through_its_process(host: Path) -> None:
    write(host / "proc/100", {"cgroup": "0::/docker/abc\n"})
    write(host / "proc/self", {"mountinfo": f"30 23 0:26 / {host}/fs rw - cgroup2 cgroup2 rw\n"})
    write(host / "fs/docker/abc", V2)
    (reading,) = reader(host).read([run(leads_session=False)])
    assert (reading.source, reading.cpu_seconds) == ("cgroup2", 2.5)


def test_only_a_network_of_its_own_is_a_runs_traffic(host: Path) -> None:
    own, shared = reader(host).read([run(100, cgroups={}), run(200, cgroups={})])
    assert (own.network, own.segments_resent) == (Traffic(70, 80), 31)
    assert (shared.network, shared.segments_resent) == (Traffic(), None)


def test_a_run_whose_process_has_gone_is_not_told_of(host: Path) -> None:
    assert reader(host).read([run(999, cgroups={})]) == []


def test_a_run_that_only_waits_for_its_parent_to_take_note_has_ended(host: Path) -> None:
    stat = (host / "proc/100/stat").read_text()
    write(host / "proc/100", {"stat": stat.replace(") S ", ") Z ")})
    assert reader(host).read([run(cgroups={})]) == []


def test_a_pid_that_is_somebody_elses_by_now_is_not_taken_for_the_run(host: Path) -> None:
    assert reader(host).read([run(101, cgroups={})]) == []  # in a session that another process leads


def test_the_busiest_thread_is_the_one_that_used_most_between_two_looks() -> None:
    before = {1: Thread(5, 100, False), 2: Thread(5, 0, False), 3: Thread(5, 7, False)}
    after = {1: Thread(5, 110, False), 2: Thread(5, 240, True), 3: Thread(9, 900, False), 4: Thread(9, 500, True)}
    assert thread_use(before, after, 3.0, 100) == (ThreadUse(0.8, 0.5), 2)
    assert thread_use({}, after, 0.0, 100) == (ThreadUse(None, 0.5), 0)
    assert thread_use(before, {}, 3.0, 100) == (ThreadUse(), 0)


def thread(pid: int, ticks: int, state: str = "S") -> str:
    return STAT.format(pid=pid, parent=1, group=pid, session=pid, ticks=ticks, pages=1).replace(") S ", f") {state} ")


def test_each_run_is_looked_at_every_few_seconds_and_its_threads_are_found(host: Path) -> None:
    now = 0.0
    reads = UsageReader(proc=str(host / "proc"), clock=lambda: now)
    write(host / "group", {"cgroup.threads": "100\n150\n"})
    write(host / "proc/100/task/100", {"stat": thread(100, 0)})
    write(host / "proc/150/task/150", {"stat": thread(150, 0, "D")})

    def threads() -> ThreadUse:
        return reads.read([run(cgroups={"": str(host / "group")})])[0].threads

    assert threads() == ThreadUse(None, 0.5)
    write(host / "proc/150/task/150", {"stat": thread(150, round(1.5 * os.sysconf("SC_CLK_TCK")))})
    now = LOOK_SECONDS / 2
    assert threads() == ThreadUse(None, 0.5)
    now = LOOK_SECONDS
    assert threads() == ThreadUse(0.5, 0.0)


def test_a_run_of_very_many_threads_costs_the_others_nothing_but_a_turn(host: Path) -> None:
    now = 0.0
    reads = UsageReader(proc=str(host / "proc"), clock=lambda: now)
    numbers = range(1000, 3000)
    for number in numbers:
        write(host / f"proc/{number}/task/{number}", {"stat": thread(number, 10)})
    write(host / "group", {"cgroup.threads": "\n".join(map(str, numbers))})
    many = [
        FoundRun(job_id=f"j-{number}", epoch=1, rank=0, pid=100, cgroups={"": str(host / "group")})
        for number in range(5)
    ]
    looked = []
    for _ in range(3):
        looked.append(sum(reading.threads.blocked is not None for reading in reads.read(many)))
        now += 1.0
    assert looked == [2, 4, 5]


def test_every_run_of_many_threads_has_its_turn_again_and_again(host: Path) -> None:
    now = 0.0
    reads = UsageReader(proc=str(host / "proc"), clock=lambda: now)
    numbers = range(1000, 1300)
    write(host / "group", {"cgroup.threads": "\n".join(map(str, numbers))})
    eight = [
        FoundRun(job_id=f"j-{number}", epoch=1, rank=0, pid=100, cgroups={"": str(host / "group")})
        for number in range(8)
    ]
    busiest: list[dict[str, float | None]] = []
    for second in range(13):
        now = float(second)
        for number in numbers:  # each of them uses half a core
            ticks = round(0.5 * second * os.sysconf("SC_CLK_TCK"))
            write(host / f"proc/{number}/task/{number}", {"stat": thread(number, ticks)})
        busiest.append({reading.run.job_id: reading.threads.busiest for reading in reads.read(eight)})
    assert all(list(told) == [one.job_id for one in eight] for told in busiest), "whose turn it is changes no order"
    known = [{name for name, value in told.items() if value == 0.5} for told in busiest]
    assert [len(told) for told in known] == [0, 0, 0, 0, 2, 4, 6, 8, 8, 8, 8, 8, 8], "four seconds for a round"


def test_a_cgroup_that_tells_nothing_any_more_leaves_what_the_processes_tell(host: Path) -> None:
    reads = reader(host)
    here = run(cgroups={"": str(host / "group")})
    (before,) = reads.read([here])
    write(host / "group", dict.fromkeys(V2, ""))
    (after,) = reads.read([here])
    assert (before.source, after.source) == ("cgroup2", "processes")
    assert measures_lost(before, after) == 4
    assert run_sample(before, after).cpus_used is None


def test_a_pipe_or_a_link_in_the_place_of_a_file_is_not_waited_for(host: Path) -> None:
    (host / "group/cpu.stat").unlink()
    os.mkfifo(host / "group/cpu.stat")
    (host / "group/memory.current").unlink()
    (host / "group/memory.current").symlink_to("/dev/zero")
    (reading,) = reader(host).read([run(cgroups={"": str(host / "group")})])
    assert reading.source == "processes"


def test_files_are_kept_open_up_to_a_number_and_as_long_as_they_are_read(tmp_path: Path) -> None:
    write(tmp_path, {name: name for name in "abc"} | {"long": "x" * 20_000})
    opened = len(os.listdir("/proc/self/fd"))
    kept = KeptOpen(kept_max=2)
    for _ in range(2):
        assert [kept.read(str(tmp_path / name)) for name in "abc"] == ["a", "b", "c"]
        assert len(os.listdir("/proc/self/fd")) == opened + 2
        kept.sweep()
    write(tmp_path, {"a": "anew"})
    assert kept.read(str(tmp_path / "a")) == "anew"
    kept.sweep()
    assert len(os.listdir("/proc/self/fd")) == opened + 1
    assert kept.read(str(tmp_path / "long")) == "x" * 20_000
    assert kept.read(str(tmp_path / "nowhere")) is None
    kept.sweep()
    kept.sweep()
    assert len(os.listdir("/proc/self/fd")) == opened
