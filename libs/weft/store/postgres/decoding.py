"""Many rows made into what they stand for, while other tasks go on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from weft.store.asking import Row

T = TypeVar("T")

FEW = 20  # are decoded at once; more are decoded in a thread, so that no other task waits


async def decoded(rows: Sequence[Row], of: Callable[[Row], T]) -> list[T]:
    return await asyncio.to_thread(_each, rows, of) if len(rows) > FEW else _each(rows, of)


def _each(rows: Sequence[Row], of: Callable[[Row], T]) -> list[T]:
    return [of(row) for row in rows]
