"""Subscriptions that change while the service runs: one for each node, begun and ended as nodes come and go."""

from collections.abc import Iterable
from typing import Any

from weft.bus import Bus, Subscription
from weft.service.run import Listen

Name = tuple[str, str, str]


class NodeSubscriptions:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: dict[Name, Subscription] = {}

    async def listen(self, wanted: Iterable[Listen[Any]]) -> None:
        """Subscribe to these, and end all other subscriptions."""
        entries = {_name(entry): entry for entry in wanted}
        for name in sorted(self._open.keys() - entries.keys()):
            await self._open.pop(name).drain()
        for name in sorted(entries.keys() - self._open.keys()):
            entry = entries[name]
            self._open[name] = await self._bus.subscribe(
                entry.kind,
                entry.handler,
                group=entry.group or "",
                at_once=entry.at_once,
                apart_seconds=entry.apart_seconds,
                **entry.tokens,
            )

    async def close(self) -> None:
        await self.listen(())


def _name(entry: Listen[Any]) -> Name:
    return entry.kind.__name__, entry.group or "", entry.tokens["node_id"]
