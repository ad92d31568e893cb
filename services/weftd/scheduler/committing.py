"""Stores what one cycle of the scheduler decided: its steps in one statement, its nodes, and the record of both."""

import asyncio
import logging
from collections.abc import Sequence

from weft.bus import Bus
from weft.domain.job import JobChange, JobEvent, Step
from weft.domain.lease import Lease
from weft.messages.asks import OutboxFilled
from weft.messages.history import Record
from weft.store import SchedulerStore, UnlawfulError
from weftd.scheduler.counters import Counters
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.record.history import Journal
from weftd.scheduler.thinking.state.pool import NodeChange

logger = logging.getLogger(__name__)

TOUCH_SECONDS = 10.0
STEPS_IN_ONE_COMMIT = 1000


class WrongStateError(Exception):
    """The store refused a decision of the core: the core must load again."""


class Committer:
    """`load_number`: the number of the latest load, as the store counts loads. `outbox_filled` is set when there is an
    event to be published."""

    def __init__(
        self,
        *,
        core: Scheduler,
        journal: Journal,
        store: SchedulerStore,
        bus: Bus,
        counters: Counters,
        outbox_filled: asyncio.Event,
    ) -> None:
        self._core = core
        self._journal = journal
        self._store = store
        self._bus = bus
        self._counters = counters
        self._outbox_filled = outbox_filled
        self._refused: set[str] = set()  # jobs with a step that the store refused in this cycle
        self._touched_at = 0.0
        self.load_number = 0

    async def commit(self, lease: Lease, steps: Sequence[Step], changes: Sequence[NodeChange], now: float) -> None:
        self._refused.clear()
        record = await self._record() if steps or changes or self._journal.due(now) else None
        if record is not None and (changes or not steps):
            await self._store.record(lease, record)
            self._recorded(record)
            record = None
        for change in changes:
            await self._save_node(lease, change)
        for begin in range(0, len(steps), STEPS_IN_ONE_COMMIT):
            part = [step for step in steps[begin : begin + STEPS_IN_ONE_COMMIT] if step.job_id not in self._refused]
            taken = await self._take(lease, part, record, now)
            record = None
            refused = [step for step, was_taken in zip(part, taken, strict=True) if not was_taken]
            if refused:
                first = refused[0]
                raise WrongStateError(f"{len(refused)} steps were refused, first {first.event} of {first.job_id}")
        if steps:
            self._counters.count(steps)
            self._outbox_filled.set()
            await self._bus.publish(OutboxFilled())
        for step in steps:
            if step.event is not JobEvent.WAITING:
                logger.info(step.event, extra={"job": step.job_id, "epoch": step.epoch, "why": step.cause.sentence})
        if now >= self._touched_at + TOUCH_SECONDS:
            self._touched_at = now
            recent = [
                node_id for node_id, at in self._core.cluster_state.pool.heard.items() if at > now - TOUCH_SECONDS
            ]
            await self._store.touch_nodes(lease, recent, at=now)

    async def _take(self, lease: Lease, steps: Sequence[Step], record: Record | None, now: float) -> list[bool]:
        """Store steps together; if the store finds one unlawful, each by itself, so that it harms no other job."""
        try:
            taken = await self._store.take(lease, self._changes(steps), record=record)
        except UnlawfulError:
            if record is not None:  # the record was not stored either; alone it harms nothing
                await self._store.record(lease, record)
                self._recorded(record)
            return [await self._take_alone(lease, step, now) for step in steps]
        if record is not None:
            self._recorded(record)
        return taken

    async def _take_alone(self, lease: Lease, step: Step, now: float) -> bool:
        """Store one step. If it is unlawful by itself, its job is at fault: another step of that job replaces it."""
        if step.job_id in self._refused:
            return True  # this step was decided on top of a refused step, and falls with it
        try:
            return (await self._store.take(lease, self._changes([step])))[0]
        except UnlawfulError as error:
            logger.critical(
                "a step is not allowed", extra={"job": step.job_id, "step": step.event, "error": str(error)}
            )
        self._refused.add(step.job_id)
        instead = self._journal.not_stored(step, now)
        record = await self._record()
        try:
            taken = await self._store.take(lease, self._changes(instead), record=record) if instead else []
        except UnlawfulError as error:
            logger.critical("its replacement is not allowed either", extra={"job": step.job_id, "error": str(error)})
            return False
        if not instead:
            await self._store.record(lease, record)
            await self._store.drop_asks(lease, [step.ask])
        self._recorded(record)
        return all(taken)

    def _changes(self, steps: Sequence[Step]) -> list[JobChange]:
        return [self._core.cluster_state.change_of(step) for step in steps]

    async def _save_node(self, lease: Lease, change: NodeChange) -> None:
        """Store a node. A node that the store refuses runs on without a row there; other nodes are not affected."""
        try:
            if change.event == "removed":
                await self._store.remove_node(
                    lease, change.node.id, cause=change.sentence, at=change.at, load=self.load_number
                )
            else:
                await self._store.save_node(
                    lease,
                    change.node,
                    event=change.event,
                    cause=change.sentence,
                    at=change.at,
                    ask=change.ask,
                    load=self.load_number,
                )
        except UnlawfulError as error:
            logger.critical("a change of a node is not allowed", extra={"node": change.node.id, "error": str(error)})
            return
        logger.info("node", extra={"node": change.node.id, "event": change.event, "why": change.sentence})
        self._outbox_filled.set()

    async def _record(self) -> Record:
        draft = self._journal.draft()
        return await asyncio.to_thread(draft.encoded) if draft.large else draft.encoded()

    def _recorded(self, record: Record) -> None:
        self._journal.stored(record)
        self._counters.recorded(record)
