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

    async def context_piece(self, tenant: str, digest: str, number: int) -> tuple[bytes, int] | None:
        """One piece, and how many bytes all have; None: there is no such context."""
