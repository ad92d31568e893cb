"""Refreshes what the core knows of scores, classes, slowdowns, penalties, models and quotas, from messages and from the
store."""

from collections.abc import Sequence

from weft.domain.quotas import Quota
from weft.messages.signals import GpuScore, WorkloadClass
from weft.store import SchedulerStore
from weft.variability.models import RATIOS_MAX, WorkloadRatios, ratios_of
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.record.history import Journal

SCORES_SECONDS = 30.0  # between two reads of scores whose message did not arrive
QUOTAS_SECONDS = 1.0  # between two reads of quotas
SCORES_SLACK_SECONDS = 300.0  # the clocks of scorers may differ from ours by this much


class Refresher:
    """`told_scores` and `told_classes` came by messages, and are taken in with the next call of `scores`. `joined`:
    nodes whose scores were not read yet."""

    def __init__(self, *, core: Scheduler, journal: Journal, store: SchedulerStore, obeys_quotas: bool) -> None:
        self._core = core
        self._journal = journal
        self._store = store
        self._obeys_quotas = obeys_quotas
        self._known_quotas: list[Quota] = []
        self._quotas_at = 0.0
        self._scores_at = 0.0
        self.told_scores: list[GpuScore] = []
        self.told_classes: list[WorkloadClass] = []
        self.joined: set[str] = set()

    def loaded(self, quotas: list[Quota], now: float) -> None:
        """Everything was just read from the store."""
        self._scores_at = self._quotas_at = now
        self._known_quotas = quotas
        self.joined.clear()

    async def scores(self, now: float) -> None:
        """Take in scores and classes from messages and the store: a message may come before its node, or never."""
        told, self.told_scores = self.told_scores, []
        if told:
            self._journal.rescore(told)
        classes, self.told_classes = self.told_classes, []
        self._learn(classes, now)
        if not self.joined and now < self._scores_at + SCORES_SECONDS:
            return
        since, joined = self._scores_at - SCORES_SLACK_SECONDS, sorted(self.joined)
        found = await self._store.scores(pool=self._core.pool, since=since, nodes=joined)
        self._learn(await self._store.classes(pool=self._core.pool, since=since), now)
        slowdowns, cache = await self._store.slowdowns(), self._core.cluster_state.score_cache
        if cache.is_slowed_anew(slowdowns):
            self._journal.slow(slowdowns)
        penalties = await self._store.penalties(pool=self._core.pool, since=since)
        if news := [one for one in penalties if cache.is_penalty_news(one)]:
            self._journal.learn_penalties(news)
        if new_ratios := [one for one in await self.ratios(since=since) if cache.is_ratio_news(one)]:
            self._journal.learn_ratios(new_ratios)
        self._scores_at = now
        self.joined.clear()
        if new := [score for score in found if self._core.cluster_state.score_cache.is_news(score)]:
            self._journal.rescore(new)

    async def ratios(self, *, since: float = 0.0) -> list[WorkloadRatios]:
        """The ratios between models of GPUs that workloads have shown, the newest last."""
        return ratios_of(await self._store.curves_of_models(pool=self._core.pool, since=since, limit=RATIOS_MAX))

    async def read_quotas(self) -> list[Quota]:
        return await self._store.quotas(pool=self._core.pool) if self._obeys_quotas else []

    async def quotas(self, now: float) -> None:
        """Take in what an administrator changed."""
        if now < self._quotas_at + QUOTAS_SECONDS:
            return
        quotas, self._quotas_at = await self.read_quotas(), now
        if quotas != self._known_quotas:
            self._known_quotas = quotas
            self._journal.limit(quotas, now)

    def _learn(self, classes: Sequence[WorkloadClass], now: float) -> None:
        if new := [one for one in classes if self._core.cluster_state.score_cache.is_learnt_anew(one)]:
            self._journal.learn(new, now)
