"""Secrets: their names, and when their values were stored."""

from collections.abc import Sequence

from rich.table import Table

from weft.messages.secrets import SecretView
from weftd.cli.drawing.look import Look, plain, table
from weftd.cli.words import ago


def secret_table(secrets: Sequence[SecretView], look: Look) -> Table:
    made = table("NAME", "STORED", "REPLACED", look=look, flexible="NAME")
    for one in secrets:
        replaced = ago(look.now - one.updated_at) if one.updated_at > one.created_at else ""
        made.add_row(plain(one.name, "bold"), ago(look.now - one.created_at), replaced)
    return made
