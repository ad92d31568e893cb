"""The HTTP interface's audit log."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.messages.http import Seconds


class AuditView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry. `outcome`: `asked` before an act is done, `done` of a sign-in or a sign-out, `refused`; a request that
    was asked for and then refused has two entries with one `request`. `who`: the label of the token or the name of the
    person, `person` the id of the person, empty for a token; `session` what a browser was signed in by, `source` the
    address."""

    seq: int
    at: Seconds
    outcome: str
    act: str
    tenant: str = ""
    who: str = ""
    session: str = ""
    source: str = ""
    detail: str = ""
    request: str = ""
    person: str = ""


class AuditLogView(Struct, frozen=True, kw_only=True):
    """A page of the log, in order. Entries behind it: `after=` its `last`; before it: `before=` its `first`."""

    entries: tuple[AuditView, ...]
    first: Annotated[int, Meta(description="0: the page is empty.")] = 0
    last: int = 0
