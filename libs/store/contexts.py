"""What a gateway stores of contexts: packed files, in pieces, by tenant and digest."""

from typing import Protocol

from msgspec import Struct


class ContextKept(Struct, frozen=True, kw_only=True):
    """A whole context. `bytes`: of the packed files; `used_at` in seconds since 1970."""

    digest: str
    bytes: int
    used_at: float


class ContextStore(Protocol):
    async def use_context(self, tenant: str, digest: str, *, at: float) -> ContextKept | None:
        """Note that it is used, so that it is kept; None: there is no such context."""

    async def begin_context(self, context: str, *, tenant: str, digest: str, size: int, at: float, most: int) -> bool:
        """Begin to store one of `size` bytes, with an id of its own. False: the tenant would have more than `most`."""

    async def add_context_piece(self, context: str, number: int, data: bytes, *, at: float) -> bool:
        """False: it is not being stored any more."""

    async def finish_context(self, context: str, *, at: float) -> None:
        """It is whole now. If the tenant has one of this digest already, that stays in place of this."""

    async def drop_context(self, context: str) -> None:
        """Give it up, whole or not."""

    async def context_piece(self, tenant: str, digest: str, number: int) -> tuple[bytes, int] | None:
        """One piece, and how many bytes all have; None: there is no such context."""

    async def forget_contexts(
        self, *, whole_before: float, begun_before: float, tenant: str | None = None, most: int | None = None
    ) -> int:
        """Remove those that were not used since, the longest unused first, unless an open job names them; and those
        that never became whole. `tenant` None: of all; `most`: so many at once. Returns how many."""
