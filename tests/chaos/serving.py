"""The services of one run: wanted, scaled, updated and cancelled beside the jobs, with requests in an open loop."""

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.audit_services import unsettled
from tests.chaos.clock import boot_clock
from tests.chaos.customers import PAUSE_SECONDS, Customers, Submission
from tests.chaos.services import COMMAND, MARK, VERSION, Request, ServiceSeen, replicas
from tests.chaos.wishes import Wish
from tests.chaos.world import World
from tests.support.builders import spec
from weft.client import Client, ClientError, Refused
from weft.domain.job import FINAL
from weft.messages.http import EventView, JobView

SECONDS_EACH = 20.0  # of a run: as long as this there is one service, twice as long two
BEGUN_PART = 0.1  # of the time, in which all services are submitted
PRIORITY = 20  # above the jobs: they are there while there is trouble
SERVICES = (3, 8)  # the least and the most of one run
REQUESTS_BETWEEN = 0.4  # to each service, whether earlier ones were answered or not
ANSWER_SECONDS_MAX = 8.0
REQUESTS_MAX = 500  # under way at once


def service_wishes(seed: int, seconds: float, *, folder: Path, run: str) -> list[Wish]:
    """Every third holds whole GPUs, every third parts of one; the third of each three is cancelled. Pure."""
    drawn = random.Random(f"services {seed}")
    least, most = SERVICES
    return [
        _service(drawn, number, seconds, folder=folder, run=run)
        for number in range(max(least, min(most, int(seconds / SECONDS_EACH))))
    ]


def _service(drawn: random.Random, number: int, seconds: float, *, folder: Path, run: str) -> Wish:
    key, at = f"{run}-service-{number}", drawn.uniform(0.0, BEGUN_PART) * seconds
    left = 0.95 * seconds - at
    most = drawn.randint(2, 3)
    least = drawn.choice((0, 1))
    role: dict[str, Any] = {"replicas": {"min": least, "want": drawn.randint(1, most), "max": most}}
    role |= {"cpus": 0.25, "memory": "128MiB"}
    if number % 3 == 1:
        share = drawn.choice((0.2, 0.4))
        role["share"] = {"request": share, "limit": 1.0, "memory": "2GiB"}
    made = spec(
        key,
        gpus=1 if number % 3 == 0 else 0,
        command=list(COMMAND),
        env={MARK: str(folder), "CHAOS_RUN": run, VERSION: "0", "SERVICE_MS": str(drawn.choice((5, 50, 200)))},
        role=role,
        kind="inference",
        priority=PRIORITY,
        grace="1s",
        retries={"max": 8, "backoff": "1s", "backoff_max": "4s"},
        service={"ready": "/healthz", "start": "20s", "drain": "2s", "timeout": "6s", "max_surge": drawn.randint(1, 2)},
    )
    changes = max(2, int(left / 12))
    return Wish(
        key=key,
        at=at,
        kind="service",
        ranks=1,
        spec=made,
        sizes=tuple((drawn.uniform(2.0, left), drawn.randint(least, most)) for _ in range(changes)),
        updates=tuple(
            (after, drawn.random() < 0.25) for after in sorted(drawn.uniform(4.0, left) for _ in range(changes))
        ),
        cancelled_after=drawn.uniform(0.3, 1.0) * left if number % 3 == 2 else None,
    )


class Serving:
    """`requests`: all that were sent while there was trouble."""

    def __init__(self, made: World, client: Client) -> None:
        self.customers = Customers(client, made.nodes)
        self.requests: list[Request] = []
        self._made, self._client = made, client
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def submissions(self) -> list[Submission]:
        return self.customers.submissions

    async def ask(self, seconds: float) -> None:
        """Send requests for so long; return when each was answered, or is given up."""
        until = boot_clock() + seconds
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            while boot_clock() < until:
                for one in self.submissions:
                    if one.ids and len(self._asking) < REQUESTS_MAX:
                        task = asyncio.create_task(self._note(session, one.id))
                        self._asking.add(task)
                        task.add_done_callback(self._asking.discard)
                await asyncio.sleep(REQUESTS_BETWEEN)
            if self._asking:
                await asyncio.wait(self._asking)

    async def settled(self, seconds_max: float) -> list[ServiceSeen]:
        """How each service is once nothing is wrong with it; or when the time is up."""
        until = boot_clock() + seconds_max
        ids = [one.id for one in self.submissions if one.ids]
        async with aiohttp.ClientSession() as session:
            return list(await asyncio.gather(*(self._settled(session, job_id, until) for job_id in ids)))

    async def end(self, seconds_max: float) -> None:
        """Ask of each that it ends, until that was taken; returns also when the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await asyncio.gather(*(self._ended(one.id) for one in self.submissions if one.ids))

    async def _ended(self, job_id: str) -> None:
        while (view := await self._view(job_id)) is not None and view.state not in FINAL:
            with suppress(ClientError):
                await self._client.cancel(job_id)
            await asyncio.sleep(5 * PAUSE_SECONDS)

    async def _settled(self, session: aiohttp.ClientSession, job_id: str, until: float) -> ServiceSeen:
        while True:
            seen = await self._seen(session, job_id)
            if boot_clock() > until or not list(unsettled(seen)):
                return seen
            await asyncio.sleep(5 * PAUSE_SECONDS)

    async def _seen(self, session: aiohttp.ClientSession, job_id: str) -> ServiceSeen:
        view = await self._view(job_id)
        lenders: dict[str, str | None] = {}
        for loan in view.service.loans if view is not None and view.service is not None else ():
            lender = await self._view(loan.lender)
            lenders[loan.lender] = None if lender is None else str(lender.state)
        story = () if view is None else await self._client.story(job_id)
        wants = view is not None and view.state not in FINAL and view.service is not None and view.service.wanted
        found = await asyncio.to_thread(lambda: tuple(replicas(self._made.folder)))
        return ServiceSeen(
            job_id=job_id,
            view=view,
            cancelled=job_id in self.customers.cancelled,
            replicas=tuple(one for one in found if one.job_id == job_id),
            lenders=lenders,
            version=_version(story),
            answer=await self._asked(session, job_id) if wants else None,
        )

    async def _view(self, job_id: str) -> JobView | None:
        try:
            return await self._client.job(job_id)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    async def _note(self, session: aiohttp.ClientSession, job_id: str) -> None:
        self.requests.append(await self._asked(session, job_id))

    async def _asked(self, session: aiohttp.ClientSession, job_id: str) -> Request:
        at, url = boot_clock(), f"{self._made.router_url}/s/{job_id}/v1/generate"
        headers = {"Authorization": f"Bearer {self._made.token}"}
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX), session.post(url, json={}, headers=headers) as answer:
                said = await answer.read()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return Request(job_id=job_id, at=at, status=0)
        if status != 200:
            return Request(job_id=job_id, at=at, status=status)
        told = json.loads(said)
        return Request(job_id=job_id, at=at, status=status, answered_by=told["job"], rank=told["rank"])


def _version(story: tuple[EventView, ...]) -> str:
    """The version in the command of its newest revision; that of the specification is 0."""
    told = [event.data.revisions for event in story if event.data.revisions]
    return told[-1][-1].command[-1] if told and told[-1][-1].command else "0"


def statuses(requests: list[Request]) -> dict[str, int]:
    """How often which status was answered; 0: the connection broke, or no answer came."""
    counted: dict[str, int] = {}
    for one in requests:
        counted[str(one.status)] = counted.get(str(one.status), 0) + 1
    return dict(sorted(counted.items()))
