"""The troubles of a simulated cluster: GPUs change their speed, nodes fail; and the samples that measure that."""

from math import inf
from random import Random

from msgspec import structs

from weft.planning.scores import GpuKey
from weft.simulator.event_queue import EventQueue, What
from weft.simulator.lives import Lives
from weft.simulator.model import Cluster, World
from weft.simulator.pool import node_id
from weft.simulator.truth import Truth

DAY_S = 86400.0
AGE_S = 1800.0  # between two looks at the age of scores


class Troubles:
    def __init__(
        self, lives: Lives, truth: Truth, event_queue: EventQueue, *, cluster: Cluster, world: World, dice: Random
    ) -> None:
        self._lives = lives
        self._truth = truth
        self._event_queue = event_queue
        self._cluster = cluster
        self._world = world
        self._dice = dice
        self._aged_at = self._benchmarked_at = -inf

    def begin(self, now: float) -> None:
        world = self._world
        if world.drift_s:
            self._event_queue.add(now + world.drift_s, What.DRIFTS)
        if self._truth.learns or self._truth.learns_penalties:
            self._event_queue.add(now + world.sample_s, What.IS_MEASURED)
        if world.failures_per_node_day:
            for number in range(self._cluster.nodes):
                self._expect_failure(now, number)

    def happens(self, now: float, what: What, node: int) -> bool:
        """Take an event in; whether a new decision is needed."""
        if what is What.DRIFTS:
            self._drift(now)
        elif what is What.IS_MEASURED:
            return self._measure(now)
        elif what is What.FAILS:
            self._fail(now, node)
        else:
            self._lives.free_capacity.reopen([node_id(node)])
            self._lives.running.free += self._gpus_of(node)
            self._expect_failure(now, node)
        return True

    def _expect_failure(self, now: float, node: int) -> None:
        after = self._dice.expovariate(self._world.failures_per_node_day / DAY_S)
        self._event_queue.add(now + after, What.FAILS, node)

    def _fail(self, now: float, node: int) -> None:
        name = node_id(node)
        running = self._lives.running
        for job in [job for job in running.jobs.values() if any(a.node_id == name for a in job.allocations)]:
            job.hardware_failed = True
            self._lives.evict(job, now, stopped=False)
        self._lives.free_capacity.close([name])
        running.free -= self._gpus_of(node)
        self._event_queue.add(now + self._world.repair_s, What.IS_REPAIRED, node)

    def _gpus_of(self, node: int) -> int:
        return len(self._lives.free_capacity.nodes[node_id(node)].gpus.models)

    def _drift(self, now: float) -> None:
        self._truth.drift()
        for name, scores in self._truth.known_after_drift().items():
            self._lives.free_capacity.rescore(name, scores)
        for job in self._lives.running.jobs.values():
            self._lives.drifted(job, now)
        self._event_queue.add(now + self._world.drift_s, What.DRIFTS)

    def _measure(self, now: float) -> bool:
        self._event_queue.add(now + self._world.sample_s, What.IS_MEASURED)
        changed = self._truth.learns and self._measure_gpus(now)
        return (self._truth.learns_penalties and self._measure_gangs(now)) or changed

    def _measure_gangs(self, now: float) -> bool:
        """Take the step times of gangs; returns whether another locality penalty is believed now."""
        free_capacity = self._lives.free_capacity
        penalties = dict(free_capacity.locality.by_workload)
        for job in self._lives.running.jobs.values():
            gpus, spread = len(job.gpus), free_capacity.spread_of(job.allocations)
            if gpus > 1 and not job.model and job.paused_until < now and spread is not None:
                slowest = max(free_capacity.scores.get(job.trace.job_class, gpu) for gpu in job.gpus)
                penalties[job.trace.model] = self._truth.gang(
                    job.trace.model, f"{gpus}", spread=spread, seconds=job.slowdown / slowest, now=now
                )
        if penalties == free_capacity.locality.by_workload:
            return False
        free_capacity.locality = structs.replace(free_capacity.locality, by_workload=penalties)
        return True

    def _measure_gpus(self, now: float) -> bool:
        free_capacity = self._lives.free_capacity
        changed: dict[str, dict[GpuKey, float]] = {}
        for job in self._lives.running.jobs.values():
            if job.paused_until < now:
                found = self._truth.sample(job.trace.job_class, job.gpus, now)
                if found:
                    changed.setdefault(free_capacity.scores.known(job.trace.job_class), {}).update(found)
        if now >= self._benchmarked_at + self._world.benchmark_s:
            self._benchmarked_at = now
            idle = [(node.node.id, gpu) for node in free_capacity.open_nodes for gpu in node.gpus.whole]
            for name in free_capacity.scores.classes:
                changed.setdefault(name, {}).update(self._truth.sample(name, idle, now))
        for name, scores in changed.items():
            free_capacity.rescore(name, scores)
        if now >= self._aged_at + AGE_S:
            self._aged_at = now
            for name, scores in self._truth.aged(now).items():
                free_capacity.rescore(name, scores)
        return bool(changed)
