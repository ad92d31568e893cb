"""One-time codes of links, and the sessions that browsers keep in a cookie, as the gateway stores them."""

from typing import Protocol

from msgspec import Struct

from weft.store.audit import Actor


class SignIn(Struct, frozen=True, kw_only=True):
    """A code or a session that was made just now; times in seconds since 1970."""

    id: str
    tenant: str
    admin: bool
    expires_at: float


class SessionKept(Struct, frozen=True, kw_only=True):
    """A session in force. `label`: the name of its token; `job`: the job whose service it opens, and nothing else; it
    is empty for a session that opens all that the token opens."""

    id: str
    tenant: str
    label: str
    admin: bool
    job: str
    created_at: float
    expires_at: float
    used_at: float | None = None
    person: str = ""


class SignInStore(Protocol):
    """Each write adds its entry to the audit log, in the same statement."""

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
        """Store a one-time code's hash. `by`: hash of the token, or of the session, that it is made with: neither the
        code nor its session outlives that. None: `by` is not in force, or its tenant has `most` codes and sessions."""

    async def add_session(
        self, session_hash: bytes, *, by: bytes, at: float, expires_at: float, most: int, actor: Actor
    ) -> SignIn | None:
        """Store the hash of a session's token; as `add_code`."""

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
        """Exchange a code for a session, once. None: it is unknown, was used, is too old or is for another job."""

    async def sessions(self, *, tenant: str | None, at: float, limit: int, person: str = "") -> list[SessionKept]:
        """The sessions in force, the newest first; of one tenant or of all, and of one `person` if one is given."""

    async def end_session(
        self, session_id: str, *, tenant: str | None, at: float, actor: Actor, person: str = ""
    ) -> str | None:
        """End a session; returns its tenant. None: there is none, or it is of another tenant, or another `person`."""
