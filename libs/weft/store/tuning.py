"""What the reallocator keeps of running jobs, and asks of the scheduler."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from weft.domain.job import Cause
from weft.domain.sizes import RestartCost
from weft.domain.sweeps import RungReached
from weft.messages.asks import Reshare, Scale, Tune


class Envelope(Struct, frozen=True, kw_only=True):
    """The knowledge of a job's tuner in one epoch: its `state` as JSON, which only the tuner reads."""

    job_id: str
    pool: str
    epoch: int
    state: bytes


class TuningStore(Protocol):
    async def envelopes(self, *, pool: str) -> list[Envelope]:
        """The envelopes of jobs that are not final."""

    async def save_envelope(self, envelope: Envelope, *, at: float) -> None:
        """Store the envelope without an ask."""

    async def drop_envelopes(self, *, pool: str) -> int:
        """Delete the envelopes of final jobs; returns how many."""

    async def save_restart_costs(self, costs: Sequence[RestartCost], *, pool: str) -> None:
        """Keep each cost that is newer than the stored one of its workload, and add up how many were measured. At most
        one cost of a workload."""

    async def restart_costs(self, *, pool: str, limit: int) -> list[RestartCost]:
        """The newest costs, the newest first."""

    async def forget_restart_costs(self, *, pool: str, before: float, keep: int) -> int:
        """Delete costs from before then, and all but the `keep` newest ones; returns how many."""

    async def ask_tune(self, envelope: Envelope, tune: Tune, *, at: float) -> bool:
        """Store the envelope and ask for other limits, in one statement. False, and nothing is written: the job does
        not run in that epoch, or the last ask of its kind is not done yet."""

    async def ask_scale(self, envelope: Envelope, scale: Scale, *, at: float) -> bool:
        """Store the envelope and ask for another size, in one statement. False, and nothing is written: the job does
        not run in that epoch, or the last ask for its size by this is not done yet."""

    async def ask_sizes(self, sizes: Mapping[str, Scale], *, pool: str, at: float) -> list[str]:
        """Ask for the sizes of several jobs; returns the jobs asked for. A job that is over, or whose last ask by this
        is not done yet, is left out."""

    async def ask_shares(self, shares: Mapping[str, Reshare], *, pool: str, at: float) -> list[str]:
        """Ask for other shares of GPUs for several jobs; returns the jobs asked for. A job that does not run, or whose
        last ask by this is not done yet, is left out."""

    async def rungs(self, arrays: Sequence[str]) -> list[RungReached]:
        """Values that elements of these arrays reported so far."""

    async def reach_rung(self, reached: RungReached, *, pool: str, why: Cause | None, at: float) -> bool:
        """Store what an element reported and, with a cause, ask to cancel it, in one statement. False, and nothing is
        written: that is known already, or there is no such element in the pool."""
