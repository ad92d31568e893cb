"""The lost part of a stretch of GPU time. docs/accounting.md has the definition in words."""

from math import isfinite

from weft.domain.checkpoints import CHECKPOINTS_LABEL
from weft.domain.job import CauseCode, JobEvent
from weft.domain.quantity import duration_seconds
from weftd.gateway.thinking.accounting.stretches import EpochStretch

_C = CauseCode
PREEMPTED = frozenset({_C.PREEMPTED, _C.LENT, _C.QUOTA_RECLAIMED})
MOVED = frozenset(
    {
        *(_C.MOVED, _C.REQUEUE_ASKED, _C.GREW, _C.SHRANK, _C.PARTITIONED, _C.SCALE_ASKED, _C.SHARE_ASKED, _C.LOAD),
        *(_C.SIZE_FAILED, _C.OUTSCALED, _C.ROLLED_BACK, _C.UPSCALED, _C.RECLAIMED, _C.REBALANCED, _C.PAID_BACK),
    }
)
_THROWN_AWAY = frozenset({JobEvent.REQUEUED.value, JobEvent.RESTARTED.value, JobEvent.FAILED.value})


def kind_of(stretch: EpochStretch) -> str:
    """`preempted`, `moved` or `failed`: why the epoch ended before its job was done; empty: it did not."""
    if stretch.event not in _THROWN_AWAY:
        return ""
    code = CauseCode(stretch.code)
    return "preempted" if code in PREEMPTED else "moved" if code in MOVED else "failed"


def lost_since(stretch: EpochStretch) -> tuple[int, str]:
    """The time from which the work of the stretch was lost, up to its end, and the basis: `told` by the job, `assumed`
    from its specification, or `all` if nothing shows that it kept anything. The end of the stretch if nothing was
    lost."""
    if not kind_of(stretch):
        return stretch.ends, ""
    lasted = stretch.ends - stretch.began
    micros, basis = _micros(stretch, lasted)
    return stretch.ends - min(lasted, micros), basis


def _micros(stretch: EpochStretch, lasted: int) -> tuple[int, str]:
    """Length of the lost work at the end of a stretch, in microseconds, and its basis."""
    step, saved = stretch.told.get("step"), stretch.told.get("checkpoint")
    if step is not None and saved is not None and isfinite(step) and isfinite(saved):
        first = stretch.saved if isfinite(stretch.saved) else 0.0
        done, kept = step - first, min(saved, step) - first
        if done > 0:
            return round(lasted * min(1.0, max(0.0, (done - max(0.0, kept)) / done))), "told"
    on_stop, every = _checkpoints(stretch)
    if on_stop and stretch.asked:
        return 0, "assumed"
    return (lasted, "all") if every is None else (min(lasted, round(every * 1e6 / 2)), "assumed")


def _checkpoints(stretch: EpochStretch) -> tuple[bool, float | None]:
    """True if the job writes a checkpoint when it is stopped, and the seconds between its other checkpoints."""
    wanted = stretch.job.checkpoints
    if wanted is not None:
        return wanted.on_stop, None if wanted.every is None else duration_seconds(wanted.every)
    try:
        every = duration_seconds(stretch.job.labels.get(CHECKPOINTS_LABEL, ""))
    except ValueError:
        return False, None
    return every == 0, every or None
