"""A run is pinned to the NUMA node of its GPUs, if it fits there beside other runs."""

import os
from pathlib import Path

import pytest
from docker import APIClient

from tests.support.builders import GIB
from tests.support.topologies import topology
from weft.domain.cluster import Gpu
from weft.messages.nodes import StartRun
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts
from weftd.executor.machine.numa import Pins, numa_nodes
from weftd.executor.runs import Limits, RunKey
from weftd.executor.runtime.limits.cgroup import CgroupsV1, CgroupsV2
from weftd.executor.thinking.pinning import UNPINNED, NumaNode, Pin, Pinned, numa_for

NODES = tuple(
    NumaNode(number=number, cpus=f"{32 * number}-{32 * number + 31}", cpu_count=32, memory=256 * GIB)
    for number in range(2)
)


def chosen(*gpus: int, cpus: float = 8, memory: int = GIB, held: tuple[Pinned, ...] = ()) -> int | None:
    node = numa_for(gpus, cpus=cpus, memory=memory, nodes=NODES, held=held)
    return None if node is None else node.number


def test_a_run_goes_to_the_numa_node_of_all_its_gpus() -> None:
    assert chosen(1, 1) == 1
    assert chosen(0, 1) is None
    assert chosen(-1) is None
    assert chosen() is None


def test_a_machine_of_one_numa_node_pins_nothing() -> None:
    assert numa_for([0], cpus=1, memory=1, nodes=NODES[:1], held=()) is None


def test_a_run_is_pinned_as_long_as_cpus_and_memory_are_left_there() -> None:
    half = Pinned(numa=0, cpus=16, memory=128 * GIB)
    assert chosen(0, cpus=16, memory=128 * GIB, held=(half,)) == 0
    assert chosen(0, cpus=17, held=(half,)) is None
    assert chosen(0, memory=129 * GIB, held=(half,)) is None
    assert chosen(1, cpus=32, memory=256 * GIB, held=(half,)) == 1


def test_memory_of_a_run_that_is_not_pinned_counts_on_every_numa_node() -> None:
    anywhere = Pinned(numa=UNPINNED, cpus=64, memory=200 * GIB)
    assert chosen(1, memory=56 * GIB, held=(anywhere,)) == 1
    assert chosen(1, memory=57 * GIB, held=(anywhere,)) is None


def sysfs(root: Path) -> Path:
    for number, cpus in enumerate(("0-15,32-47", "16-31,48-63")):
        folder = root / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal:   1048576 kB\nNode {number} MemFree: 9 kB\n")
    (root / "node2").mkdir()
    (root / "node2" / "cpulist").write_text("\n")  # memory without CPUs
    (root / "node2" / "meminfo").write_text("Node 2 MemTotal: 1048576 kB\n")
    return root


def test_numa_nodes_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    assert numa_nodes(sysfs(tmp_path)) == (
        NumaNode(number=0, cpus="0-15,32-47", cpu_count=32, memory=GIB),
        NumaNode(number=1, cpus="16-31,48-63", cpu_count=32, memory=GIB),
    )
    assert numa_nodes(tmp_path / "none") == ()


def node(numa: tuple[NumaNode, ...], **fields: bool) -> NodeFacts:
    gpus = tuple(Gpu(index=index, uuid=f"E{index}", model="E", memory=1, emulated=True) for index in range(8))
    return NodeFacts(
        node_id="n", gpus=gpus, topology=topology("pcie-8"), numa=numa, checkpoints="c", results="r", **fields
    )


def order(job: str, *gpus: int, cpus: float = 20) -> StartRun:
    return StartRun(
        job_id=job,
        name=job,
        tenant="t",
        epoch=1,
        rank=0,
        role="worker",
        role_rank=0,
        world_size=1,
        command=("true",),
        image="image",
        gpus=gpus,
        cpus=cpus,
        memory=GIB,
        shm=0,
        grace=1.0,
        master_address="",
        master_port=0,
    )


def test_pins_outlive_the_executor_and_go_with_their_runs(tmp_path: Path) -> None:
    home, facts = Home(tmp_path), node(NODES)
    pins = Pins(home, facts)
    assert pins.begin(order("a", 0, 1)) == Pin(cpus="0-31", memory="0")
    assert pins.begin(order("a", 0, 1)) == Pin(cpus="0-31", memory="0")  # a second try of the same start
    assert pins.begin(order("b", 2)) is None  # 40 CPUs are more than a socket has
    assert pins.begin(order("c", 5)) == Pin(cpus="32-63", memory="1")
    again = Pins(home, facts)
    again.keep([RunKey("a", 1, 0)])
    assert again.begin(order("d", 3)) is None
    again.forget(RunKey("a", 1, 0))
    assert again.begin(order("d", 3)) == Pin(cpus="0-31", memory="0")


def test_the_owner_may_leave_memory_unbound(tmp_path: Path) -> None:
    assert Pins(Home(tmp_path), node(NODES, binds_memory=False)).begin(order("a", 0)) == Pin(cpus="0-31")


def test_a_container_gets_its_pin_as_the_engines_cpuset() -> None:
    from weftd.executor.runtime.docker.container import LOG_BY_FILE, Folders, Host, Joined, container_arguments
    from weftd.executor.runtime.docker.settings import ContainerSettings

    host = Host(node=node(NODES), settings=ContainerSettings(), injection="cdi", log=LOG_BY_FILE)
    folders = Folders(run="/r", files="/f", secrets="/s", slowdowns="/d")
    client = APIClient(version="1.41")
    joined = Joined(network="n", named=False)
    for pin, wanted in ((Pin(cpus="0-31", memory="0"), ("0-31", "0")), (None, (None, None))):
        config = container_arguments(client, order("a", 0), host, folders, joined, pin=pin)["host_config"]
        assert (config.get("CpusetCpus"), config.get("CpusetMems")) == wanted


def test_the_group_of_a_run_is_pinned_in_version_2(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("cpu.max", "memory.max", "memory.swap.max", "pids.max", "cpuset.cpus", "cpuset.mems"):
        (tmp_path / "run" / name).touch()
    CgroupsV2(tmp_path, 10).create("run", Limits(cpus=1, memory=GIB), Pin(cpus="0-31", memory="1"))
    assert (tmp_path / "run" / "cpuset.cpus").read_text() == "0-31"
    assert (tmp_path / "run" / "cpuset.mems").read_text() == "1"


def test_a_host_without_cpuset_starts_the_run_unpinned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run").mkdir()
    for name in ("cpu.max", "memory.max", "memory.swap.max", "pids.max"):
        (tmp_path / "run" / name).touch()
    assert CgroupsV2(tmp_path, 10).create("run", Limits(cpus=1), Pin(cpus="0-31")) == {"unified": f"{tmp_path}/run"}
    assert "is not pinned" in caplog.text


CPUSET = Path("/sys/fs/cgroup/cpuset")
CAN_PIN = os.access(CPUSET, os.W_OK) and (CPUSET / "cgroup.procs").exists()


@pytest.mark.skipif(not CAN_PIN, reason="this host has no writable cpuset of version 1")
def test_a_process_in_a_pinned_group_has_its_cpus_and_others_have_all() -> None:
    cgroups = CgroupsV1.open(Path("/sys/fs/cgroup"), f"test-pinning-{os.getpid()}", pids_max=100)
    assert cgroups is not None
    cpu = max(os.sched_getaffinity(0))
    try:
        pinned = cgroups.create("pinned", Limits(cpus=1, memory=GIB), Pin(cpus=str(cpu), memory="0"))
        free = cgroups.create("free", Limits(cpus=1, memory=GIB))
        assert "cpuset" not in free
        child = os.fork()
        if child == 0:
            (Path(pinned["cpuset"]) / "cgroup.procs").write_text("0")
            os._exit(0 if os.sched_getaffinity(0) == {cpu} else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        for groups in cgroups.names().values():
            for group in groups.values():
                os.rmdir(group)
        cgroups.close()
