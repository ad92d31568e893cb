"""The tokens with which nodes join, as a gateway stores them."""

from typing import Protocol

from msgspec import Struct


class JoinTokenKept(Struct, frozen=True, kw_only=True):
    """A join token as it was before this use; times in seconds since 1970. `sealed`: the encrypted credentials of its
    node, if this use was good, else empty."""

    node_id: str
    sealed: str
    expires_at: float
    used_at: float | None = None


class JoinTokenStore(Protocol):
    async def set_join_token(
        self, node_id: str, *, token_hash: bytes, sealed: str, at: float, expires_at: float, most: int
    ) -> bool:
        """Store the token of a node in place of its last one. False: nothing was stored, because there are `most` of
        other nodes."""

    async def use_join_token(self, token_hash: bytes, *, node_id: str, at: float) -> JoinTokenKept | None:
        """Use a token, if it is this node's, in force and not used; None: there is no such token."""
