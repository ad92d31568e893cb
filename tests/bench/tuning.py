"""What it costs to watch and judge every rank: CPU and memory of the reallocator's core, from 8 to 8,192 ranks.

`python -m tests.bench.tuning`. Each rank holds an emulated GPU on a node of 8, is sampled and tells its pace once a
second; decoding what comes over the bus is counted, the bus itself is not. Jobs of 8 ranks, one in eight held back.
"""

import gc
import time
import tracemalloc
from collections.abc import Sequence

import msgspec
from msgspec import structs

from tests.bench.figures import Figures
from tests.support.builders import GIB, job, node
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.spec import TuningMode
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample
from weftd.reallocator.thinking.core import Reallocator

SIZES = (8, 64, 512, 2048, 8192)
PER_NODE = 8
SECONDS = 30


def measure(figures: Figures) -> None:
    for ranks in SIZES:
        cpu, per_beat, kept = _measured(ranks)
        figures.add(
            f"{ranks} ranks on as many emulated GPUs",
            f"{cpu / SECONDS:.2%} of a core, {cpu / SECONDS / ranks * 1e6:.1f} µs per rank and second, "
            f"longest beat {max(per_beat) * 1000:.1f} ms, {kept / ranks / 1024:.1f} KiB per rank kept",
            "per rank: not more with size",
        )


def _measured(ranks: int) -> tuple[float, list[float], int]:
    """CPU seconds, seconds of each beat, bytes kept after a full window."""
    jobs = [_job(number) for number in range(max(1, ranks // PER_NODE))]
    nodes = [node(_name(number), gpus=PER_NODE) for number in range(len(jobs))]
    said = [_said(one, second) for second in range(3) for one in jobs]
    core = Reallocator(tuning=TuningMode.ON)
    decode, decode_progress = msgspec.json.Decoder(NodeSampled).decode, msgspec.json.Decoder(ProgressSeen).decode
    gc.collect()
    cpu, beats = 0.0, []
    for second in range(SECONDS):
        now = 1000.0 + second
        began = time.process_time()
        if second % 5 == 0:
            core.learn(jobs=jobs, nodes=nodes, now=now)
        for sample, progress in said[(second % 3) * len(jobs) : (second % 3 + 1) * len(jobs)]:
            heard = structs.replace(decode(sample), seq=second + 1)
            core.observe(heard, now=now)
            core.observe(decode_progress(progress), now=now)
        beat = time.process_time()
        core.decide(now)
        cpu, beats = cpu + time.process_time() - began, [*beats, time.process_time() - beat]
    return cpu, beats, _kept(jobs, nodes, said)


def _kept(jobs: Sequence[Job], nodes: Sequence[object], said: Sequence[tuple[bytes, bytes]]) -> int:
    """Bytes that a core holds of jobs whose windows are full; the jobs themselves are the store's."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    core = Reallocator(tuning=TuningMode.ON)
    for second in range(35):
        now = 1000.0 + second
        if second % 5 == 0:
            core.learn(jobs=jobs, nodes=nodes, now=now)  # type: ignore[arg-type]
        for sample, progress in said[: len(jobs)]:
            heard = structs.replace(msgspec.json.decode(sample, type=NodeSampled), seq=second + 1)
            core.observe(heard, now=now)
            core.observe(msgspec.json.decode(progress, type=ProgressSeen), now=now)
        core.decide(now)
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return kept


def _name(number: int) -> str:
    return f"node-{number:04d}"


def _job(number: int) -> Job:
    held = tuple(
        Allocation(rank=rank, role="worker", node_id=_name(number), gpus=(rank,), cpus=2.0, memory=GIB)
        for rank in range(PER_NODE)
    )
    made = job(f"j-{number:05d}", replicas=PER_NODE, spec={"tuning": {"mode": "on"}})
    return structs.replace(made, state=JobState.RUNNING, epoch=1, placement=Placement(allocations=held))


def _said(one: Job, second: int) -> tuple[bytes, bytes]:
    number = int(one.id.removeprefix("j-"))
    throttled = 0.9 if number % 8 == 0 else 0.01
    runs = tuple(
        RunSample(
            job_id=one.id,
            epoch=1,
            rank=rank,
            source="cgroup2",
            cpus_used=1.5 + 0.01 * second,
            cpu_throttled=throttled,
            cpus_limit=2.0,
            busiest_thread=0.8,
            blocked=0.0,
            memory_used=GIB // 2,
            memory_limit=GIB,
            memory_failures_rate=0.0,
            major_faults_rate=0.0,
            disk_read_rate=1e6,
            disk_write_rate=1e5,
            network_send_rate=1e6,
            network_receive_rate=1e6,
            network_resent_rate=0.0,
            cpu_pressure=0.01,
            memory_pressure=0.0,
            disk_pressure=0.0,
        )
        for rank in range(PER_NODE)
    )
    gpus = tuple(
        GpuSample(index=index, uuid=f"EMULATED-{index}", model="Emulated GPU", emulated=True, utilisation=0.6)
        for index in range(PER_NODE)
    )
    host = HostSample(cpus=64.0, cpus_used=13.0, memory_total=256 * GIB, memory_used=GIB)
    sampled = NodeSampled(
        node_id=_name(number), pool="default", at=float(second), host=host, gpus=gpus, runs=runs, boot="b", seq=1
    )
    pace = Pace(window_seconds=10.0, steps=20, steps_rate=2.0, step_seconds=0.4, phases={"t_data": 0.01})
    told = tuple(
        RunProgressed(job_id=one.id, epoch=1, rank=rank, progress={"step": 2.0 * second}, at=float(second), pace=pace)
        for rank in range(PER_NODE)
    )
    return msgspec.json.encode(sampled), msgspec.json.encode(ProgressSeen(node_id=_name(number), runs=told))


if __name__ == "__main__":
    figures = Figures()
    measure(figures)
    figures.show()
