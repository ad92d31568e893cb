"""The paths of the gateway's resources, and their queries."""

from collections.abc import Mapping
from urllib.parse import quote


def job_path(job: str, rest: str = "") -> str:
    return f"/v1/jobs/{path_part(job)}{rest}"


def array_path(array: str, rest: str = "") -> str:
    return f"/v1/arrays/{path_part(array)}{rest}"


def path_part(text: str) -> str:
    """One part of a path, quoted."""
    return quote(text, safe="") or "-"


def without_empty(query: Mapping[str, str]) -> dict[str, str]:
    """A query without the parameters whose value is empty: the gateway's default applies to them."""
    return {name: value for name, value in query.items() if value}
