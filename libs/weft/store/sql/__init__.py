"""The SQL, by name: each statement in queries.sql begins with `-- name: what_it_does`.

Text below `-- columns: thing` or `-- part: thing` is not a statement: `{thing}` stands for it in statements.
"""

import re
from importlib.resources import files

_HEADING = re.compile(r"^-- (name|columns|part): (\w+)\n", re.MULTILINE)


def _read() -> dict[str, str]:
    parts = _HEADING.split(files(__package__).joinpath("queries.sql").read_text())[1:]
    statements: dict[str, str] = {}
    columns: dict[str, str] = {}
    for what, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        statement, _, rest = body.partition(";")
        after = [line for line in rest.splitlines() if line and not line.startswith("--")]
        if after:
            raise ValueError(f"{name}: a semicolon ends it before {after[0]!r}")
        (statements if what == "name" else columns)[name] = statement.strip()
    return {name: _filled(text, columns) for name, text in statements.items()}


def _filled(statement: str, columns: dict[str, str]) -> str:
    for name, text in columns.items():
        statement = statement.replace(f"{{{name}}}", text)
    return statement


QUERIES = _read()
