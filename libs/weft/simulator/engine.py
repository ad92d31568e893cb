"""The event-driven simulator: jobs arrive, start, move, are evicted, end; nodes fail; after each event it decides anew.

Order, preemption, backfill, placement and moves are decided by the scheduler's own planning (`deciding.py`). All else
is the world.
"""

from collections.abc import Callable
from math import inf
from random import Random

from weft.planning.locality import Locality
from weft.planning.policy import Policy
from weft.planning.queue import Queue
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.tiers import as_kept
from weft.simulator.deciding import Deciding
from weft.simulator.event_queue import EventQueue, What
from weft.simulator.job import SimulatedJob
from weft.simulator.lives import Lives
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import Outcome
from weft.simulator.pool import node_id, nodes_of, room_of
from weft.simulator.running import Running
from weft.simulator.serving.over_time import ServicesOverTime, Serving
from weft.simulator.sizing import Partitioning, SizesOverTime
from weft.simulator.troubles import Troubles
from weft.simulator.truth import Truth
from weft.simulator.workload import Workload


class Simulation:
    """One simulation; `run` it once."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: Policy,
        world: World,
        *,
        seed: int = 1,
        scores: str = "oracle",
        progress: Callable[[int, int], None] | None = None,
        keep_spells: bool = True,
        partitioning: Partitioning | None = None,
        serving: Serving | None = None,
    ) -> None:
        self._workload = workload
        self._cluster = cluster
        self._policy = policy
        self._world = world
        self._progress = progress
        planned = partitioning is not None
        self._jobs = [SimulatedJob(number, trace, planned=planned) for number, trace in enumerate(workload.jobs)]
        self._event_queue = EventQueue()
        dice = Random(seed)
        truth = Truth(cluster, world, belief=scores, dice=dice)
        quotas = QuotasInForce(world.quotas, {node.id: node for node in nodes_of(cluster)} if world.quotas else {})
        self._lives = Lives(
            free_capacity=room_of(cluster, world, placer=policy.placing.placer, scores=truth.believed),
            queue=Queue(policy.ordering, by_tenant=quotas.on),
            running=Running(
                cluster.gpus,
                policy.ordering,
                durations_known=world.durations_known,
                minimum_run=world.minimum_run,
                quotas=quotas,
                tenants={job.tenant for job in workload.jobs},
            ),
            event_queue=self._event_queue,
            order=policy.ordering,
            world=world,
            truth=truth,
            foreseen=policy.backfill != "none" or world.model_ratios is not None,
            keep_spells=keep_spells,
            quotas=quotas,
            some_live=any(job.live for job in self._jobs),
        )
        self._troubles = Troubles(self._lives, truth, self._event_queue, cluster=cluster, world=world, dice=dice)
        by_id = {job.trace.id: job for job in self._jobs}
        self._partitioning = partitioning
        self._sizing = (
            None
            if partitioning is None
            else SizesOverTime(
                self._lives,
                by_id,
                partitioning=partitioning,
                cluster=cluster,
                policy=policy,
                world=world,
                event_queue=self._event_queue,
            )
        )
        self._deciding = Deciding(
            self._lives,
            by_id,
            cluster=cluster,
            policy=policy,
            world=world,
            sizing=self._sizing,
        )
        self._serving = (
            None
            if serving is None
            else ServicesOverTime(
                serving,
                lives=self._lives,
                event_queue=self._event_queue,
                jobs=by_id,
                sizing=self._sizing,
                preempts=policy.ordering.tier is not None,
                seed=seed,
            )
        )

    @property
    def locality(self) -> Locality:
        """The believed cost of distance."""
        return self._lives.free_capacity.locality

    def run(self) -> Outcome:
        for job in self._jobs:
            self._event_queue.add(job.trace.arrival_s, What.ARRIVES, job.number)
            if (service := job.trace.service) is not None:
                for number, ask in enumerate(service.asks):
                    self._event_queue.add(ask.at_s, What.IS_ASKED, job.number, number)
                self._event_queue.add(job.trace.arrival_s + job.trace.work_s, What.CLOSES, job.number)
        self._troubles.begin(min((job.trace.arrival_s for job in self._jobs), default=0.0))
        if self._serving is not None:
            self._serving.begin()
        due = False
        next_decision = 0.0
        every = self._world.decide_every_s
        while len(self._lives.ended) < len(self._jobs) or (self._serving is not None and self._serving.are_open):
            now = self._event_queue.next_at
            if every and due and now > next_decision:
                now = next_decision
            assert now < inf, "jobs wait, and nothing will ever happen"
            now = max(now, as_kept(now))  # the scheduler decides at such times
            while self._event_queue.next_at <= now:
                due |= self._happens(*self._event_queue.take())
            if not due:
                continue
            if every and now < next_decision:
                continue
            self._lives.running.now = now
            self._deciding.decide(now)
            due = False
            if every:
                next_decision = (now // every + 1) * every
        return self._outcome()

    def _happens(self, now: float, what: What, number: int, version: int) -> bool:
        """Take the next events in; whether a new decision is needed."""
        self._lives.running.now = now
        if what is What.MAY_MOVE:
            return True
        if what in (What.IS_ASKED, What.CLOSES):
            self._ask(self._jobs[number], now, what, version)
            return True
        if what is What.PARTITIONS:
            return self._sizing is not None and self._sizing.due(now)
        if what is What.SERVES:
            return self._serving is not None and self._serving.look(now, number)
        if what is What.FAILS and self._serving is not None:
            self._serving.node_fails(now, node_id(number))
        if what >= What.DRIFTS:
            if what in (What.FAILS, What.IS_REPAIRED):
                self._partition_is_old(now)
            return self._troubles.happens(now, what, number)
        job = self._jobs[number]
        if what is What.ARRIVES:
            self._lives.wait(job, now)
            self._partition_is_old(now)
            return True
        if what is What.MAY_GROW:
            return bool(job.allocations)
        if what is What.RANKS_GONE:
            self._lives.ranks_gone(job, now)
            return True
        if version != job.version:
            return False
        if what is What.ENDS:
            self._lives.end(job, now)
            self._partition_is_old(now)
            if self._progress is not None:
                self._progress(len(self._lives.ended), len(self._jobs))
        elif what is What.CHANGES:
            self._lives.rank(job, now)
        elif what is What.IS_PROMOTED:
            self._lives.promote(job, now)
        elif what is What.IS_GONE:
            self._lives.evict(job, now)
        return True

    def _ask(self, job: SimulatedJob, now: float, what: What, number: int) -> None:
        assert job.trace.service is not None
        if what is What.CLOSES:
            self._lives.close(job, now)
            self._partition_is_old(now)
        else:
            self._lives.ask(job, now, size=job.trace.service.asks[number].size)

    @property
    def _name(self) -> str:
        planner = None if self._partitioning is None else self._partitioning.name
        scaler = None if self._serving is None else self._serving.name
        return "+".join(name for name in (str(self._policy), planner, scaler) if name is not None)

    def _partition_is_old(self, now: float) -> None:
        if self._sizing is not None:
            self._sizing.needed(now)

    def _outcome(self) -> Outcome:
        world = self._world
        return Outcome(
            workload=self._workload.name,
            policy=self._name,
            services=() if self._serving is None else self._serving.outcomes(),
            trajectories=() if self._serving is None else self._serving.trajectories(),
            nodes=self._cluster.nodes,
            gpus_per_node=self._cluster.gpus_per_node,
            jobs=tuple(self._lives.ended[number] for number in range(len(self._jobs))),
            spells=tuple(sorted(self._lives.spells, key=lambda spell: (spell.begin_s, spell.job))),
            settings={"penalty": f"{world.penalty:g}", "move_s": f"{world.move_s:g}"},
            notes=self._workload.notes,
            decisions=self._deciding.decisions,
            placements=self._deciding.placements,
            gpu_nodes=self._cluster.gpu_nodes,
            amounts=self._cluster.amounts,
            partitions=() if self._sizing is None else tuple(self._sizing.planned),
        )
