"""A sweep that was submitted, for programs with an event loop."""

import asyncio
import os
from contextlib import aclosing
from typing import Self

from weft.aio.job import connected, ends_of
from weft.client.place import PATIENT_SECONDS, Place, find_place
from weft.domain.spec import MetricGoal
from weft.messages.sweeps import SweepRow, SweepView
from weft.notebook import study_html


class Study:
    """A sweep or an array: its elements with their values and with what they reported."""

    def __init__(self, place: Place, id: str, name: str) -> None:  # noqa: A002 -- the name of the attribute
        self._place = place
        self._view: SweepView | None = None
        self.id = id
        self.name = name

    @classmethod
    async def find(cls, named: str) -> Self:
        """The array with this id, or the newest of this name. Raises Refused if there is none."""
        place = find_place(os.environ)
        async with connected(place) as client:
            found = await client.array(named)
        return cls(place, found.id, found.name)

    async def table(self, *, metric: str = "", goal: MetricGoal | str | None = None) -> SweepView:
        """Every element: `rows`, each with `index`, `values`, `last`, `best`, `curve`, `state` and `ended_for`.

        `metric`: that of `early_stop` by default, else the first that an element reported. `goal`: `min` or `max`.
        """
        async with connected(self._place) as client:
            self._view = await client.sweep(self.id, metric=metric, goal=None if goal is None else MetricGoal(goal))
        return self._view

    async def best(self, *, metric: str = "", goal: MetricGoal | str | None = None) -> SweepRow | None:
        """The element with the best value so far; None if none reported the metric."""
        return (await self.table(metric=metric, goal=goal)).best()

    async def wait(self, timeout: float | None = None, *, patience: float = PATIENT_SECONDS) -> Self:
        """Wait until every element has ended, and return this study. Raises as `Job.wait` does."""
        try:
            async with asyncio.timeout(timeout), connected(self._place, patience) as client:
                going = {row.id for row in (await client.sweep(self.id)).rows if not row.state.final}
                async with aclosing(ends_of(client, going)) as ends:
                    async for _ in ends:
                        pass
        except TimeoutError:
            raise TimeoutError(f"{self.name} ({self.id}) is not over after {timeout:g} s, and goes on") from None
        return self

    async def cancel(self) -> None:
        """Ask for the end of every element that is not over, as `Job.cancel` does."""
        async with connected(self._place) as client:
            await client.cancel_array(self.id)

    def __repr__(self) -> str:
        return f"<Study {self.name} {self.id}>"

    def _repr_html_(self) -> str:
        """The table as it was when it was last asked for, in a notebook."""
        return study_html(self.name, self.id, self._view)
