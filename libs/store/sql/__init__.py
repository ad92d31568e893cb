"""The SQL, by name: each statement in queries.sql begins with `-- name: what_it_does`."""

import re
from importlib.resources import files


def _read() -> dict[str, str]:
    text = files(__package__).joinpath("queries.sql").read_text()
    named = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(named[::2], (body.strip().rstrip(";") for body in named[1::2]), strict=True))


QUERIES = _read()
