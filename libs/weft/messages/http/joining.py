"""The HTTP interface's join tokens: how a node gets the credentials that `weft node add` made for it."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.messages.http import Seconds

JOIN_SECONDS_MAX = 7 * 86400
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class JoinTokenWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hash: Annotated[Hash, Meta(description="SHA-256 of the public part of the token, in hexadecimal digits.")]
    sealed: Annotated[
        str, Meta(min_length=1, max_length=65536, description="The node's credentials, encrypted with the token.")
    ]
    seconds: Annotated[int, Meta(ge=1, le=JOIN_SECONDS_MAX, description="Time until the token expires.")] = 3600


class JoinTokenMade(Struct, frozen=True, kw_only=True):
    node: str
    expires_at: Seconds


class JoinWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    public_part: Annotated[Hash, Meta(description="The public part of the join token.")]


class NodeJoined(Struct, frozen=True, kw_only=True):
    """The credentials of the node, which only its join token opens."""

    node: str
    sealed: str
