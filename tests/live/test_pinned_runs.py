"""Processes with GPUs of two NUMA nodes are pinned to the CPUs of one each, also when the next executor has begun."""

import os
from pathlib import Path

import pytest

from tests.support.runs import in_state, order
from weft.domain.cluster import Gpu
from weft.domain.topology import Topology
from weft.messages.nodes import RunState
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts
from weftd.executor.runs import RunKey
from weftd.executor.runtime.limits.cgroup import find_cgroups
from weftd.executor.runtime.process.runtime import ProcessRuntime
from weftd.executor.thinking.pinning import NumaNode

CPUSET = Path("/sys/fs/cgroup/cpuset")
CPUS = sorted(os.sched_getaffinity(0))[:2]
CAN_PIN = len(CPUS) == 2 and os.access(CPUSET, os.W_OK) and (CPUSET / "cgroup.procs").exists()


def affinity_of(home: Home, key: RunKey) -> set[int]:
    """The CPUs that the main process of a run may use."""
    groups = find_cgroups(f"test-{os.getpid()}").names()[str(key)]
    pids = (Path(groups["memory"]) / "cgroup.procs").read_text().split()
    assert pids, f"{key} has no process in {home.root}"
    return set.intersection(*(os.sched_getaffinity(int(pid)) for pid in pids))


@pytest.mark.skipif(not CAN_PIN, reason="this host has no two CPUs, or no writable cpuset of version 1")
async def test_each_run_has_the_cpus_of_its_gpus_and_the_next_executor_counts_them(tmp_path: Path) -> None:
    home = Home(tmp_path)
    node = NodeFacts(
        node_id="node-1",
        gpus=tuple(Gpu(index=n, uuid=f"E{n}", model="E", memory=1, emulated=True) for n in range(4)),
        topology=Topology(gpus=(0, 1, 2, 3), numa=(0, 0, 1, 1)),
        numa=tuple(NumaNode(number=n, cpus=str(cpu), cpu_count=1, memory=1 << 30) for n, cpu in enumerate(CPUS)),
        binds_memory=False,  # a host of one NUMA node has no memory of a second
        checkpoints=str(tmp_path / "checkpoints"),
        results=str(tmp_path / "results"),
    )

    async def opened() -> ProcessRuntime:
        return await ProcessRuntime.open(home, node, inherited=os.environ, cgroups=find_cgroups(f"test-{os.getpid()}"))

    runtime = await opened()
    keys = [RunKey(job, 1, 0) for job in ("near-0", "near-1", "across", "late")]
    for key, gpus in zip(keys[:3], ((0,), (3,), (1, 2)), strict=True):
        await runtime.start(order(key.job_id, gpus=gpus, command=("sleep", "60"), cpus=1.0))
        await in_state(runtime, key, RunState.RUNNING)
    assert [affinity_of(home, key) for key in keys[:3]] == [{CPUS[0]}, {CPUS[1]}, os.sched_getaffinity(0)]
    await runtime.close()
    runtime = await opened()
    try:
        await runtime.start(order("late", gpus=(1,), command=("sleep", "60"), cpus=1.0))
        await in_state(runtime, keys[3], RunState.RUNNING)
        assert affinity_of(home, keys[3]) == os.sched_getaffinity(0), "the CPU of its NUMA node is taken"
    finally:
        for key in keys:
            await runtime.signal(key, kill=True)
            await in_state(runtime, key, RunState.EXITED)
        await runtime.close()
