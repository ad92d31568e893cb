"""Tenants and their tokens, in memory."""

from msgspec import UNSET, structs

from tests.support.doubles.store.jobs import MemoryJobs
from tests.support.doubles.store.times import micro
from weft.domain.tenants import NAMES, AllowanceChange, AllowanceChosen, Use
from weft.store.tenants import FILE_LABEL, Access, TenantKept, TokenKept


class MemoryTenants(MemoryJobs):
    """What `TenantStore` promises."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[bytes, TokenKept] = {}
        self._tenants: dict[str, TenantKept] = {}  # what each has open is computed when it is read

    async def access(self, token_hash: bytes, *, at: float) -> Access | None:
        token = self._tokens.get(token_hash)
        if token is None or token.revoked_at is not None:
            return None
        if token.expires_at is not None and token.expires_at <= micro(at):
            return None
        chosen = self._tenants[token.tenant].chosen
        return Access(tenant=token.tenant, admin=token.admin, label=token.label, chosen=chosen)

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
        assert len(token_hash) == 32, "the SHA-256 of a token has 32 bytes"
        ends = None if expires_at is None else micro(expires_at)
        new = TokenKept(tenant=tenant, label=label, admin=admin, created_at=micro(at), expires_at=ends)
        born = TenantKept(id=tenant, created_at=micro(at), chosen=AllowanceChosen(), use=Use())
        self._tenants.setdefault(tenant, born)
        taken = label_is_new and any(_is_in_force(token, tenant, label, micro(at)) for token in self._tokens.values())
        if taken or token_hash in self._tokens:
            return False
        self._tokens[token_hash] = new
        return True

    async def token_used(self, token_hash: bytes, *, at: float, not_within: float) -> None:
        token = self._tokens.get(token_hash)
        if token is not None and (token.used_at is None or token.used_at < micro(at - not_within)):
            self._tokens[token_hash] = structs.replace(token, used_at=micro(at))

    async def tokens(self, *, tenant: str | None = None, limit: int = 1000) -> list[TokenKept]:
        found = [token for token in self._tokens.values() if tenant in (None, token.tenant)]
        return sorted(found, key=lambda token: (-token.created_at, token.label))[:limit]

    async def change_tenant(self, tenant: str, change: AllowanceChange) -> None:
        if (kept := self._tenants.get(tenant)) is not None:
            changes = {name: value for name in NAMES if (value := getattr(change, name)) is not UNSET}
            self._tenants[tenant] = structs.replace(kept, chosen=structs.replace(kept.chosen, **changes))

    async def revoke_tokens(self, *, tenant: str, label: str, at: float) -> int:
        found = [
            (token_hash, token)
            for token_hash, token in self._tokens.items()
            if (token.tenant, token.label, token.revoked_at) == (tenant, label, None)
        ]
        for token_hash, token in found:
            self._tokens[token_hash] = structs.replace(token, revoked_at=micro(at))
        return len(found)

    async def forget_tokens(self, *, before: float) -> int:
        gone = [
            token_hash
            for token_hash, token in self._tokens.items()
            if not token.label.startswith(FILE_LABEL)
            and any(at is not None and at < micro(before) for at in (token.revoked_at, token.expires_at))
        ]
        for token_hash in gone:
            del self._tokens[token_hash]
        return len(gone)

    async def tenants(self, *, tenant: str | None = None, limit: int = 1000) -> list[TenantKept]:
        found = [kept for name, kept in sorted(self._tenants.items()) if tenant in (None, name)]
        return [structs.replace(kept, use=self._use(kept.id)) for kept in found[:limit]]


def _is_in_force(token: TokenKept, tenant: str, label: str, at: float) -> bool:
    ended = token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= at)
    return (token.tenant, token.label, ended) == (tenant, label, False)
