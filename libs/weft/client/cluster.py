"""Requests about the cluster: nodes and GPUs, the queue, records and traces of a pool, and what-ifs."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

import msgspec

from weft.client import seldom
from weft.client.errors import Refused
from weft.client.http import events_of
from weft.client.paths import path_part, without_empty
from weft.client.wire import JSON_HEADERS, Wire, worth_another
from weft.domain.job import JobState
from weft.domain.spec import JobSpec
from weft.messages.http import Accepted, ClusterView, GpusView, HistoryView, NodesView, SpecificationsView

SPECIFICATIONS_AT_ONCE = 50


class ClusterRequests:
    """The part of a client that reads the cluster, and drains and resumes its nodes."""

    _wire: Wire

    async def nodes(self) -> NodesView:
        return await self._wire.ask("GET", "/v1/nodes", NodesView)

    async def gpus(self, *, node: str = "", pool: str = "") -> GpusView:
        """All GPUs, or those of one node or pool."""
        return await self._wire.ask("GET", "/v1/gpus", GpusView, query=without_empty({"node": node, "pool": pool}))

    async def status(self) -> "seldom.StatusView":
        """How the cluster itself is; for administrators and operators."""
        return await self._wire.ask("GET", "/v1/status", seldom.StatusView)

    async def date(self) -> str:
        """The time by the gateway's clock, as HTTP has it."""
        async with self._wire.stream("/healthz", query={}, headers={}) as response:
            return response.headers.get("date", "")

    async def drain(self, node: str, *, reason: str = "", until: float | None = None, evict: bool = False) -> Accepted:
        """Give a node no new work, `until` a time in seconds since 1970. `evict`: its runs go elsewhere."""
        query = {"reason": reason, "until": "" if until is None else repr(until), "evict": "1" if evict else ""}
        return await self._wire.ask("POST", f"/v1/nodes/{path_part(node)}/drain", Accepted, query=without_empty(query))

    async def resume(self, node: str) -> Accepted:
        return await self._wire.ask("POST", f"/v1/nodes/{path_part(node)}/resume", Accepted)

    async def mark(
        self,
        node: str,
        *,
        labels: Mapping[str, str | None] | None = None,
        taints: Mapping[str, str | None] | None = None,
    ) -> Accepted:
        """Change labels and taints of a node; None takes one away."""
        body = msgspec.json.encode({"labels": labels or {}, "taints": taints or {}})
        return await self._wire.ask("PATCH", f"/v1/nodes/{path_part(node)}", Accepted, body=body, headers=JSON_HEADERS)

    async def give_back(self, node: str, gpu: int | None = None) -> Accepted:
        """Have a sick GPU used again; without `gpu`, the node and all of its GPUs."""
        query = {} if gpu is None else {"gpu": str(gpu)}
        return await self._wire.ask("POST", f"/v1/nodes/{path_part(node)}/return", Accepted, query=query)

    async def cluster(self, *, at: str = "") -> ClusterView:
        """The cluster now, or as it was `at` a time, as for `job`."""
        return await self._wire.ask("GET", "/v1/cluster", ClusterView, query=without_empty({"at": at}))

    async def live(self) -> "AsyncGenerator[seldom.LiveSnapshot | seldom.LiveDelta, None]":
        """The cluster as a snapshot, and then what changes. Survives a restart of the gateway: it goes on with another
        snapshot, as it does when this reader was too slow."""
        retrying = self._wire.retrying()
        while True:
            broken: BaseException = ConnectionError("the stream ended")
            try:
                async with self._wire.stream("/v1/live", query={}, headers={"Accept": "text/event-stream"}) as response:
                    retrying.connected()
                    async for kind, data in events_of(response.pieces()):
                        retrying.succeeded()
                        if kind == b"snapshot":
                            yield msgspec.json.decode(data, type=seldom.LiveSnapshot)
                        elif kind == b"delta":
                            yield msgspec.json.decode(data, type=seldom.LiveDelta)
            except OSError as error:
                broken = error
            except Refused as error:
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
    ) -> "seldom.QueueView":
        """A part of the queue in the order in force; without `states`, of the jobs that wait. `label`: `NAME=VALUE`."""
        query = {"tenant": tenant, "pool": pool, "kind": kind, "state": ",".join(states), "label": label, "text": text}
        numbers = {"offset": str(offset or ""), "limit": str(limit)}
        return await self._wire.ask("GET", "/v1/queue", seldom.QueueView, query=without_empty({**query, **numbers}))

    async def history(self, *, pool: str = "default", after: str = "", limit: int = 1000) -> HistoryView:
        """The records of a pool behind `after`, one page of them; for an administrator."""
        query = without_empty({"pool": pool, "after": after, "limit": str(limit)})
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
        query = without_empty({"seconds": str(seconds or ""), "pool": pool})
        return await self._wire.read("GET", "/v1/trace", query=query)

    async def what_if(self, wanted: "seldom.WhatIfWanted") -> "seldom.WhatIfView":
        """Which jobs would gain and which lose if that were so."""
        return await self._wire.ask(
            "POST", "/v1/what-if", seldom.WhatIfView, body=msgspec.json.encode(wanted), headers=JSON_HEADERS, once=True
        )
