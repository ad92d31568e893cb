"""Who has access, in memory."""

from msgspec import structs

from libs.store import FILE_LABEL, Access, TokenKept
from libs.store.memory.times import micro


class Tokens:
    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[bytes, TokenKept] = {}

    async def access(self, token_hash: bytes, *, at: float) -> Access | None:
        token = self._tokens.get(token_hash)
        if token is None or token.revoked_at is not None:
            return None
        if token.expires_at is not None and token.expires_at <= micro(at):
            return None
        return Access(tenant=token.tenant, admin=token.admin)

    async def add_token(
        self, token_hash: bytes, *, tenant: str, admin: bool, label: str, at: float, expires_at: float | None = None
    ) -> None:
        assert len(token_hash) == 32, "the SHA-256 of a token has 32 bytes"
        ends = None if expires_at is None else micro(expires_at)
        new = TokenKept(tenant=tenant, label=label, admin=admin, created_at=micro(at), expires_at=ends)
        self._tokens.setdefault(token_hash, new)

    async def token_used(self, token_hash: bytes, *, at: float, not_within: float) -> None:
        token = self._tokens.get(token_hash)
        if token is not None and (token.used_at is None or token.used_at < micro(at - not_within)):
            self._tokens[token_hash] = structs.replace(token, used_at=micro(at))

    async def tokens(self, *, tenant: str | None = None, limit: int = 1000) -> list[TokenKept]:
        found = [token for token in self._tokens.values() if tenant in (None, token.tenant)]
        return sorted(found, key=lambda token: (-token.created_at, token.label))[:limit]

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
