"""What a gateway stores in pieces, under a digest: the files of jobs, by tenant, and pushed images, by name."""

from typing import Literal, Protocol

UploadKind = Literal["context", "image"]


class UploadStore(Protocol):
    """`upload` is an id of the upload's own, `owner` the tenant of a context or the name of an image."""

    async def begin_upload(
        self, kind: UploadKind, upload: str, *, owner: str, digest: str, size: int, at: float, most: int
    ) -> bool:
        """Begin to store one of `size` bytes. False: the tenant's contexts, or all images but those that this one
        replaces, would have more than `most`."""

    async def add_piece(self, kind: UploadKind, upload: str, number: int, data: bytes, *, at: float) -> bool:
        """False: it is not being stored any more."""

    async def finish_upload(self, kind: UploadKind, upload: str, *, at: float) -> None:
        """It is whole now. An image takes the place of any other of its name; a context that its tenant has already is
        dropped."""

    async def drop_upload(self, kind: UploadKind, upload: str) -> None:
        """Give it up, whole or not."""

    async def forget_uploads(
        self,
        kind: UploadKind,
        *,
        whole_before: float,
        begun_before: float,
        owner: str | None = None,
        most: int | None = None,
    ) -> int:
        """Remove those that were not used since, the longest unused first, unless they are contexts that an open job
        names; and those that never became whole. `owner` None: of all; `most`: so many at once. Returns how many."""
