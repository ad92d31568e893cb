"""A pool left at its defaults, but for shorter windows: what it does for jobs that are real processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from weft.domain.job import CauseCode, JobEvent
from weft.messages.http import EventView
from weft.messages.signals import NOT_TUNED
from weftd.cli.demo import parts
from weftd.cli.demo.checks import of_kind

QUICK = {"REALLOCATOR_WINDOW_SECONDS": "3", "REALLOCATOR_REVIEW_SECONDS": "1"}
SECONDS_MAX = 300.0


async def story_until(cluster: Cluster, job: str, so: Callable[[list[EventView]], bool]) -> list[EventView]:
    """The events of a job once they are so. Raises TimeoutError with the events."""
    story: list[EventView] = []
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while not so(story := await cluster.client.story(job)):  # noqa: ASYNC110 -- bounded
                await asyncio.sleep(0.5)
    except TimeoutError as error:
        raise TimeoutError(f"{[(event.type, event.data.cause) for event in story]}") from error
    return story


def causes(story: list[EventView], kind: JobEvent) -> list[CauseCode]:
    return [event.data.cause.code for event in of_kind(story, kind) if event.data.cause is not None]


@pytest.mark.nightly
@pytest.mark.timeout(400)
async def test_a_starved_job_gets_more_cpu_where_limits_are_enforced_and_is_left_alone_elsewhere(
    tmp_path: Path,
) -> None:
    async with embedded_cluster(tmp_path, nodes=1, gpus=1, settings=QUICK) as cluster:
        [node] = (await cluster.client.nodes()).nodes
        job = await cluster.client.submit(parts.starved())
        if "cpus" in node.not_enforced:
            view = await cluster.until(job.id, lambda view: any(one.code == NOT_TUNED for one in view.findings))
            assert not any(one.asked is not None for one in view.runs), "nothing was changed"
            return
        story = await story_until(cluster, job.id, lambda story: CauseCode.KEPT in causes(story, JobEvent.TUNED))
        assert causes(story, JobEvent.TUNED)[:2] == [CauseCode.UPSCALED, CauseCode.KEPT]
        kept = next(
            event.data.cause for event in of_kind(story, JobEvent.TUNED) if event.data.cause.code is CauseCode.KEPT
        )
        assert kept.numbers["gain"] > 0.5, kept.sentence
        [run] = (await cluster.client.job(job.id)).runs
        assert run.cpus == 2 * parts.STARVED_CPUS
