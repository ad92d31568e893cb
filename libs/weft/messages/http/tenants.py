"""The HTTP interface's views of tenants and their tokens, and the requests that change them."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from weft.domain.spec import Token
from weft.messages.http import PRIORITY_MAX, Bytes, Seconds

LIMIT_MAX = 10**15  # beyond all that a cluster can hold
EXPIRES_SECONDS_MAX = 10 * 366 * 86400


class TokenWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenant: Token
    label: Token
    admin: bool = False
    expires_in: (
        Annotated[
            int, Meta(ge=1, le=EXPIRES_SECONDS_MAX, description="Lifetime in seconds (default: until it is revoked).")
        ]
        | None
    ) = None


class TokenMade(Struct, frozen=True, kw_only=True):
    """A new token, shown only in this answer: only its hash is stored."""

    token: str
    tenant: str
    label: str
    admin: bool = False
    expires_at: Seconds | None = None


class TokenView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token without its secret. `used_at` is exact to a minute."""

    tenant: str
    label: str
    admin: bool
    in_force: bool
    created_at: Seconds
    expires_at: Seconds | None = None
    used_at: Seconds | None = None
    revoked_at: Seconds | None = None


class TokensView(Struct, frozen=True, kw_only=True):
    """The newest first."""

    tokens: tuple[TokenView, ...]


class TenantView(Struct, frozen=True, kw_only=True):
    """A tenant's limits and use. Jobs count from their submission to their end, whether they wait or run."""

    id: str
    created_at: Seconds
    jobs_open: int
    jobs_open_max: int
    spec_bytes: Bytes
    spec_bytes_max: Bytes
    priority_max: int
    may_be_unpreemptible: bool
    idle_seconds_max: int
    chosen: Annotated[
        tuple[str, ...], Meta(description="Names of the limits that differ from the defaults of the settings.")
    ] = ()


class TenantsView(Struct, frozen=True, kw_only=True):
    tenants: tuple[TenantView, ...]


class TenantWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits to change; null: back to the default of the settings."""

    jobs_open_max: Annotated[int, Meta(ge=0, le=LIMIT_MAX)] | UnsetType | None = UNSET
    spec_bytes_max: Annotated[int, Meta(ge=0, le=LIMIT_MAX)] | UnsetType | None = UNSET
    priority_max: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] | UnsetType | None = UNSET
    may_be_unpreemptible: bool | UnsetType | None = UNSET
    idle_seconds_max: Annotated[int, Meta(ge=0, le=LIMIT_MAX)] | UnsetType | None = UNSET


class TokensRevoked(Struct, frozen=True, kw_only=True):
    revoked: int
