"""The secrets of a sign-in at an identity provider, and the grants of its groups.

Pure. Nothing is stored for a sign-in in progress: state, nonce and PKCE's verifier are derived from one secret, which
the browser keeps in a cookie. So a state is valid only in the browser that began the sign-in.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from weft.domain.spec import TOKEN_PATTERN
from weft.domain.tenants import Role

SECRET = re.compile(r"[a-z0-9]{40}")
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
CLI_STATE = re.compile(r"[A-Za-z0-9_-]{16,128}")
NAME_CHARACTERS_MAX = 100
GROUPS_MAX = 1000
_matches_token = re.compile(TOKEN_PATTERN).fullmatch


class FlowError(ValueError):
    """A sign-in that is not valid, or grants nothing; the text tells the person why."""


class Flow(Struct, frozen=True, kw_only=True):
    """A sign-in in progress. `port`, `challenge`, `cli_state`: of the command line that waits on 127.0.0.1; 0: a
    browser signs in to the dashboard."""

    secret: str
    port: int = 0
    challenge: str = ""
    cli_state: str = ""

    @property
    def state(self) -> str:
        return self._made("state")

    @property
    def nonce(self) -> str:
        return self._made("nonce")

    @property
    def verifier(self) -> str:
        return self._made("verifier")

    def is_of(self, state: str) -> bool:
        return hmac.compare_digest(self.state.encode(), state.encode())

    def _made(self, what: str) -> str:
        return hashlib.sha256(f"{what} of {self.secret}".encode()).hexdigest()


def cookie_of(flow: Flow) -> str:
    return f"{flow.secret}.{flow.port}.{flow.challenge}.{flow.cli_state}"


def flow_of(cookie: str) -> Flow | None:
    """The flow in a cookie; None if the cookie is not valid."""
    parts = cookie.split(".")
    if len(parts) != 4 or not SECRET.fullmatch(parts[0]) or not parts[1].isdecimal() or len(parts[1]) > 5:
        return None
    flow = Flow(secret=parts[0], port=int(parts[1]), challenge=parts[2], cli_state=parts[3])
    return flow if not flow.port or (CHALLENGE.fullmatch(parts[2]) and CLI_STATE.fullmatch(parts[3])) else None


def challenge_of(verifier: str) -> str:
    """The challenge S256 of PKCE (RFC 7636)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


class Grant(Struct, frozen=True):
    """The tenant and the role of a group's members. Everybody who signs in is in the group `*`."""

    group: str
    tenant: str
    role: Role


def grant_of(text: str) -> Grant:
    """`GROUP=TENANT:ROLE`. Raises ValueError."""
    group, _, rest = text.rpartition("=")
    tenant, _, role = rest.partition(":")
    if not group or not _matches_token(tenant) or role not in [each.value for each in Role]:
        roles = ", ".join(each.value for each in Role)
        raise ValueError(f"{text[:100]} is no GROUP=TENANT:ROLE; the roles are {roles}")
    return Grant(group, tenant, Role(role))


def granted(groups: Sequence[str], grants: Sequence[Grant]) -> Grant:
    """The first grant for one of the groups. Raises FlowError."""
    for grant in grants:
        if grant.group == "*" or grant.group in groups:
            return grant
    raise FlowError("none of your groups may use this cluster: ask its administrator")


class Claimed(Struct, frozen=True, kw_only=True):
    """The claims of an ID token that was verified."""

    issuer: str
    subject: str
    name: str
    groups: tuple[str, ...]


def claimed(claims: dict[str, object], *, name_claim: str, groups_claim: str) -> Claimed:
    """Decode verified claims. Raises FlowError for claims without a subject, or of wrong types."""
    try:
        subject = msgspec.convert(claims.get("sub"), str)
        groups = claims.get(groups_claim, ())
        listed = msgspec.convert([groups] if isinstance(groups, str) else groups, tuple[str, ...])
    except msgspec.ValidationError:
        raise FlowError(f"the provider's ID token has a sub or a {groups_claim} of the wrong type") from None
    if not subject or len(subject) > 255 or len(listed) > GROUPS_MAX:
        raise FlowError(f"the provider's ID token has no sub, or more than {GROUPS_MAX} groups")
    verified = claims.get("email_verified", True) is not False or name_claim != "email"
    wanted = claims.get(name_claim) if verified else None
    name = next(
        (one for one in (wanted, claims.get("preferred_username"), subject) if isinstance(one, str) and one), ""
    )
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)[:NAME_CHARACTERS_MAX]
    return Claimed(issuer=str(claims["iss"]), subject=subject, name=shown, groups=listed)
