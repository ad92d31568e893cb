"""What scoring costs against the number of GPUs: `python -m tests.bench.scoring [seconds]`.

Nothing is real but the scorer: what nodes and jobs would tell is made in memory, and taken in as from the wire
(decoding counts; making the messages does not). Half of the GPUs, which are emulated, run jobs of one GPU, half are in
gangs of sixteen that tell what they compute; one in a hundred is slow. Each size is measured in a process of its own.
"""

import asyncio
import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from tests.bench.figures import Figures
from tests.support.builders import GIB, job, node
from weft.bus.wire import decode, encode
from weft.domain.cluster import Node
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import (
    ClassesLearnt,
    GpuProcess,
    GpuSample,
    GpusScored,
    HostSample,
    NodeSampled,
    PacesSeen,
    RunSample,
    ScorerPresent,
)
from weftd.scorer.thinking.core import Scorer

SIZES = (8, 64, 512, 4096, 8192)
SECONDS = 180
WARM_SECONDS = 60  # the first windows, and the first score of every GPU
PERIOD = 5
GPUS_PER_NODE = 8
GANG = 16


class Cost(Struct, frozen=True):
    """Of one scorer of `scorers`, once it is warm, per second; `rows_first`: those of the time before."""

    gpus: int
    scorers: int
    owned: int
    cpu_seconds: float
    slowest_decision: float
    memory_mib: float
    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float
    rows: float
    rows_first: int
    slow_found: str


class Cluster:
    """GPUs with what they run, and a second's worth of what is told of them."""

    def __init__(self, gpus: int, seed: int = 1) -> None:
        self.dice = Random(seed)
        per_node = min(GPUS_PER_NODE, gpus)
        self.nodes: list[Node] = [node(f"node-{number}", gpus=per_node) for number in range(gpus // per_node)]
        places = [(one.id, gpu.index) for one in self.nodes for gpu in one.capacity.gpus]
        self.slow = dict.fromkeys(self.dice.sample(places, max(1, gpus // 100)), 1.3)
        self.jobs: list[Job] = []
        half = len(places) // 2
        for number, place in enumerate(places[:half]):
            self._run([place], f"one-{number % (1 + gpus // 128)}")
        for begin in range(half, len(places), GANG):
            self._run(places[begin : begin + GANG], f"gang-{begin % (1 + gpus // 512)}")
        self.held: dict[str, list[tuple[Job, Allocation]]] = {one.id: [] for one in self.nodes}
        for made in self.jobs:
            assert made.placement is not None
            for allocation in made.placement.allocations:
                self.held[allocation.node_id].append((made, allocation))
        self._samples = {one.id: self._sampled(one) for one in self.nodes}

    def _run(self, places: list[tuple[str, int]], workload: str) -> None:
        allocations = tuple(
            Allocation(rank=rank, role="worker", node_id=node_id, gpus=(gpu,), cpus=4.0, memory=GIB)
            for rank, (node_id, gpu) in enumerate(places)
        )
        fields = {"state": JobState.RUNNING, "epoch": 1, "placement": Placement(allocations=allocations)}
        labels = {"labels": {"weft/workload": workload}}
        self.jobs.append(job(f"j-{len(self.jobs)}", replicas=len(places), spec=labels, **fields))

    def _sampled(self, one: Node) -> NodeSampled:
        held = self.held[one.id]
        holders = {gpu: (made, allocation) for made, allocation in held for gpu in allocation.gpus}
        gpus = []
        for gpu in one.capacity.gpus:
            made, allocation = holders[gpu.index]
            gpus.append(
                GpuSample(
                    index=gpu.index,
                    uuid=gpu.uuid,
                    model=gpu.model,
                    emulated=False,  # so that its clock is read, as a real one's would be
                    utilisation=0.97,
                    memory_used=40 * GIB,
                    memory_total=80 * GIB,
                    power_watts=500.0,
                    power_limit_watts=700.0,
                    temperature=60.0,
                    sm_clock_mhz=1700.0,
                    memory_utilisation=0.4,
                    sm_active=0.8,
                    dram_active=0.3,
                    processes=(GpuProcess(pid=1, job_id=made.id, epoch=1, rank=allocation.rank),),
                )
            )
        runs = tuple(
            RunSample(job_id=made.id, epoch=1, rank=one.rank, source="cgroup2", cpu_throttled=0.0, cpus_used=2.0)
            for made, one in held
        )
        host = HostSample(cpus=64, memory_total=256 * GIB, memory_used=GIB, cpu_pressure=0.0)
        return NodeSampled(
            node_id=one.id, pool=one.pool, at=0.0, host=host, gpus=tuple(gpus), runs=runs, boot="b", seq=0
        )

    def second(self, now: float) -> Iterator[tuple[str, NodeSampled | ProgressSeen]]:
        for one in self.nodes:
            sampled = self._samples[one.id]
            yield one.id, replace(sampled, at=now, seq=round(now))
            runs = tuple(self._progressed(made, allocation, now) for made, allocation in self.held[one.id])
            yield one.id, ProgressSeen(node_id=one.id, runs=runs)

    def _progressed(self, made: Job, one: Allocation, now: float) -> RunProgressed:
        step = 0.25 * self.slow.get((one.node_id, one.gpus[0]), 1.0) * self.dice.lognormvariate(0.0, 0.01)
        gang = made.placement is not None and len(made.placement.allocations) > 1
        pace = Pace(
            window_seconds=10.0,
            steps=round(10 / step),
            steps_rate=1 / step,
            samples_rate=32 / step,
            step_seconds=step,
            step_spread=0.02,
            phases={"t_compute": step, "t_wait": 0.01} if gang else {},
        )
        return RunProgressed(job_id=made.id, epoch=1, rank=one.rank, progress={}, at=now, pace=pace)


class Bench:
    """All scorers of a cluster, taking turns; the first is the one that is measured."""

    def __init__(self, cluster: Cluster, scorers: int) -> None:
        self.cluster = cluster
        self.scorers = [Scorer(me=f"scorer-{number}") for number in range(scorers)]
        self.jobs = cluster.jobs
        self.sums: Counter[str] = Counter()
        self.cpu = 0.0
        self.slowest = 0.0

    def second(self, now: float) -> None:
        told = [(node_id, type(message), encode(message)) for node_id, message in self.cluster.second(now)]
        deciding = round(now) % PERIOD == 0
        said: list[tuple[Scorer, list[bytes]]] = []
        for number, scorer in enumerate(self.scorers):
            began = time.process_time()
            heard = self._hear(scorer, told, now)
            heard_at = time.process_time()
            due = self._decide(scorer, now) if deciding else []
            took = time.process_time() - began
            said.append((scorer, due))
            if number == 0:
                self.cpu += took
                self.slowest = max(self.slowest, began + took - heard_at)
                self.sums.update(messages_in=len(heard), bytes_in=sum(heard))
                self.sums.update(messages_out=len(due), bytes_out=sum(map(len, due)))
        for number, (scorer, messages) in enumerate(said):
            paces = [one for one in messages if b'"paces"' in one[:80]]
            for other_number, other in enumerate(self.scorers):
                if other is scorer:
                    continue
                began = time.process_time()
                for one in paces:
                    other.observe_paces(decode(PacesSeen, one), now)
                other.observe_present(ScorerPresent(scorer=f"scorer-{number}"), now)
                if other_number == 0:
                    self.cpu += time.process_time() - began
                    self.sums.update(messages_in=len(paces) + 1, bytes_in=sum(map(len, paces)))

    def _hear(self, scorer: Scorer, told: list[tuple[str, type, bytes]], now: float) -> list[int]:
        sizes = []
        for node_id, kind, payload in told:
            if node_id in scorer.owned or (kind is ProgressSeen and node_id in scorer.also_hears):
                sizes.append(len(payload))
                if kind is NodeSampled:
                    scorer.observe(decode(NodeSampled, payload), now)
                else:
                    scorer.observe_progress(decode(ProgressSeen, payload), now)
        return sizes

    def _decide(self, scorer: Scorer, now: float) -> list[bytes]:
        scorer.learn(nodes=self.cluster.nodes, jobs=self.jobs, now=now)
        mine = scorer.divide(now)
        if mine != scorer.owned:
            scorer.own(mine, (), now)
        due = scorer.decide(now)
        said = [encode(PacesSeen(pool=pool, scorer="x", paces=tuple(paces))) for pool, paces in due.paces.items()]
        rows = 0
        for pool, scores in due.scores.items():
            scorer.stored(scores)
            said.append(encode(GpusScored(pool=pool, scores=tuple(scores))))
            rows += len(scores)
        for pool, classes in due.classes.items():
            scorer.learn_classes(pool, classes)
            said.append(encode(ClassesLearnt(pool=pool, classes=tuple(classes))))
            rows += len(classes)
        rows += len({subject for growth in due.growths for subject in growth.subjects})
        if scorer is self.scorers[0]:
            self.sums.update(rows=rows)
        return said


def cost(gpus: int, scorers: int, seconds: int) -> Cost:
    cluster = Cluster(gpus)
    bench = Bench(cluster, scorers)
    gc.collect()
    before = resident()
    for second in range(WARM_SECONDS):
        bench.second(1000.0 + second)
    first = bench.sums["rows"]
    bench.sums.clear()
    bench.cpu = bench.slowest = 0.0
    for second in range(WARM_SECONDS, WARM_SECONDS + seconds):
        bench.second(1000.0 + second)
    gc.collect()
    scorer = bench.scorers[0]
    owned = {place for place in cluster.slow if place[0] in scorer.owned}
    found = [place for place in owned if (score := scorer.score(place, "compute")) is not None and score.score > 1.2]
    return Cost(
        gpus=gpus,
        scorers=scorers,
        owned=sum(len(one.capacity.gpus) for one in cluster.nodes if one.id in scorer.owned),
        cpu_seconds=bench.cpu / seconds,
        slowest_decision=bench.slowest,
        memory_mib=(resident() - before) / scorers,
        messages_in=bench.sums["messages_in"] / seconds,
        bytes_in=bench.sums["bytes_in"] / seconds,
        messages_out=bench.sums["messages_out"] / seconds,
        bytes_out=bench.sums["bytes_out"] / seconds,
        rows=bench.sums["rows"] / seconds,
        rows_first=first,
        slow_found=f"{len(found)} of {len(owned)}",
    )


def resident() -> float:
    """MiB, now; where the kernel does not tell, the most there ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / (1 << 20)


def costs(seconds: int) -> Iterator[Cost]:
    for gpus, scorers in [*((gpus, 1) for gpus in SIZES), (8192, 4)]:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            yield alone.submit(cost, gpus, scorers, seconds).result()


async def measure(_: Path, figures: Figures, seconds: int = SECONDS) -> None:
    for one in await asyncio.to_thread(lambda: list(costs(seconds))):
        figures.add(
            f"scoring {one.gpus} GPUs"
            + (f", one of {one.scorers} scorers ({one.owned} GPUs)" if one.scorers > 1 else ""),
            f"{one.cpu_seconds / one.owned * 1e6:.0f} µs of CPU per GPU and second ({one.cpu_seconds:.2%} of a core,"
            f" longest decision {one.slowest_decision * 1000:.0f} ms),"
            f" {one.memory_mib:.0f} MiB ({one.memory_mib * 1024 / one.owned:.0f} KiB per GPU),"
            f" in {one.messages_in:.0f} messages/s, {one.bytes_in / one.owned:.0f} B/s per GPU,"
            f" out {one.messages_out:.2f} messages/s, {one.bytes_out / one.owned:.1f} B/s per GPU,"
            f" rows {one.rows:.2f}/s ({one.rows / one.owned * 1000:.0f} per 1000 GPUs; {one.rows_first} at first);"
            f" slow ones found: {one.slow_found}",
            "the same per GPU at every size",
        )


if __name__ == "__main__":
    asyncio.run(measure(Path(), Figures(), int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
