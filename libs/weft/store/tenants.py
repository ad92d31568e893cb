"""Tenants, their tokens, and the allowances chosen for them, as the gateway stores them."""

from typing import Protocol

from msgspec import Struct

from weft.domain.quotas import Quota
from weft.domain.tenants import AllowanceChange, AllowanceChosen, Use

FILE_LABEL = "file-"
"""Labels of tokens that a gateway reads from a file begin so. It stores such a token at every start, so one that was
revoked must never be deleted: it would be in force again."""


class Access(Struct, frozen=True, kw_only=True):
    """The tenant, rights and allowance behind a token, whose `label` it has. `session`: the id of the session whose
    token it is; `job`: the job whose service it opens at a router, and nothing else; both are empty otherwise.
    `person`: the id of the person who signed in, with the `role` of a group of theirs; empty: a token is used."""

    tenant: str
    admin: bool = False
    chosen: AllowanceChosen = AllowanceChosen()
    label: str = ""
    session: str = ""
    job: str = ""
    person: str = ""
    role: str = ""

    @property
    def named(self) -> str:
        """The name of the person; empty: a token is used."""
        return self.label if self.person else ""


class TokenKept(Struct, frozen=True, kw_only=True):
    """What is stored of a token, except the token itself; times in seconds since 1970, None if there is none."""

    tenant: str
    label: str
    admin: bool
    created_at: float
    expires_at: float | None = None
    used_at: float | None = None
    revoked_at: float | None = None


class TenantKept(Struct, frozen=True, kw_only=True):
    """A tenant, the allowance chosen for it, and what it has open."""

    id: str
    created_at: float
    chosen: AllowanceChosen
    use: Use


class TenantStore(Protocol):
    async def access(self, token_hash: bytes, *, at: float) -> Access | None:
        """The rights of the token, if it is valid at that time."""

    async def add_token(
        self,
        token_hash: bytes,
        *,
        tenant: str,
        admin: bool,
        label: str,
        at: float,
        expires_at: float | None = None,
        label_is_new: bool = False,
    ) -> bool:
        """Store a token's hash, and its tenant if new. The same hash again changes nothing.

        False: nothing was stored. With `label_is_new`, also where the tenant has a token of that label in force.
        """

    async def token_used(self, token_hash: bytes, *, at: float, not_within: float) -> None:
        """Record that the token was used, unless that was recorded in the last `not_within` seconds."""

    async def tokens(self, *, tenant: str | None = None, limit: int = 1000) -> list[TokenKept]:
        """Tokens, the newest first; of one tenant or of all; revoked and expired ones included."""

    async def revoke_tokens(self, *, tenant: str, label: str, at: float) -> int:
        """Revoke the tenant's tokens of that label; returns how many."""

    async def forget_tokens(self, *, before: float) -> int:
        """Delete tokens revoked or expired before then; returns how many. Tokens of a file stay."""

    async def tenants(self, *, tenant: str | None = None, limit: int = 1000) -> list[TenantKept]:
        """The tenants, by name; or the one of that name."""

    async def change_tenant(self, tenant: str, change: AllowanceChange) -> None:
        """Change a tenant's allowance. An unknown tenant is not created."""


class QuotaStore(Protocol):
    async def quotas(self, *, pool: str | None = None) -> list[Quota]:
        """The quotas of a pool, or of all pools, by name."""

    async def set_quota(self, quota: Quota) -> None:
        """Store a quota, in place of its earlier form."""

    async def delete_quota(self, name: str, *, pool: str) -> bool:
        """Delete a quota; False: there was none."""
