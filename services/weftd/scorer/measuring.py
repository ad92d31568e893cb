"""Reads the results of benchmarks from the store, and submits due benchmarks as any user would.

A benchmark is submitted over `weft.submit` with a token, because a scorer writes no jobs. Without a token none is
submitted; results of benchmarks that users submitted (`weft bench-gpu`) are read all the same.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from weft.bus import BusError
from weft.domain.classes import BENCHMARK_LABEL
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.messages.asks import SubmitAnswered
from weft.messages.signals import NodeSampled
from weft.planning.scores import GpuKey
from weft.samples.benchmark_job import Measured
from weft.service.config import SettingsError
from weft.store import ScorerStore, StoreUnavailableError
from weftd.scorer.settings import ScorerSettings
from weftd.scorer.thinking.benchmarks import Benchmarks, BenchmarkSettings, Wanted

logger = logging.getLogger(__name__)

SUBMIT_SUBJECT = "weft.submit"
KEY = "Idempotency-Key"
SUBMIT_SECONDS_MAX = 5.0
REMEMBERED_SECONDS = 30 * 86400.0  # how far back results are read at the start
OVERLAP_SECONDS = 60.0  # the end of a job may be stored a little after its time
READ_SECONDS = 86400.0  # of the past in one query, so that each query is answered in time


def held_by(jobs: Iterable[Job]) -> frozenset[GpuKey]:
    return frozenset(
        (one.node_id, gpu)
        for job in jobs
        if job.placement is not None
        for one in job.placement.allocations
        for gpu in one.gpus
    )


class Submitter(Protocol):
    """The method of the bus that submitting needs."""

    async def request_raw(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, seconds_max: float
    ) -> bytes: ...


class Measuring:
    """`hear` samples, and take a `turn` every few seconds."""

    def __init__(
        self,
        *,
        bus: Submitter,
        store: ScorerStore,
        token: Callable[[], str] | None,
        settings: ScorerSettings,
    ) -> None:
        """`token` is called each time, so that a renewed token takes effect; it may raise SettingsError."""
        self._bus = bus
        self._store = store
        self._token = token
        self._tenants = settings.benchmark_tenants
        self._read_until: float | None = None  # older results were read
        self._told: set[str] = set()
        self.benchmarks = Benchmarks(
            BenchmarkSettings(
                on=settings.benchmarks == "on" and token is not None,
                image=settings.benchmark_image,
                idle_seconds=settings.benchmark_idle_seconds,
                every_seconds=settings.benchmark_every_seconds,
                seconds=settings.benchmark_seconds,
            ),
            trusted=settings.benchmark_tenants,
        )
        if settings.benchmarks == "on" and token is None:
            logger.warning("GPUs are measured only on request: SCORER_TOKEN_FILE names no file with a token")

    def hear(self, sampled: NodeSampled) -> None:
        for gpu in sampled.gpus:
            self.benchmarks.observe_sample(gpu)

    async def turn(self, nodes: Sequence[Node], jobs: Iterable[Job], *, now: float) -> list[Measured]:
        """Read results and submit benchmarks for these nodes, whose GPUs `jobs` hold; returns the new results.

        While results cannot be read, no benchmark is submitted: a GPU may have been measured already.
        """
        found, all_read = await self._read(now)
        self.benchmarks.observe_nodes(nodes, held_by(jobs), now=now)
        if all_read:
            for wanted in self.benchmarks.due(now):
                await self._submit(wanted, now)
        if self.benchmarks.settings.on and self.benchmarks.without_image:
            self._tell("nodes that run containers are not measured: SCORER_BENCHMARK_IMAGE names no image")
        return found

    async def _read(self, now: float) -> tuple[list[Measured], bool]:
        """The results since the last one read, and a little before; whether all could be read.

        The same result twice counts once. A failed query is repeated in the next turn; results read before it count.
        """
        if not self._tenants:
            return [], True
        found: list[Measured] = []
        while True:
            since = now - REMEMBERED_SECONDS if self._read_until is None else self._read_until - OVERLAP_SECONDS
            until = min(since + READ_SECONDS, now + OVERLAP_SECONDS)
            try:
                jobs = await self._store.ended_jobs(
                    tenants=self._tenants, since=since, until=until, label=BENCHMARK_LABEL
                )
            except StoreUnavailableError as error:
                self._tell(f"the results of benchmarks cannot be read, and are read later: {error}")
                return found, False
            found += [result for job in jobs if (result := self.benchmarks.ended(job)) is not None]
            if until >= now:
                self._read_until = now
                return found, True
            self._read_until = until

    async def _submit(self, wanted: Wanted, now: float) -> None:
        """Submit one benchmark; if it is refused or not answered, it is tried again later."""
        assert self._token is not None, "without a token nothing is due"
        try:
            headers = {"Authorization": f"Bearer {self._token()}", KEY: wanted.key}
            answer = await self._bus.request_raw(
                SUBMIT_SUBJECT, msgspec.json.encode(wanted.spec), headers=headers, seconds_max=SUBMIT_SECONDS_MAX
            )
            answered = msgspec.json.decode(answer, type=SubmitAnswered)
            used_up = answered.field == KEY if answered.error else not answered.created
            why = answered.error
        except (BusError, SettingsError, msgspec.DecodeError) as error:
            why, used_up = str(error), False
        if used_up:
            self.benchmarks.used_up(wanted)
        elif why:
            self._tell(f"a benchmark is not submitted, and tried again later: {why}")
            self.benchmarks.refused(wanted, now=now)
        else:
            logger.info("%s is to be measured (%s)", wanted.spec.name, wanted.cause)
            self.benchmarks.asked(wanted, now=now)

    def _tell(self, line: str) -> None:
        """Log this once."""
        if line not in self._told and len(self._told) < 100:
            self._told.add(line)
            logger.warning("%s", line)
