"""Tokens: the tenant and the last use of each, never the tokens themselves."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from weft.messages.http import TokenView
from weftd.cli.drawing.look import Look, plain, table
from weftd.cli.words import ago, span


def token_table(tokens: Sequence[TokenView], look: Look) -> Table:
    made = table("TENANT", "LABEL", "MAY", "STATE", "CREATED", "USED", "EXPIRES", look=look, flexible="LABEL")
    for token in tokens:
        made.add_row(
            plain(token.tenant, "bold"),
            plain(token.label),
            "everything" if token.admin else "its own jobs",
            state(token),
            ago(look.now - token.created_at),
            "never" if token.used_at is None else ago(look.now - token.used_at),
            expiry(token, look),
        )
    return made


def state(token: TokenView) -> Text:
    if token.revoked_at is not None:
        return Text("revoked", "dim")
    return Text("in force", "green") if token.in_force else Text("expired", "dim")


def expiry(token: TokenView, look: Look) -> str:
    if token.expires_at is None:
        return "never"
    left = token.expires_at - look.now
    return f"in {span(left)}" if left > 0 else ago(-left)
