"""What an audit finds."""

from msgspec import Struct


class Finding(Struct, frozen=True, kw_only=True):
    """Something that is wrong, or was undone by a restore: with which job, and when (boot seconds)."""

    kind: str
    job_id: str
    sentence: str
    at: float = 0.0
    count: int = 1
