"""Jobs left out of every decision for a while, because a decision about them ended in an exception.

A reallocator that ended with it would end again with each beat, and nobody's job would be tuned or scaled any more.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable

from prometheus_client import CollectorRegistry, Counter

from libs.bus import BusError
from libs.domain.blame import in_words, jobs_blamed
from libs.domain.job import Job
from libs.store import StoreError

logger = logging.getLogger(__name__)

ASIDE_SECONDS = 600.0
DECIDING = ("services.reallocator.thinking.", "libs.planning.", "libs.serving.", "libs.tuning.")  # modules


class Aside:
    def __init__(self, *, clock: Callable[[], float], registry: CollectorRegistry) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._mistakes = Counter(
            "weft_reallocator_mistakes",
            "How often a decision about a job ended with an exception; the log has it.",
            registry=registry,
        )

    def without(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs about which decisions are made."""
        now = self._clock()
        return [job for job in jobs if self._until.get(job.id, now) <= now]

    async def done(self, beat: Callable[[], Awaitable[None]]) -> bool:
        """Call `beat`. False: it ended in an exception that is about a job, which is left out from now on. Any other
        exception is raised."""
        try:
            await beat()
            return True
        except (StoreError, BusError):
            raise
        except Exception as error:
            blamed = jobs_blamed(error, DECIDING)
            if not blamed:
                raise
            now = self._clock()
            self._until = {job_id: until for job_id, until in self._until.items() if until > now}
            self._until[blamed[0]] = now + ASIDE_SECONDS
            self._mistakes.inc()
            logger.critical("a decision failed", extra={"job": blamed[0], "why": in_words(error)}, exc_info=error)
            return False
