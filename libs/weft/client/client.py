"""One object per gateway: `async with Client(url, token) as client`. Requests about jobs are here."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec import structs

from weft.client import seldom
from weft.client.administration import AdministrationRequests
from weft.client.cluster import ClusterRequests
from weft.client.errors import Refused
from weft.client.events import EventRequests
from weft.client.files import FileRequests
from weft.client.logs import LogRequests
from weft.client.paths import array_path, job_path, schedule_path, without_empty
from weft.client.sign_ins import SignInRequests
from weft.client.wire import JSON_HEADERS, Wire
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, MetricGoal
from weft.messages.http import (
    Accepted,
    ArrayAsked,
    ArraysView,
    ArrayView,
    ElementsWanted,
    JobsAsked,
    JobsView,
    JobView,
    Submitted,
)
from weft.messages.http.services import EndpointsView
from weft.messages.metrics import MetricsView
from weft.messages.sessions import SessionKind
from weft.messages.sweeps import SweepView

if TYPE_CHECKING:
    from weft.client.sessions import RunSession
    from weft.messages.http.explanation import Explanation


RETRY_SECONDS_MAX = 30.0
MEDIA = {"json": "application/json", "yaml": "application/yaml"}


class ArrayRequests:
    """The part of a client that reads, cancels and requeues arrays."""

    _wire: Wire

    async def arrays(self, *, opened: bool = False, limit: int = 100) -> ArraysView:
        """Arrays, the newest first; `opened`: those that are not over."""
        query = {"limit": str(limit), "open": str(int(opened))}
        return await self._wire.ask("GET", "/v1/arrays", ArraysView, query=query)

    async def array(self, array: str) -> ArrayView:
        return await self._wire.ask("GET", array_path(array), ArrayView)

    async def elements(
        self, array: str, *, states: Sequence[JobState] = (), limit: int = 100, after: int = 0
    ) -> JobsView:
        """Elements of an array in the order of their indices; `before` of the answer is the next `after`."""
        query = without_empty({"state": ",".join(states), "limit": str(limit), "after": str(after or "")})
        return await self._wire.ask("GET", array_path(array, "/elements"), JobsView, query=query)

    async def sweep(self, array: str, *, metric: str = "", goal: MetricGoal | None = None) -> SweepView:
        """Every element of an array with its values and a metric that it reported."""
        query = without_empty({"metric": metric, "goal": "" if goal is None else goal.value})
        found = await self._wire.ask("GET", array_path(array, "/sweep"), SweepView, query=query)
        rows, after = list(found.rows), found.next
        while after:
            page = await self._wire.ask(
                "GET",
                array_path(found.id, "/sweep"),
                SweepView,
                query={"metric": found.metric, "goal": found.goal.value, "after": str(after)},
            )
            rows, after = [*rows, *page.rows], page.next
        return structs.replace(found, rows=tuple(rows), next=0)

    async def cancel_array(self, array: str, *, indices: str = "") -> ArrayAsked:
        """Cancel the elements that are not over; those of `indices` alone, if any are given."""
        body = msgspec.json.encode(ElementsWanted(indices=indices or None))
        return await self._wire.ask(
            "POST", array_path(array, "/cancel"), ArrayAsked, body=body, headers=JSON_HEADERS, once=True
        )

    async def requeue_array(self, array: str, *, indices: str = "", failed: bool = False) -> ArrayAsked:
        """Run ended elements again, or with `failed` only those that failed."""
        body = msgspec.json.encode(ElementsWanted(indices=indices or None, failed=failed))
        return await self._wire.ask(
            "POST", array_path(array, "/requeue"), ArrayAsked, body=body, headers=JSON_HEADERS, once=True
        )


class ScheduleRequests:
    """The part of a client that lists, pauses, resumes and removes schedules, each by its id or its name."""

    _wire: Wire

    async def schedules(self) -> "seldom.SchedulesView":
        """The schedules of this token's tenant; for an administrator all."""
        found = await self._wire.ask("GET", "/v1/schedules", seldom.SchedulesView)
        every, after = list(found.schedules), found.after
        while after:
            page = await self._wire.ask("GET", "/v1/schedules", seldom.SchedulesView, query={"after": after})
            every, after = [*every, *page.schedules], page.after
        return seldom.SchedulesView(schedules=tuple(every))

    async def pause_schedule(self, schedule: str) -> "seldom.ScheduleView":
        return await self._wire.ask("POST", schedule_path(schedule, "/pause"), seldom.ScheduleView)

    async def resume_schedule(self, schedule: str) -> "seldom.ScheduleView":
        return await self._wire.ask("POST", schedule_path(schedule, "/resume"), seldom.ScheduleView)

    async def remove_schedule(self, schedule: str) -> "seldom.ScheduleView":
        """Remove a schedule; its runs go on. The answer is the schedule as it was."""
        return await self._wire.ask("DELETE", schedule_path(schedule), seldom.ScheduleView, once=True)


class Client(
    ArrayRequests,
    ScheduleRequests,
    EventRequests,
    FileRequests,
    LogRequests,
    ClusterRequests,
    AdministrationRequests,
    SignInRequests,
):
    """Requests to one gateway, with one tenant's token. A `job` argument is an id, or a name: the newest job of it."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        retry_seconds: float = RETRY_SECONDS_MAX,
        first_seconds: float = RETRY_SECONDS_MAX,
        ca_file: str = "",
    ) -> None:
        """`ca_file` has the authorities to trust over HTTPS; without it, the system's are trusted."""
        self.url = url.rstrip("/")
        self._wire = Wire(
            url,
            token,
            retry_seconds=retry_seconds,
            first_seconds=first_seconds,
            clock=time.monotonic,
            ca_file=ca_file,
        )

    async def __aenter__(self) -> Self:
        await self._wire.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wire.close()

    async def submit(self, spec: JobSpec | bytes, *, key: str | None = None, content: str = "json") -> Submitted:
        """Submit one job; `content` is the format of the bytes: `json` or `yaml`. A missing key is made. Raises
        Refused for a key that no header can have, as the gateway would refuse it."""
        if key and not key.isprintable():
            raise Refused(400, "Idempotency-Key", "expected printable characters")
        body = spec if isinstance(spec, bytes) else msgspec.json.encode(spec)
        headers = {
            "Content-Type": MEDIA[content if isinstance(spec, bytes) else "json"],
            "Idempotency-Key": key or f"auto-{os.urandom(16).hex()}",
        }
        return await self._wire.ask("POST", "/v1/jobs", Submitted, body=body, headers=headers)

    async def job(self, job: str, *, at: str = "") -> JobView:
        """The job now, or as it was `at` a time: seconds since 1970, ISO 8601, or the cursor of an event."""
        return await self._wire.ask("GET", job_path(job), JobView, query=without_empty({"at": at}))

    async def metrics(self, job: str, *, rank: int = 0, points: int = 1000) -> MetricsView:
        """The numbers that a rank of the job reported, as series of at most `points` points."""
        query = {"rank": str(rank), "points": str(points)}
        return await self._wire.ask("GET", job_path(job, "/metrics"), MetricsView, query=query)

    async def jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        name: str = "",
        limit: int = 100,
        before: int = 0,
        id_begins: str = "",
        labels: Sequence[str] = (),
        tenant: str = "",
        kinds: Sequence[str] = (),
        node: str = "",
        since: float | None = None,
        benchmarks: bool = True,
        elements: bool = True,
    ) -> JobsView:
        """Jobs, the newest first. `name`: also a pattern with `*` and `?`. `labels`: each `NAME=VALUE` or `NAME`; a job
        has all of them. `node`: where it is, or was last. `since`: in seconds since 1970, submitted then or later.
        `elements`: those of arrays too."""
        query = {"state": ",".join(states), "name": name, "limit": str(limit), "before": str(before or "")}
        query["elements"] = "" if elements else "0"
        query |= {"id": id_begins, "benchmarks": "" if benchmarks else "0"}
        query |= _conditions(labels=labels, tenant=tenant, kinds=kinds, node=node, since=since)
        return await self._wire.ask("GET", "/v1/jobs", JobsView, query=without_empty(query))

    async def until_over(self, job: str) -> JobView:
        """Wait until the job has ended, however often it is requeued before. `job`: its id."""
        view = await self.job(job)
        while not view.state.final:
            async with aclosing(self.follow_events(job=job)) as events:
                async for _ in events:
                    pass
            view = await self.job(job)
        return view

    async def until(self, job: str, state: JobState) -> JobView:
        """Wait until the job has this state, or has ended. `job`: its id."""
        view = await self.job(job)
        while view.state is not state and not view.state.final:
            async with aclosing(self.follow_events(job=job)) as events:
                async for event in events:
                    if event.data.version > view.version:
                        break
            view = await self.job(job)
        return view

    async def cancel(self, job: str) -> Accepted:
        return await self._wire.ask("POST", job_path(job, "/cancel"), Accepted, once=True)

    async def cancel_selected(
        self,
        *,
        states: Sequence[JobState] = (),
        name: str = "",
        labels: Sequence[str] = (),
        tenant: str = "",
        kinds: Sequence[str] = (),
        node: str = "",
        since: float | None = None,
        every: bool = False,
    ) -> JobsAsked:
        """Cancel the open jobs that meet conditions, as `jobs` has them, as many as one request does; `every`: also
        without a condition."""
        query = {"state": ",".join(states), "name": name, "all": "1" if every else ""}
        query |= _conditions(labels=labels, tenant=tenant, kinds=kinds, node=node, since=since)
        return await self._wire.ask("POST", "/v1/jobs/cancel", JobsAsked, query=without_empty(query), once=True)

    async def requeue(self, job: str) -> Accepted:
        return await self._wire.ask("POST", job_path(job, "/requeue"), Accepted, once=True)

    async def prioritise(self, job: str, priority: int) -> Accepted:
        body = msgspec.json.encode({"priority": priority})
        return await self._wire.ask("POST", job_path(job, "/priority"), Accepted, body=body, headers=JSON_HEADERS)

    async def scale(self, job: str, size: Mapping[str, int]) -> Accepted:
        """Give the job another size: replicas by role; a role that is not named stays as it is."""
        body = msgspec.json.encode({"size": dict(size)})
        return await self._wire.ask("POST", job_path(job, "/scale"), Accepted, body=body, headers=JSON_HEADERS)

    async def share(
        self, job: str, *, request: float | None = None, limit: float | None = None, role: str = ""
    ) -> Accepted:
        """Give each rank of the running job another share of its GPU; None leaves a part as it is."""
        given = {"request": request, "limit": limit, "role": role or None}
        body = msgspec.json.encode({name: part for name, part in given.items() if part is not None})
        return await self._wire.ask("POST", job_path(job, "/share"), Accepted, body=body, headers=JSON_HEADERS)

    async def update(
        self,
        job: str,
        *,
        image: str | None = None,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Accepted:
        """Have the replicas of a service run something else; None leaves a part as it is, `env` is added."""
        given = {"image": image, "command": command, "env": env}
        body = msgspec.json.encode({name: part for name, part in given.items() if part is not None})
        return await self._wire.ask(
            "POST", job_path(job, "/update"), Accepted, body=body, headers=JSON_HEADERS, once=True
        )

    async def endpoints(self, job: str) -> EndpointsView:
        """The replicas of a service that listen, and the service's URL at the router."""
        return await self._wire.ask("GET", job_path(job, "/endpoints"), EndpointsView)

    def enter(
        self,
        job: str,
        kind: SessionKind = SessionKind.SHELL,
        *,
        command: Sequence[str] = (),
        rank: int = 0,
        role: str = "",
        tty: bool = False,
        size: tuple[int, int] | None = None,
        term: str = "",
        port: int = 0,
    ) -> "RunSession":
        """A shell, a command or a connection in a run; `async with` opens it. `size`: rows and columns."""
        from weft.client.sessions import RunSession  # imports aiohttp

        rows, columns = size or (0, 0)
        given = {"role": role, "term": term, "port": str(port or ""), "tty": "1" if tty else ""}
        query = {
            "kind": kind.value,
            "rank": str(rank),
            "rows": str(rows),
            "columns": str(columns),
            **without_empty(given),
        }
        return RunSession(self._wire, job_path(job, "/attach"), query, command)

    async def explain(self, job: str) -> "Explanation":
        from weft.messages.http.explanation import Explanation  # slow to import

        return await self._wire.ask("GET", job_path(job, "/explain"), Explanation)

    async def openapi(self) -> bytes:
        """The OpenAPI document, as JSON."""
        return await self._wire.read("GET", "/v1/openapi.json")


def _conditions(
    *, labels: Sequence[str], tenant: str, kinds: Sequence[str], node: str, since: float | None
) -> dict[str, str]:
    """Conditions of `jobs` as parameters of a query."""
    query = {"label": ",".join(labels), "tenant": tenant, "kind": ",".join(kinds), "node": node}
    return {**query, "since": "" if since is None else repr(since)}
