"""The HTTP interface's one-time codes and sessions: how a browser signs in."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.spec import Token
from weft.messages.http import Seconds

Code = Annotated[str, Meta(max_length=512, description="Code of a link that `weft open` or `weft up` printed.")]


class CodeWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job: (
        Annotated[Token, Meta(description="Id or name of a service: the code opens it at a router, and nothing else.")]
        | None
    ) = None


class CodeMade(Struct, frozen=True, kw_only=True):
    """A one-time code, shown only in this answer. `job`: id of the job whose service it opens; empty: the dashboard."""

    code: str
    expires_at: Seconds
    job: str = ""


class SignInWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: Code | None = None
    verifier: (
        Annotated[
            str,
            Meta(min_length=43, max_length=128, description="Verifier of a command line, which then gets the token."),
        ]
        | None
    ) = None
    device_code: Annotated[str, Meta(max_length=4096, description="Code of the device flow.")] | None = None


class SessionMade(Struct, frozen=True, kw_only=True):
    """A session, whose token is in a cookie that scripts cannot read. `proof` goes with each request of it, in the
    header `X-Weft-Session`: no other page knows the proof."""

    id: str = ""
    tenant: str = ""
    admin: bool = False
    proof: str = ""
    expires_at: Seconds = 0.0
    token: Annotated[str, Meta(description="For a command line; a browser has it in its cookie.")] = ""
    pending: Annotated[bool, Meta(description="Status 202: the person has not confirmed the device yet.")] = False


class SessionView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session in force. `label`: the name of its token; `job`: the job whose service it opens, and nothing else.
    `used_at` is exact to a minute."""

    id: str
    tenant: str
    label: str
    admin: bool
    created_at: Seconds
    expires_at: Seconds
    job: str = ""
    used_at: Seconds | None = None
    person: str = ""
    current: Annotated[bool, Meta(description="True for the session of this request.")] = False


class SessionsView(Struct, frozen=True, kw_only=True):
    """The newest first."""

    sessions: tuple[SessionView, ...]


class IdentityView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The caller, by the token or the session of the request. `label`: of the token."""

    tenant: str
    admin: bool
    label: str = ""
    session: str = ""
    person: Annotated[str, Meta(description="Id of the person who signed in; empty: a token is used.")] = ""
    role: str = ""


class SessionEnded(Struct, frozen=True, kw_only=True):
    id: str
