"""One-time codes and sessions on a real Postgres."""

from weft.store.asking import Asking, Row
from weft.store.audit import Actor
from weft.store.sign_ins import SessionKept, SignIn


class PostgresSignIns:
    """Implements `SignInStore` on Postgres."""

    asking: Asking

    async def add_code(
        self,
        code_hash: bytes,
        *,
        by: bytes,
        job: str,
        at: float,
        expires_at: float,
        session_ends_at: float,
        most: int,
        actor: Actor,
    ) -> SignIn | None:
        given = (code_hash, "code", by, job, at, expires_at, session_ends_at, most)
        return sign_in_of(await self.asking.row("add_sign_in", *given, *_written(actor)))

    async def add_session(
        self, session_hash: bytes, *, by: bytes, at: float, expires_at: float, most: int, actor: Actor
    ) -> SignIn | None:
        given = (session_hash, "session", by, "", at, expires_at, None, most)
        return sign_in_of(await self.asking.row("add_sign_in", *given, *_written(actor)))

    async def redeem_code(
        self,
        code_hash: bytes,
        session_hash: bytes,
        *,
        job: str,
        at: float,
        source: str,
        request: str = "",
        challenge: str = "",
    ) -> SignIn | None:
        return sign_in_of(
            await self.asking.row("redeem_code", code_hash, session_hash, job, at, source, request, challenge)
        )

    async def sessions(self, *, tenant: str | None, at: float, limit: int, person: str = "") -> list[SessionKept]:
        return [SessionKept(**dict(row)) for row in await self.asking.rows("sessions", tenant, at, limit, person)]

    async def end_session(
        self, session_id: str, *, tenant: str | None, at: float, actor: Actor, person: str = ""
    ) -> str | None:
        by = (actor.tenant, *_written(actor), person, actor.person)
        row = await self.asking.row("end_session", session_id, tenant, at, *by)
        return None if row is None else str(row["tenant"])


def sign_in_of(row: Row | None) -> SignIn | None:
    return None if row is None else SignIn(**{name: row[name] for name in SignIn.__struct_fields__})


def _written(actor: Actor) -> tuple[str, str, str, str]:
    return actor.who, actor.session, actor.source, actor.request
