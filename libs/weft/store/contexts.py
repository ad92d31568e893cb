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


class UploadStore(Protocol):
    """`upload` is an id of the upload's own, `owner` the tenant."""

    async def begin_upload(self, upload: str, *, owner: str, digest: str, size: int, at: float, most: int) -> bool:
        """Begin to store one of `size` bytes. False: the tenant's would have more than `most`."""

    async def add_piece(self, upload: str, number: int, data: bytes, *, at: float) -> bool:
        """False: it is not being stored any more."""

    async def finish_upload(self, upload: str, *, at: float) -> None:
        """It is whole now. One that its tenant has already is dropped."""

    async def drop_upload(self, upload: str) -> None:
        """Give it up, whole or not."""

    async def forget_uploads(
        self,
        *,
        whole_before: float,
        begun_before: float,
        owner: str | None = None,
        most: int | None = None,
    ) -> int:
        """Remove uploads that were last used before `whole_before`, the longest unused first, unless an open job names
        them, and unfinished ones that were begun before `begun_before`. `owner`: the tenant, None for every tenant;
        `most`: the number removed in one call. Returns the number removed."""
