"""One object per gateway: `async with Client(url, token) as client`."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self
from urllib.parse import quote

import msgspec
from msgspec import Struct

from libs.client.errors import RefusedError
from libs.client.sessions import RunSession
from libs.client.sse import data_of, events_of
from libs.client.wire import BROKEN, Wire, worth_another
from libs.domain.job import FINAL, JobState
from libs.domain.spec import JobSpec
from libs.messages.accounts import By
from libs.messages.http import (
    Accepted,
    ArrayAsked,
    ArraysView,
    ArrayView,
    ClusterView,
    ElementsWanted,
    EventView,
    GpusView,
    HistoryView,
    JobsView,
    JobView,
    NodesView,
    SpecificationsView,
    Submitted,
    TenantsView,
    TenantView,
    TenantWanted,
    TokenMade,
    TokensRevoked,
    TokensView,
)
from libs.messages.http_quotas import QuotaDeleted, QuotasView, QuotaView, QuotaWanted
from libs.messages.http_services import EndpointsView
from libs.messages.live import LiveDelta, LiveSnapshot, QueueView
from libs.messages.series import UsageView
from libs.messages.sessions import SessionKind
from libs.messages.webhooks import WebhookMade, WebhooksView, WebhookView, WebhookWanted
from libs.messages.whatif import WhatIfView, WhatIfWanted
from libs.planning.explain import Explanation

RETRY_SECONDS_MAX = 30.0
SPECIFICATIONS_AT_ONCE = 50
LOOK_SECONDS = 0.5  # between two looks at a job that goes on though its log has ended
FINAL_EVENTS = frozenset(f"weft.jobs.{state}" for state in FINAL)
MEDIA = {"json": "application/json", "yaml": "application/yaml"}


class Gap(Struct, frozen=True, kw_only=True):
    """Bytes of one epoch's log that cannot be had, from `begins` to `ends` (None: to its end), and why."""

    epoch: int
    begins: int
    ends: int | None
    reason: str


OnGap = Callable[[Gap], None]


def unheard(_: Gap) -> None:
    """Ignores a gap: the default for callers that do not ask for gaps."""


class Client:
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

    # jobs

    async def submit(self, spec: JobSpec | bytes, *, key: str | None = None, content: str = "json") -> Submitted:
        """Submit one job; `content` is the format of the bytes: `json` or `yaml`. A missing key is made."""
        body = spec if isinstance(spec, bytes) else msgspec.json.encode(spec)
        headers = {
            "Content-Type": MEDIA[content if isinstance(spec, bytes) else "json"],
            "Idempotency-Key": key or f"auto-{secrets.token_hex(16)}",
        }
        return await self._wire.ask("POST", "/v1/jobs", Submitted, body=body, headers=headers)

    async def job(self, job: str, *, at: str = "") -> JobView:
        """The job now, or as it was `at` a time: seconds since 1970, ISO 8601, or the cursor of an event."""
        return await self._wire.ask("GET", _job(job), JobView, query=_given({"at": at}))

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
        query |= {"id": id_begins, "label": ",".join(labels), "tenant": tenant, "kind": ",".join(kinds), "node": node}
        query |= {"since": "" if since is None else repr(since), "benchmarks": "" if benchmarks else "0"}
        return await self._wire.ask("GET", "/v1/jobs", JobsView, query=_given(query))

    async def cancel(self, job: str) -> Accepted:
        return await self._wire.ask("POST", _job(job, "/cancel"), Accepted, once=True)

    async def requeue(self, job: str) -> Accepted:
        return await self._wire.ask("POST", _job(job, "/requeue"), Accepted, once=True)

    async def prioritise(self, job: str, priority: int) -> Accepted:
        body = msgspec.json.encode({"priority": priority})
        return await self._wire.ask("POST", _job(job, "/priority"), Accepted, body=body, headers=_JSON)

    async def scale(self, job: str, size: Mapping[str, int]) -> Accepted:
        """Give the job another size: replicas by role; a role that is not named stays as it is."""
        body = msgspec.json.encode({"size": dict(size)})
        return await self._wire.ask("POST", _job(job, "/scale"), Accepted, body=body, headers=_JSON)

    async def share(
        self, job: str, *, request: float | None = None, limit: float | None = None, role: str = ""
    ) -> Accepted:
        """Give each rank of the running job another share of its GPU; None leaves a part as it is."""
        given = {"request": request, "limit": limit, "role": role or None}
        body = msgspec.json.encode({name: part for name, part in given.items() if part is not None})
        return await self._wire.ask("POST", _job(job, "/share"), Accepted, body=body, headers=_JSON)

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
        return await self._wire.ask("POST", _job(job, "/update"), Accepted, body=body, headers=_JSON, once=True)

    async def endpoints(self, job: str) -> EndpointsView:
        """The replicas of a service that listen, and the service's URL at the router."""
        return await self._wire.ask("GET", _job(job, "/endpoints"), EndpointsView)

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
    ) -> RunSession:
        """A shell, a command or a connection in a run; `async with` opens it. `size`: rows and columns."""
        rows, columns = size or (0, 0)
        given = {"role": role, "term": term, "port": str(port or ""), "tty": "1" if tty else ""}
        query = {"kind": kind.value, "rank": str(rank), "rows": str(rows), "columns": str(columns), **_given(given)}
        return RunSession(self._wire, _job(job, "/attach"), query, command)

    async def explain(self, job: str) -> Explanation:
        return await self._wire.ask("GET", _job(job, "/explain"), Explanation)

    # arrays

    async def arrays(self, *, opened: bool = False, limit: int = 100) -> ArraysView:
        """Arrays, the newest first; `opened`: those that are not over."""
        query = {"limit": str(limit), "open": str(int(opened))}
        return await self._wire.ask("GET", "/v1/arrays", ArraysView, query=query)

    async def array(self, array: str) -> ArrayView:
        return await self._wire.ask("GET", _array(array), ArrayView)

    async def elements(
        self, array: str, *, states: Sequence[JobState] = (), limit: int = 100, after: int = 0
    ) -> JobsView:
        """Elements of an array in the order of their indices; `before` of the answer is the next `after`."""
        query = _given({"state": ",".join(states), "limit": str(limit), "after": str(after or "")})
        return await self._wire.ask("GET", _array(array, "/elements"), JobsView, query=query)

    async def cancel_array(self, array: str, *, indices: str = "") -> ArrayAsked:
        """Cancel the elements that are not over; those of `indices` alone, if any are given."""
        body = msgspec.json.encode(ElementsWanted(indices=indices or None))
        return await self._wire.ask("POST", _array(array, "/cancel"), ArrayAsked, body=body, headers=_JSON, once=True)

    async def requeue_array(self, array: str, *, indices: str = "", failed: bool = False) -> ArrayAsked:
        """Run elements again that are over; those that failed alone, with `failed`."""
        body = msgspec.json.encode(ElementsWanted(indices=indices or None, failed=failed))
        return await self._wire.ask("POST", _array(array, "/requeue"), ArrayAsked, body=body, headers=_JSON, once=True)

    # events

    async def story(self, job: str) -> tuple[EventView, ...]:
        """Every event of a job so far, in order."""
        return await self._wire.ask("GET", _job(job, "/events"), tuple[EventView, ...])

    async def events(self, *, after: str = "", limit: int = 100) -> tuple[EventView, ...]:
        """The newest events, or the first behind the cursor `after`, in order."""
        query = _given({"after": after, "limit": str(limit)})
        return await self._wire.ask("GET", "/v1/events", tuple[EventView, ...], query=query)

    async def follow_events(self, *, job: str = "", after: str = "") -> AsyncGenerator[EventView, None]:
        """Events as they happen, of one job (from its first; ends after it is over) or of all (from now).

        `after` is the cursor of an event to go on from. Survives a restart of the gateway without loss or repeat.
        """
        path = _job(job, "/events") if job else "/v1/events"
        retrying = self._wire.retrying()
        over = False
        while True:
            broken: BaseException = ConnectionError("the stream ended")
            try:
                headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
                async with self._wire.stream(path, query={}, headers=headers) as response:
                    if response.status == 204:
                        return
                    retrying.connected()
                    async for data in data_of(response.content.iter_any()):
                        event = msgspec.json.decode(data, type=EventView)
                        after = event.cursor
                        retrying.succeeded()
                        over = bool(job) and event.type in FINAL_EVENTS
                        yield event
                if over:
                    return  # The stream of a job that is put back into the queue after its end goes on.
            except BROKEN as error:
                broken = error
            except RefusedError as error:
                broken = worth_another(error)
            await retrying.pause(broken)

    # logs

    async def read_log(
        self,
        job: str,
        *,
        rank: int = 0,
        epoch: int | None = None,
        role: str | None = None,
        offset: int = 0,
        tail: int | None = None,
    ) -> bytes:
        """One run's log so far, from `offset`, or its last `tail` bytes, in one piece; see `stream_log`."""
        chunks = self.stream_log(job, rank=rank, epoch=epoch, role=role, offset=offset, tail=tail)
        return b"".join([chunk async for chunk in chunks])

    async def stream_log(
        self,
        job: str,
        *,
        rank: int = 0,
        epoch: int | None = None,
        role: str | None = None,
        offset: int = 0,
        tail: int | None = None,
        gap: OnGap = unheard,
    ) -> AsyncGenerator[bytes, None]:
        """One run's log as far as it is written, from `offset`, or its last `tail` bytes.

        The newest epoch unless given; with a `role`, `rank` counts within it. `gap` is called for bytes that the node
        has
        dropped.
        """
        query = _run(rank, epoch, role)
        retrying = self._wire.retrying()
        at = {"offset": str(offset)} if tail is None else {"tail": str(tail)}
        reached, end = (offset if tail is None else None), 0
        while True:
            try:
                async with self._wire.stream(_job(job, "/logs"), query={**query, **at}, headers={}) as response:
                    query["epoch"] = response.headers["X-Weft-Epoch"]
                    begin = _begin(response.headers, reached, gap)
                    if not end and response.content_length is not None:
                        end = begin + response.content_length  # the log's size at the first request
                    reached = begin
                    async for chunk in response.content.iter_any():
                        yield chunk
                        reached += len(chunk)
                        retrying.succeeded()
                return
            except BROKEN as error:
                if reached is not None:
                    at = {"offset": str(reached)}
                if end and reached is not None and reached >= end:
                    return
                await retrying.pause(error)
            except RefusedError as error:
                await retrying.pause(worth_another(error))

    async def follow_log(
        self,
        job: str,
        *,
        rank: int = 0,
        epoch: int | None = None,
        role: str | None = None,
        offset: int = 0,
        gap: OnGap = unheard,
    ) -> AsyncGenerator[bytes, None]:
        """The log as it is written, from `offset`, until the run is over; without an `epoch`, through every later one
        until the job is over. Survives a restart of the gateway without loss or repeat. `gap` is called for bytes that
        cannot be had, because their node dropped them or is lost.
        """
        following = Following(epoch, offset)
        while True:
            async with aclosing(self._follow_epoch(job, following, rank, role, gap)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if epoch is not None or not await self._next_epoch(job, following):
                return

    async def _follow_epoch(
        self, job: str, following: "Following", rank: int, role: str | None, gap: OnGap
    ) -> AsyncGenerator[bytes, None]:
        """One epoch's log to its end."""
        retrying = self._wire.retrying()
        while True:
            connected = False
            try:
                query = {**_run(rank, following.epoch, role), "follow": "1", "offset": str(following.offset)}
                async with self._wire.stream(_job(job, "/logs"), query=query, headers={}) as response:
                    connected = True
                    retrying.connected()
                    following.epoch = int(response.headers["X-Weft-Epoch"])
                    following.offset = _begin(response.headers, following.offset, gap)
                    async for chunk in response.content.iter_any():
                        following.offset += len(chunk)
                        retrying.succeeded()
                        yield chunk
                return
            except BROKEN as error:
                if not (connected and isinstance(error, TimeoutError)):  # Silence: check that the gateway is there.
                    await retrying.pause(error)
            except RefusedError as error:
                if following.later and error.status == 404 and error.field == "epoch":
                    return  # That epoch ended before it was placed.
                if error.status == 404 and error.field == "node" and not following.fixed:
                    following.epoch = await self._lost_epoch(job, following.epoch)
                    gap(Gap(epoch=following.epoch, begins=following.offset, ends=None, reason=error.reason))
                    return
                await retrying.pause(worth_another(error))

    async def _lost_epoch(self, job: str, epoch: int | None) -> int:
        """Return `epoch`, the one being followed; if None, the newest epoch of the job that was placed on nodes."""
        if epoch is not None:
            return epoch
        now = await self.job(job)
        return now.epoch if now.placement is not None else max(0, now.epoch - 1)

    async def _next_epoch(self, job: str, following: "Following") -> bool:
        """After the end of one epoch's log, wait for the next epoch. False: the job is over."""
        while True:
            now = await self.job(job)
            if following.epoch is not None and now.epoch > following.epoch:
                following.epoch, following.offset, following.later = following.epoch + 1, 0, True
                return True
            if now.state in FINAL:
                return False
            await asyncio.sleep(LOOK_SECONDS)

    # nodes and the cluster

    async def nodes(self) -> NodesView:
        return await self._wire.ask("GET", "/v1/nodes", NodesView)

    async def gpus(self, *, node: str = "", pool: str = "") -> GpusView:
        """All GPUs, or those of one node or pool."""
        return await self._wire.ask("GET", "/v1/gpus", GpusView, query=_given({"node": node, "pool": pool}))

    async def drain(self, node: str) -> Accepted:
        return await self._wire.ask("POST", f"/v1/nodes/{_part(node)}/drain", Accepted)

    async def resume(self, node: str) -> Accepted:
        return await self._wire.ask("POST", f"/v1/nodes/{_part(node)}/resume", Accepted)

    async def cluster(self, *, at: str = "") -> ClusterView:
        """The cluster now, or as it was `at` a time, as for `job`."""
        return await self._wire.ask("GET", "/v1/cluster", ClusterView, query=_given({"at": at}))

    async def live(self) -> AsyncGenerator[LiveSnapshot | LiveDelta, None]:
        """The cluster as a snapshot, and then what changes. Survives a restart of the gateway: it goes on with another
        snapshot, as it does when this reader was too slow."""
        retrying = self._wire.retrying()
        while True:
            broken: BaseException = ConnectionError("the stream ended")
            try:
                async with self._wire.stream("/v1/live", query={}, headers={"Accept": "text/event-stream"}) as response:
                    retrying.connected()
                    async for kind, data in events_of(response.content.iter_any()):
                        retrying.succeeded()
                        if kind == b"snapshot":
                            yield msgspec.json.decode(data, type=LiveSnapshot)
                        elif kind == b"delta":
                            yield msgspec.json.decode(data, type=LiveDelta)
            except BROKEN as error:
                broken = error
            except RefusedError as error:
                broken = worth_another(error)
            await retrying.pause(broken)

    async def queue(
        self,
        *,
        tenant: str = "",
        pool: str = "",
        kind: str = "",
        states: Sequence[JobState] = (),
        label: str = "",
        text: str = "",
        offset: int = 0,
        limit: int = 100,
    ) -> QueueView:
        """A part of the queue in the order in force; without `states`, of the jobs that wait. `label`: `NAME=VALUE`."""
        query = {"tenant": tenant, "pool": pool, "kind": kind, "state": ",".join(states), "label": label, "text": text}
        numbers = {"offset": str(offset or ""), "limit": str(limit)}
        return await self._wire.ask("GET", "/v1/queue", QueueView, query=_given({**query, **numbers}))

    async def history(self, *, pool: str = "default", after: str = "", limit: int = 1000) -> HistoryView:
        """The records of a pool behind `after`, one page of them; for an administrator."""
        query = _given({"pool": pool, "after": after, "limit": str(limit)})
        return await self._wire.ask("GET", "/v1/history", HistoryView, query=query)

    async def specifications(self, job_ids: Iterable[str]) -> AsyncGenerator[dict[str, JobSpec], None]:
        """The specifications of these jobs as they were submitted, by id, page by page; for an administrator."""
        left = sorted(set(job_ids))
        while left:
            asked, path = left[:SPECIFICATIONS_AT_ONCE], "/v1/history/specifications"
            view = await self._wire.ask("GET", path, SpecificationsView, query={"jobs": ",".join(asked)})
            yield view.specifications
            last = max(view.specifications, default=asked[-1])
            left = [job_id for job_id in left if job_id > last]

    async def trace(self, *, seconds: int | None = None, pool: str = "") -> bytes:
        """The jobs of the last `seconds` (a week), and all that are open, as a trace in CSV; for an administrator."""
        query = _given({"seconds": str(seconds or ""), "pool": pool})
        return await self._wire.read("GET", "/v1/trace", query=query)

    async def what_if(self, wanted: WhatIfWanted) -> WhatIfView:
        """Which jobs would gain and which lose if that were so."""
        return await self._wire.ask(
            "POST", "/v1/what-if", WhatIfView, body=msgspec.json.encode(wanted), headers=_JSON, once=True
        )

    # tokens and the API itself

    async def make_token(
        self, tenant: str, label: str, *, admin: bool = False, expires_in: int | None = None
    ) -> TokenMade:
        """`expires_in` is in seconds; None: the token is in force until it is revoked."""
        wanted = {"tenant": tenant, "label": label, "admin": admin}
        body = msgspec.json.encode(wanted if expires_in is None else {**wanted, "expires_in": expires_in})
        return await self._wire.ask("POST", "/v1/tokens", TokenMade, body=body, headers=_JSON, once=True)

    async def tokens(self, *, tenant: str = "", every: bool = False) -> TokensView:
        """Tokens without their secrets, the newest first: those in force; with `every` also those that have ended."""
        return await self._wire.ask(
            "GET", "/v1/tokens", TokensView, query=_given({"tenant": tenant, "all": "1" if every else ""})
        )

    async def revoke(self, tenant: str, label: str) -> TokensRevoked:
        path = f"/v1/tokens/{_part(tenant)}/{_part(label)}"
        return await self._wire.ask("DELETE", path, TokensRevoked, once=True)

    async def tenants(self) -> TenantsView:
        """Every tenant, what it may take and what it has taken."""
        return await self._wire.ask("GET", "/v1/tenants", TenantsView)

    async def change_tenant(self, tenant: str, wanted: TenantWanted) -> TenantView:
        """Change what a tenant may take."""
        path = f"/v1/tenants/{_part(tenant)}"
        return await self._wire.ask("PATCH", path, TenantView, body=msgspec.json.encode(wanted), headers=_JSON)

    async def quotas(self, *, pool: str = "default") -> QuotasView:
        """The quotas of a pool: all of them, or a tenant's own."""
        return await self._wire.ask("GET", "/v1/quotas", QuotasView, query=_given({"pool": pool}))

    async def set_quota(self, name: str, wanted: QuotaWanted) -> QuotaView:
        """Set or replace the quota of a tenant or group."""
        path = f"/v1/quotas/{_part(name)}"
        return await self._wire.ask("PUT", path, QuotaView, body=msgspec.json.encode(wanted), headers=_JSON)

    async def delete_quota(self, name: str, *, pool: str = "default") -> QuotaDeleted:
        path = f"/v1/quotas/{_part(name)}"
        return await self._wire.ask("DELETE", path, QuotaDeleted, query=_given({"pool": pool}), once=True)

    async def usage(
        self,
        *,
        by: By,
        seconds: int,
        until: float | None = None,
        label: str = "",
        tenant: str = "",
        limit: int = 1000,
    ) -> UsageView:
        """GPU-seconds held, used and lost in the `seconds` until then (or now), in rows."""
        query = _account(by, seconds, until, label, tenant, limit)
        return await self._wire.ask("GET", "/v1/usage", UsageView, query=query)

    async def usage_csv(
        self,
        *,
        by: By,
        seconds: int,
        until: float | None = None,
        label: str = "",
        tenant: str = "",
        limit: int = 1000,
    ) -> bytes:
        """The rows of `usage` as CSV."""
        query = _account(by, seconds, until, label, tenant, limit)
        return await self._wire.read("GET", "/v1/usage", query=query, headers={"Accept": "text/csv"})

    async def webhooks(self) -> WebhooksView:
        """The webhooks of this token's tenant; for an administrator all."""
        return await self._wire.ask("GET", "/v1/webhooks", WebhooksView)

    async def add_webhook(self, wanted: WebhookWanted) -> WebhookMade:
        """Have events posted; the answer has the secret that signs them."""
        body = msgspec.json.encode(wanted)
        return await self._wire.ask("POST", "/v1/webhooks", WebhookMade, body=body, headers=_JSON, once=True)

    async def switch_webhook_on(self, webhook: str) -> WebhookView:
        return await self._wire.ask("POST", f"/v1/webhooks/{_part(webhook)}/on", WebhookView)

    async def remove_webhook(self, webhook: str) -> WebhookView:
        return await self._wire.ask("DELETE", f"/v1/webhooks/{_part(webhook)}", WebhookView, once=True)

    async def openapi(self) -> bytes:
        """The OpenAPI document, as JSON."""
        return await self._wire.read("GET", "/v1/openapi.json")


class Following:
    """How far a reader of a log has come."""

    def __init__(self, epoch: int | None, offset: int) -> None:
        self.epoch = epoch
        self.offset = offset
        self.fixed = epoch is not None
        self.later = False  # whether this epoch began after the reader did


_JSON = {"Content-Type": MEDIA["json"]}


def _job(job: str, rest: str = "") -> str:
    return f"/v1/jobs/{_part(job)}{rest}"


def _array(array: str, rest: str = "") -> str:
    return f"/v1/arrays/{_part(array)}{rest}"


def _part(text: str) -> str:
    """One part of a path, quoted."""
    return quote(text, safe="") or "-"


def _begin(headers: Mapping[str, str], asked: int | None, gap: OnGap) -> int:
    """The offset of an answer's first byte; `asked` None: the last bytes were requested."""
    missed = asked if asked is not None else 0
    begin, begins = int(headers.get("X-Weft-Offset", missed)), int(headers.get("X-Weft-Begins", "0"))
    if begins == begin > missed:
        reason = f"dropped by the limits of node {headers.get('X-Weft-Node', '')} (EXECUTOR_LOG_BYTES_MAX)"
        gap(Gap(epoch=int(headers["X-Weft-Epoch"]), begins=missed, ends=begin, reason=reason))
    return begin


def _account(by: By, seconds: int, until: float | None, label: str, tenant: str, limit: int) -> dict[str, str]:
    asked = {"by": by.value, "seconds": str(seconds), "until": "" if until is None else repr(until)}
    return _given({**asked, "label": label, "tenant": tenant, "limit": str(limit)})


def _given(query: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in query.items() if value}


def _run(rank: int, epoch: int | None, role: str | None) -> dict[str, str]:
    return _given({"rank": str(rank), "epoch": "" if epoch is None else str(epoch), "role": role or ""})
