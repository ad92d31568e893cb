"""Loans: a running service that wants more replicas than the free room holds takes what training can spare.

`weft.planning.lending` decides which ranks and jobs give way, and when replicas join. docs/serving.md describes how a
loan works.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, Step
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow
from weft.domain.text import gpu_text, listed
from weft.planning import lending
from weft.planning.borrowing import loans_text
from weft.planning.lending import Back, GivesWay, KeepsGpu, Lent, LetsGpuGo
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.decide.placing import following
from weftd.scheduler.thinking.state.cluster import PoolNow
from weftd.scheduler.thinking.state.cluster_state import ClusterState

_E, _C = JobEvent, CauseCode


class Loans:
    """`stop_seconds`: how long nodes may take to stop a rank, besides its grace."""

    def __init__(self, cluster_state: ClusterState, *, stop_seconds: float) -> None:
        self._cluster_state = cluster_state
        self._cluster = PoolNow(cluster_state, ())
        self._loans = lending.Loans(self._cluster, stop_seconds=stop_seconds)

    def arrive(self, now: float) -> list[Step]:
        """Replicas join where those that had to leave are gone."""
        self._cluster.now = now
        return self._taken(self._loans.arrive(now), now)

    def decide(self, now: float, *, short: Mapping[str, int], closed: Sequence[str], ahead: str) -> list[Step]:
        """The steps of those that give way to services. `short`: by service, how many of the replicas that it should
        have found no place. `closed` nodes are kept, or cleared, for a waiting job; `ahead`: a job that waits for room,
        before which services of a lower priority take nothing."""
        self._cluster.now = now
        return self._taken(self._loans.decide(now, short=short, closed=closed, ahead=ahead), now)

    def _taken(self, changes: Iterator[lending.Change], now: float) -> list[Step]:
        steps: list[Step] = []
        for change in changes:
            match change:
                case Lent():
                    steps += self._join(change, now)
                case GivesWay():
                    steps += self._give_way(change, now)
                case KeepsGpu():
                    self._cluster_state.pool.keep_place(change.name, (change.part,))
                case LetsGpuGo():
                    self._cluster_state.pool.let_place_go(change.name)
                case Back():
                    self._cluster_state.freed_holds.keep([change.place], now)
        return steps

    def _join(self, change: Lent, now: float) -> list[Step]:
        job = self._cluster_state.jobs[change.job_id]
        placement = lifecycle.joined(self._cluster_state, job, change.places)
        lent = lending.loans_of(change, placement.allocations[-len(change.places) :], now)
        after = structs.replace(job, placement=placement).granted
        changes = ", ".join(f"{role} {job.granted[role]} → {count}" for role, count in after.items())
        borrows = f", and borrows {loans_text(lent)}" if lent else ""
        numbers = {role: float(count) for role, count in after.items()} | {"gpus_borrowed": sum(x.gpus for x in lent)}
        cause = Cause(code=_C.GREW, sentence=f"{changes}{borrows}", numbers=numbers)
        loans = (*self._cluster_state.owed(job, placement), *lent)
        return self._cluster_state.go(job, _E.RESIZED, cause, now, placement=placement, loans=loans)

    def _give_way(self, change: GivesWay, now: float) -> list[Step]:
        jobs = self._cluster_state.jobs
        lender, services = jobs[change.job_id], {job_id: jobs[job_id].name for job_id, _ in change.victims}
        ranks = [one for _, victim in change.victims for one in victim.allocations]
        gpus = lender.gpus_held if change.whole else float(sum(len(one.gpus) for one in ranks))
        names = listed([f"{name} ({job_id})" for job_id, name in services.items()])
        sentence = f"lends {gpu_text(gpus)} to {names}, which needs more GPUs than are free"
        cause = Cause(code=_C.LENT, sentence=sentence, by=next(iter(services)), numbers={"gpus": gpus})
        if change.whole:
            return lifecycle.stop(self._cluster_state, lender, cause, now)
        if how_resized(lender.spec) is ResizeHow.LIVE:
            return lifecycle.give_up_ranks(self._cluster_state, lender, ranks, cause, now)
        return self._shrink_by_restart(lender, ranks, cause, now)

    def _shrink_by_restart(self, lender: Job, ranks: Sequence[Allocation], cause: Cause, now: float) -> list[Step]:
        """Stop the job, start it without the ranks, and let it grow back to its present size."""
        steps: list[Step] = []
        if not lender.size:
            grows_back = structs.replace(cause, sentence=f"{cause.sentence}, and grows back")
            steps = self._cluster_state.go(lender, _E.SCALED, grows_back, now, size=lender.wanted)
            lender = self._cluster_state.jobs[lender.id]
        assert lender.placement is not None
        gone = {one.rank for one in ranks}
        stay = [one for one in lender.placement.allocations if one.rank not in gone]
        return steps + lifecycle.stop(
            self._cluster_state, lender, cause, now, next_placement=following(self._cluster_state, lender, stay)
        )


def pays_back(job: Job, gone: Iterable[Allocation], cause: Cause) -> Cause:
    """The cause with which replicas leave, if they give back what others lent."""
    ranks = {one.rank for one in gone}
    paid = [loan for loan in job.loans if loan.rank in ranks]
    if not paid:
        return cause
    sentence = f"{cause.sentence}, and gives back {loans_text(paid)}"
    return structs.replace(cause, code=_C.PAID_BACK, sentence=sentence, by=paid[0].lender)
