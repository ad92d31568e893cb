"""Decides when a new leader, or a leader whose store went back in time, may place jobs and start runs.

Until then the leader's answers keep the runs that nodes have, and start none. Why:
docs/decisions/0006-detect-a-restored-database.md.
"""

from weft.domain.job import Cause, CauseCode
from weft.domain.quantity import duration_text


class LeaderWarmup:
    """Begins with a load from the store at `now`; `went_back_at`: when the leader found that the store went back."""

    def __init__(
        self, *, now: float, settle_seconds: float, lease_seconds: float, went_back_at: float | None = None
    ) -> None:
        self._heard_until = now + settle_seconds
        self._ended_at = None if went_back_at is None else went_back_at + lease_seconds
        self.begins_at = now if self._ended_at is None else max(now, self._ended_at)

    def past(self, now: float) -> bool:
        """Return True if the load is so old that no earlier report can still arrive."""
        return now >= self._heard_until

    def why_not_yet(self, now: float, *, unheard: int) -> Cause | None:
        """Why nothing is placed and nothing started now; `unheard`: how many nodes have not reported since the load."""
        if self._ended_at is not None and now < self._ended_at:
            left = self._ended_at - now
            sentence = (
                "no job starts yet: the store was restored from a backup, and runs that it does not know must end"
                f" first ({duration_text(left)} more)"
            )
            return Cause(code=CauseCode.STORE_RESTORED, sentence=sentence, numbers={"until": self._ended_at})
        if unheard and now < self._heard_until:
            sentence = f"the scheduler has just begun to lead, and {unheard} of its nodes have not reported yet"
            return Cause(code=CauseCode.NO_NODES, sentence=sentence, numbers={"nodes": float(unheard)})
        return None
