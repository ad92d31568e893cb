"""The scheduler loop: takes in reports and asks, has them decided on together, and sends steps, answers and hints.

One cycle: gather the input → decide → commit all steps in one statement → answer. A decision is sent out only after it
is stored; if storing fails, nothing is sent, and the core's cluster state is loaded again from the store. The journal
stands between the loop and its core: the input of the core is stored with the first of the steps that follow from it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import structs

from weft.bus import Bus
from weft.domain.job import Job, Step
from weft.domain.lease import Lease
from weft.messages.asks import Ask, AskKind
from weft.messages.nodes import Leader, NodeDesired, NodeHinted, NodeReported
from weft.messages.signals import ClassesLearnt, GpusScored
from weft.store import (
    ASKS_BYTES_MAX,
    DoubleAllocationError,
    LeaseLostError,
    LoadedSinceError,
    RecordsLostError,
    SchedulerStore,
    StoreUnavailableError,
)
from weftd.scheduler.committing import Committer, WrongStateError
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.refreshing import Refresher
from weftd.scheduler.store_outage import StoreOutage
from weftd.scheduler.thinking.answers import Answers
from weftd.scheduler.thinking.batch_size import BatchSize
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.record.history import HistoryRetention, Journal, JournalPace
from weftd.scheduler.thinking.record.poison_messages import PoisonMessages, set_aside

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
ANSWER_SECONDS_MAX = 2.5  # a node waits 3 s; a call of the store fails after about 5
CLAIM_SECONDS_MAX = 2.0
INTAKE_SECONDS = 0.03  # in one cycle, for each of the two:
ADMITTED_LEAST, ADMITTED_MAX = 50, 500  # submissions
ASKS_LEAST, ASKS_MAX = 25, 100  # other asks
ASKED_AGAIN = frozenset({AskKind.CANCEL, AskKind.REQUEUE, AskKind.PRIORITISE})
"""Of these one cycle takes several about one job, one on top of the other."""


_WRONG_PICTURE = (LeaseLostError, LoadedSinceError, RecordsLostError, DoubleAllocationError, WrongStateError)


class _Waiting:
    """A report whose node waits for its answer. The core gets the report without `holds`, which affects only the form
    of the answer. There its `leader` is None unless this leader answered the node last, and then always the same."""

    __slots__ = ("answer", "holds", "leader", "report")

    def __init__(self, report: NodeReported) -> None:
        self.report = structs.replace(report, leader=None, holds="")
        self.leader = report.leader
        self.holds = report.holds
        self.answer: asyncio.Future[NodeDesired | None] = asyncio.get_running_loop().create_future()

    def settle(self, answer: NodeDesired | None) -> None:
        """Set the answer. Only the first counts; a later one has no waiting node."""
        if not self.answer.done():
            self.answer.set_result(answer)


class SchedulerLoop:
    def __init__(
        self,
        *,
        core: Scheduler,
        store: SchedulerStore,
        bus: Bus,
        leadership: Leadership,
        clock: Callable[[], float],
        counters: Counters,
        retention: HistoryRetention | None = None,
        pace: JournalPace | None = None,
        obeys_quotas: bool = True,
        outbox_filled: asyncio.Event | None = None,
    ) -> None:
        """`outbox_filled` is set when there is an event to be published."""
        self.core = core
        self._journal = Journal(core, pace=pace)
        self.wake = asyncio.Event()
        self.outbox_filled = outbox_filled or asyncio.Event()
        self._committer = Committer(
            core=core, journal=self._journal, store=store, bus=bus, counters=counters, outbox_filled=self.outbox_filled
        )
        self._refresher = Refresher(core=core, journal=self._journal, store=store, obeys_quotas=obeys_quotas)
        self._store = store
        self._bus = bus
        self._leadership = leadership
        self._clock = clock
        self._counters = counters
        self.retention = retention or HistoryRetention()
        self._poison_messages = PoisonMessages()
        self._answers = Answers()
        self._store_outage = StoreOutage(pool=core.pool, store=store, clock=clock)
        self._loaded_for = 0
        self._went_back_at: float | None = None  # when we found that the store went back, until that is settled
        self._reports: list[_Waiting] = []
        self._admits = BatchSize(seconds=INTAKE_SECONDS, least=ADMITTED_LEAST, most=ADMITTED_MAX)
        self._does = BatchSize(seconds=INTAKE_SECONDS, least=ASKS_LEAST, most=ASKS_MAX)
        self._done = 0  # asks that this cycle took in
        self._asks_from = 0.0  # no asks but submissions are taken in before
        self._took_in = False  # did this cycle take in asks or submissions?
        self._asked = True
        self._polled_at = 0.0
        self._why_not_hold: str | None = None  # None: the store answers

    # input

    def asked(self) -> None:
        self._asked = True
        self.wake.set()

    def scored(self, scored: GpusScored) -> None:
        """Keep new scores for the next cycle: in the middle of one, the decisions that they affect would be unknown."""
        if self._leadership.lease is not None:
            self._refresher.told_scores += scored.scores

    def learnt(self, learnt: ClassesLearnt) -> None:
        if self._leadership.lease is not None:
            self._refresher.told_classes += learnt.classes

    async def report(self, report: NodeReported) -> NodeDesired | None:
        """Answer a node's report; None leaves the answer to the leader."""
        if report.pool != self.core.pool:
            return None
        if self._leadership.lease is None:
            if self._leadership.abandoned:
                return await self._store_outage.answer(report)
            return self._hold(report, report.leader)
        waiting = _Waiting(report)
        self._reports.append(waiting)
        self.wake.set()
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await waiting.answer
        except TimeoutError:  # the current cycle waits for a store that does not answer
            return self._hold(report, report.leader)

    def _hold(self, report: NodeReported, answered_by: Leader | None) -> NodeDesired | None:
        """The answer while the store is away: hold the last answer, if it is certain that no other leader acts.

        A node that another leader, or none, answered last gets no answer: its runs are not ours to decide.
        """
        us = self._leadership.leader
        if us is None or _if_us(answered_by, us) is None:
            return None
        why_not = self._leadership.why_not_hold
        if why_not != self._why_not_hold:
            self._why_not_hold = why_not
            how = f"the nodes are left to their fences: {why_not}" if why_not else "the nodes keep their runs"
            logger.warning("the store does not answer; %s", how, extra={"pool": self.core.pool})
        self._counters.hold(self.core.pool, holds=not why_not)
        return None if why_not else NodeDesired(seq=report.seq, leader=us, hold=True)

    # one cycle

    async def cycle(self) -> None:
        """Take in the input, decide, store, answer. Does nothing while another scheduler leads."""
        self.wake.clear()
        self._took_in = False
        waiting = [one for one in self._reports if not one.answer.done()]
        self._reports = []
        try:
            lease = self._leadership.lease
            if lease is not None:
                await self._lead(lease, waiting)
        except _WRONG_PICTURE as error:
            logger.warning("the cluster state was wrong and is loaded again", extra={"error": str(error)})
            self._loaded_for = 0
            if isinstance(error, LeaseLostError):
                self._leadership.lost()
        except StoreUnavailableError:
            self._loaded_for = 0
            if self._took_in:  # it may be too much for one statement: the next cycle takes in less
                self._admits.failed()
                self._does.failed()
            for one in waiting:
                one.settle(self._hold(one.report, one.leader))
            raise
        except Exception as error:
            blamed = self._poison_messages.blame(error, self._clock())
            if not blamed:
                raise
            logger.critical("a decision failed", extra={"pool": self.core.pool, "about": blamed}, exc_info=error)
            self._counters.mistake()
            self._loaded_for = 0
        finally:
            for one in waiting:
                one.settle(None)

    async def _lead(self, lease: Lease, waiting: Sequence[_Waiting]) -> None:
        if self._loaded_for != lease.epoch:
            await self._leadership.beat()  # a store that was away may have come back from an older backup
            lease = self._leadership.require()
        lease = await self._mind_the_past(lease, waiting)
        if self._loaded_for != lease.epoch:
            await self._load(lease)
        now = round(self._clock(), 6)  # the precision of stored times: a time that is due now stays due when read back
        self._journal.begin(now)
        steps: list[Step] = []
        began = self._clock()
        steps += await self._take_in_asks(lease, now)
        intake_seconds = self._clock() - began
        if wanted := self.core.cluster_state.holds.wanted(now):
            self._journal.tell_ends(await self._store.ends_of(wanted), now)
        await self._refresher.scores(now)
        await self._refresher.quotas(now)
        answers = self._take_in_reports(waiting, steps, now)
        with self._counters.deciding():
            decided, changes = self._journal.decide(now)
        steps += decided
        began = self._clock()
        await self._committer.commit(lease, steps, changes, now)
        self._does.took(intake_seconds + self._clock() - began, self._done)
        if self._done:
            self._asks_from = self._clock() + self._does.pause
        if self._took_in:
            self._does.stored()
            self._admits.stored()
        self._refresher.joined.update(change.node.id for change in changes if change.event == "joined")
        self._leadership.require()
        if now >= self._leadership.held_until or not self.core.unfollowing:
            self._leadership.alone()
        if self._why_not_hold is not None:
            self._why_not_hold = None
            self._counters.hold(self.core.pool, holds=False)
            logger.info("the store answers again", extra={"pool": self.core.pool})
        for one in answers:
            orders = self._journal.answer(one.report.node_id)
            report = structs.replace(one.report, holds=one.holds)
            leader, strict = self._leadership.leader, self.core.settings.shares_strict
            one.settle(self._answers.answer(report, orders, leader=leader, strict=strict))
        for node_id in sorted(self.core.take_hinted()):
            await self._bus.publish(NodeHinted(node_id=node_id))
        if len(steps) >= self.core.settings.steps_max or self.core.unfinished:
            self.wake.set()  # there is more to decide
        for notice in self.core.node_failures.take_notices():
            logger.warning(notice, extra={"pool": self.core.pool})
        self._counters.show(self.core)

    async def _mind_the_past(self, lease: Lease, waiting: Sequence[_Waiting]) -> Lease:
        """If the store went back in time, lead above the lost epochs, and wait until no run of the lost time lives."""
        for one in waiting:
            self._leadership.hear(one.leader, of=one.report.node_id)
        if self._leadership.store_went_back:
            lease = await self._leadership.overtake()
            self._went_back_at = None
            self._counters.store_went_back()
        if not lease.went_back:
            self._went_back_at = None
        elif self._went_back_at is None:
            self._went_back_at = self._clock()
        elif self._clock() >= self._went_back_at + self.core.settings.lease_seconds:
            await self._leadership.settle()
            # The stream dropped new events with the id of an event of the lost time as duplicates.
            await self._store.resend(since=self._went_back_at - self.core.settings.lease_seconds)
            self.outbox_filled.set()
            self._went_back_at = None
        return lease

    async def trim(self) -> None:
        """Delete the part of the history beyond its retention, by age or size."""
        lease = self._leadership.lease
        if lease is not None:
            at = self._clock() - self.retention.seconds
            trimmed = await self._store.trim_history(lease, before=at, bytes_max=self.retention.bytes)
            if trimmed:
                logger.info("history trimmed", extra={"pool": self.core.pool, "records": trimmed})

    async def _load(self, lease: Lease) -> None:
        pool = self.core.pool
        await self._leadership.claim(seconds_max=CLAIM_SECONDS_MAX)
        self._committer.load_number = await self._store.lead_by(
            lease,
            str(self.core.settings.policy),
            preemption_after=self.core.settings.preemption_after_seconds,
            spares=self.core.settings.spares,
        )
        slowdowns = await self._store.slowdowns()
        penalties, ratios = await self._store.penalties(pool=pool), await self._refresher.ratios()
        nodes, jobs, scores, classes, quotas = await asyncio.gather(
            self._store.nodes(pool=pool),
            self._store.open_jobs(pool=pool),
            self._store.scores(pool=pool),
            self._store.classes(pool=pool),
            self._refresher.read_quotas(),
        )
        jobs = await self._set_aside(lease, jobs)
        used: dict[str, float] = {}
        if self.core.settings.policy.ordering.by_use:
            half_life = self.core.settings.half_life_seconds
            used = await self._store.decayed_use(pool=pool, at=self._clock(), half_life=half_life)
        self._journal.load(
            jobs=jobs,
            nodes=nodes,
            scores=scores,
            classes=classes,
            slowdowns=slowdowns,
            penalties=penalties,
            ratios=ratios,
            quotas=quotas,
            used=used,
            now=self._clock(),
            epoch=lease.epoch,
            went_back_at=self._went_back_at,
            held_until=self._leadership.held_until,
        )
        self._loaded_for = lease.epoch
        self._answers.forget()
        self._asked = True
        self._refresher.loaded(quotas, self._clock())
        logger.info("loaded", extra={"pool": pool, "jobs": len(jobs), "nodes": len(nodes)})

    async def _set_aside(self, lease: Lease, jobs: Sequence[Job]) -> list[Job]:
        """Stop the jobs that the core fails to decide about, or let them fail; returns the jobs that are open then."""
        open_jobs: list[Job] = []
        for job in jobs:
            if (why := self._poison_messages.of_job(job.id)) is not None:
                change = set_aside(job, why, round(self._clock(), 6))
                if not all(await self._store.take(lease, [change])):
                    raise WrongStateError(f"{job.id} has changed since it was loaded")
                self._poison_messages.forgive(job.id)
                self._counters.count([change.step])
                self.outbox_filled.set()
                job = change.after
            if not job.state.final:
                open_jobs.append(job)
        return open_jobs

    async def _take_in_asks(self, lease: Lease, now: float) -> list[Step]:
        self._done = 0
        if not self._asked and now < self._polled_at + POLL_SECONDS:
            return []
        self._asked, self._polled_at = False, now
        await self._admit(lease)
        steps: list[Step] = []
        if (pause := self._asks_from - now) > 0:
            self._asked = True
            asyncio.get_running_loop().call_later(pause, self.wake.set)
            return steps
        done: list[int] = []
        decided: set[str] = set()
        limit, bytes_max = self._does.limit, int(ASKS_BYTES_MAX * self._does.part)
        asks = await self._store.asks(pool=self.core.pool, limit=limit, bytes_max=bytes_max)
        self._done = len(asks)
        self._took_in |= bool(asks)
        ended = await self._ended(asks)
        jobs = self.core.cluster_state.jobs
        for ask in asks:
            if self._poison_messages.drops(ask):
                done.append(ask.id)
                continue
            if ask.subject_id in decided and (ask.subject_id not in jobs or ask.kind not in ASKED_AGAIN):
                self.asked()  # the decision on this subject is not stored yet, so the store has an old state of it
                continue
            decided.add(ask.subject_id)
            job = None
            if _is_of_a_job(ask) and ask.subject_id not in jobs:
                job = ended.get(ask.subject_id)
                if job is not None and not job.state.final:
                    if job.version > 1:
                        raise WrongStateError(f"{job.id} is {job.state} and not known here: another may lead")
                    self.asked()  # the job was submitted a moment ago, and is admitted in the next cycle
                    continue
            changes = self.core.cluster_state.pool.unstored
            made = self._journal.ask(ask, now, job=job)
            steps += made
            if not made and self.core.cluster_state.pool.unstored == changes:
                done.append(ask.id)  # already in the asked state
        if done:
            await self._store.drop_asks(lease, done)
        if len(asks) > 1:  # there may be more: a cycle limits the asks that it takes in, and their bytes
            self.asked()
        return steps

    async def _admit(self, lease: Lease) -> None:
        began = self._clock()
        born = await self._store.admit(
            lease, load=self._committer.load_number, pool=self.core.pool, limit=self._admits.limit
        )
        self._journal.admit(born)
        self._took_in |= bool(born)
        self._admits.took(self._clock() - began, len(born))
        if len(born) > 1:  # there may be more: a cycle limits the jobs and the bytes of specifications that it admits
            self.asked()

    async def _ended(self, asks: Sequence[Ask]) -> dict[str, Job]:
        """The jobs that are asked about and not known to the core: they are over, or not admitted yet."""
        known = self.core.cluster_state.jobs
        unknown = {ask.subject_id: None for ask in asks if _is_of_a_job(ask) and ask.subject_id not in known}
        return {job.id: job for job in await self._store.jobs_of(list(unknown))} if unknown else {}

    def _take_in_reports(self, waiting: Sequence[_Waiting], steps: list[Step], now: float) -> list[_Waiting]:
        """Take in the reports; returns those to answer, the newest of each node."""
        answers: dict[str, _Waiting] = {}
        for one in waiting:
            one.report = structs.replace(one.report, leader=_if_us(one.leader, self._leadership.leader))
            refused = self._poison_messages.refuses(one.report, now) or self._journal.report(one.report, now)
            if refused:
                one.settle(NodeDesired(seq=one.report.seq, refused=refused))
                continue
            steps += self._journal.follow(one.report, now)
            answers[one.report.node_id] = one
        return list(answers.values())


def _is_of_a_job(ask: Ask) -> bool:
    return ask.kind not in (AskKind.DRAIN, AskKind.RESUME, AskKind.RETURN)


def _if_us(heard: Leader | None, us: Leader | None) -> Leader | None:
    """Our name if `heard` is this leader, else None: the same for every report, however often the lease was renewed."""
    if heard is None or us is None or (heard.pool, heard.epoch, heard.holder) != (us.pool, us.epoch, us.holder):
        return None
    return structs.replace(us, seq=0)
