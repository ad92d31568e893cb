"""Jobs left out of every decision for a while, because a decision about them ended in an exception.

Otherwise the exception would end the reallocator and each of its successors, and no job in the pool would be tuned or
scaled any more.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter

from weft.bus import BusError
from weft.domain.blame import in_words, jobs_blamed
from weft.domain.job import Job
from weft.domain.quantity import duration_text
from weft.messages.signals import Finding
from weft.store import StoreError

logger = logging.getLogger(__name__)

ASIDE_SECONDS = 600.0
DECIDING = ("weftd.reallocator.thinking.", "weft.planning.", "weft.serving.", "weft.tuning.")  # modules


class _LeftOut(NamedTuple):
    until: float
    why: str


class Quarantine:
    def __init__(self, *, clock: Callable[[], float], registry: CollectorRegistry) -> None:
        self._clock = clock
        self._left_out: dict[str, _LeftOut] = {}
        self._mistakes = Counter(
            "weft_reallocator_mistakes",
            "How often a decision about a job ended with an exception; the log has it.",
            registry=registry,
        )

    def without(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs without those left out."""
        left_out = self._now_left_out()
        return [job for job in jobs if job.id not in left_out]

    def findings(self) -> tuple[Finding, ...]:
        """The jobs that are left out, each with the reason."""
        return tuple(
            Finding(
                code="left-out",
                job_id=job_id,
                sentence=(
                    f"{job_id} keeps what it has: a decision about it failed ({one.why}), and it is skipped for"
                    f" {duration_text(ASIDE_SECONDS)}"
                ),
            )
            for job_id, one in self._now_left_out().items()
        )

    def _now_left_out(self) -> "dict[str, _LeftOut]":
        now = self._clock()
        self._left_out = {job_id: one for job_id, one in self._left_out.items() if one.until > now}
        return self._left_out

    async def done(self, beat: Callable[[], Awaitable[None]]) -> bool:
        """Call `beat`. Return False if it ended in an exception about a job, which is left out from now on. Other
        exceptions are raised."""
        try:
            await beat()
            return True
        except (StoreError, BusError):
            raise
        except Exception as error:
            blamed = jobs_blamed(error, DECIDING)
            if not blamed:
                raise
            self._left_out[blamed[0]] = _LeftOut(self._clock() + ASIDE_SECONDS, in_words(error))
            self._mistakes.inc()
            logger.critical("a decision failed", extra={"job": blamed[0], "why": in_words(error)}, exc_info=error)
            return False
