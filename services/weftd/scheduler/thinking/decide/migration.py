"""Moves of running jobs to better GPUs: a job is stopped, requeued for a moment, then placed on GPUs kept for it.

`weft.planning.moves` decides which jobs move, and where to.
docs/decisions/0008-how-a-running-job-moves.md describes how a move works.
"""

from collections.abc import Mapping, Sequence

from weft.domain.job import Cause, CauseCode, Step
from weft.domain.quantity import duration_text
from weft.planning.moves import Arrives, MoveRules, Moves, Target
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.decide.placing import place
from weftd.scheduler.thinking.state.cluster import PoolNow
from weftd.scheduler.thinking.state.cluster_state import ClusterState


class Migration:
    def __init__(self, cluster_state: ClusterState, rules: MoveRules) -> None:
        self._cluster_state = cluster_state
        self._cluster = PoolNow(cluster_state, ())
        self._moves = Moves(self._cluster, cluster_state.policy, rules)

    @property
    def targets(self) -> Mapping[str, Target]:
        return self._moves.targets

    def arrive(self, now: float) -> list[Step]:
        """Place requeued jobs on the GPUs kept for them; release GPUs that were kept for too long."""
        steps: list[Step] = []
        for change in self._moves.arrive(now):
            if isinstance(change, Arrives):
                target, job = change.target, self._cluster_state.jobs[change.target.job_id]
                steps += place(self._cluster_state, job, target.place, now, moved_for=_sentence(target))
            else:
                self._cluster_state.pool.let_place_go(change.job_id)
        return steps

    def waits(self, job_id: str) -> Cause | None:
        """Why a queued job that moves waits: its new place is not free yet. None if the job does not move."""
        target = self.targets.get(job_id)
        if target is None:
            return None
        return Cause(code=CauseCode.MOVED, sentence=f"waits for its new place on {_nodes(target)} to be free")

    def decide(self, now: float, *, closed: Sequence[str]) -> list[Step]:
        """The steps of jobs that move. `closed` nodes are kept for a waiting job."""
        self._cluster.now = now
        steps: list[Step] = []
        for targets in self._moves.decide(now, closed=closed):
            for target in targets:
                self._cluster_state.pool.keep_place(target.job_id, target.place)
            for target in targets:
                job = self._cluster_state.jobs[target.job_id]
                steps += lifecycle.stop(self._cluster_state, job, _cause(target), now)
        return steps


def _cause(target: Target) -> Cause:
    numbers = {
        "slowdown_before": target.slowdown_before,
        "slowdown_after": target.slowdown_after,
        "saves_seconds": target.saves_s,
        "cost_seconds": target.cost_s,
    }
    return Cause(code=CauseCode.MOVED, sentence=_sentence(target), by=target.for_whom, numbers=numbers)


def _sentence(target: Target) -> str:
    if target.saves_s > 0:
        slowdowns = f"{target.slowdown_before:.2f} → {target.slowdown_after:.2f}"
        saves, cost = duration_text(target.saves_s), duration_text(target.cost_s)
        why = f"slowdown {slowdowns} saves about {saves} for {cost}"
    else:
        why = f"makes room for {target.for_whom}, whose gain is more than both moves cost"
    return f"moved to {_nodes(target)}: {why}"


def _nodes(target: Target) -> str:
    return ", ".join(sorted({allocation.node_id for allocation in target.place}))
