"""Requests about arrays and their elements."""

from collections.abc import Sequence

import msgspec

from weft.client.paths import array_path, without_empty
from weft.client.wire import JSON_HEADERS, Wire
from weft.domain.job import JobState
from weft.messages.http import ArrayAsked, ArraysView, ArrayView, ElementsWanted, JobsView


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

    async def cancel_array(self, array: str, *, indices: str = "") -> ArrayAsked:
        """Cancel the elements that are not over; those of `indices` alone, if any are given."""
        body = msgspec.json.encode(ElementsWanted(indices=indices or None))
        return await self._wire.ask(
            "POST", array_path(array, "/cancel"), ArrayAsked, body=body, headers=JSON_HEADERS, once=True
        )

    async def requeue_array(self, array: str, *, indices: str = "", failed: bool = False) -> ArrayAsked:
        """Run elements again that are over; those that failed alone, with `failed`."""
        body = msgspec.json.encode(ElementsWanted(indices=indices or None, failed=failed))
        return await self._wire.ask(
            "POST", array_path(array, "/requeue"), ArrayAsked, body=body, headers=JSON_HEADERS, once=True
        )
