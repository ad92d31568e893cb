"""For how long a run has shown no sign of work: no output, no progress, and a use of its GPUs that does not change.

GPUs that idle and GPUs that are wholly busy both count: a rank that waits for another one in a collective keeps its GPU
busy. A run that reads or writes files or the network, as one that prepares its data does, works.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from weft.domain.idling import IDLE_USE_MAX
from weft.messages.signals import NodeSampled, RunSample
from weftd.executor.runs import RunKey

BUSY_LEAST = 0.95  # use between IDLE_USE_MAX and this is work
FLAT = 0.02  # by so much a use may differ and counts as the same
BYTES_RATE = 1 << 20  # a run that moves more per second works
STEPS = 10.0  # a run is still only after this many of its steps would have ended
DUMP_SECONDS = 30.0  # in which output may be the stacks that were asked for
SAMPLES_SECONDS_MAX = 30.0  # without samples for so long, nothing is known
REPORTED_SECONDS = 60.0  # whole multiples of them are reported: the report of a node changes rarely


class Still(Struct, frozen=True):
    """`seconds`: without a sign of work, in whole steps; 0: it works, or nothing is known. `use`: that of its GPUs."""

    seconds: int = 0
    use: float = 0.0


class _Watched(Struct):
    since: float
    used_at: float
    log_bytes: int = -1
    progress: Mapping[str, float] = {}
    use: float | None = None
    step_seconds: float = 0.0
    dumps_until: float = -math.inf


class StillWatch:
    """Times are of one clock that does not jump. `step_seconds`: times are reported in whole multiples of them."""

    def __init__(self, step_seconds: float = REPORTED_SECONDS) -> None:
        self._step_seconds = step_seconds
        self._watched: dict[RunKey, _Watched] = {}
        self._sampled_at: float | None = None

    def keep(self, keys: Collection[RunKey]) -> None:
        """Forget all other runs."""
        self._watched = {key: watched for key, watched in self._watched.items() if key in keys}

    def wrote(
        self, key: RunKey, now: float, *, log_bytes: int, progress: Mapping[str, float], step_seconds: float = 0.0
    ) -> None:
        """Take in the size of the run's log and its newest progress."""
        watched = self._watched.setdefault(key, _Watched(now, now))
        if progress != watched.progress or (log_bytes != watched.log_bytes and now >= watched.dumps_until):
            watched.since = now
        watched.log_bytes, watched.progress = log_bytes, dict(progress)
        watched.step_seconds = step_seconds or watched.step_seconds

    def dumps(self, key: RunKey, now: float) -> None:
        """The run is asked for its stacks: the output that follows is no sign of work."""
        self._watched.setdefault(key, _Watched(now, now)).dumps_until = now + DUMP_SECONDS

    def sampled(self, told: NodeSampled, gpus_of: Mapping[RunKey, Sequence[int]], now: float) -> None:
        """Take in a sample of the node. `gpus_of`: the GPUs of each run."""
        silent = self._sampled_at is None or now - self._sampled_at > SAMPLES_SECONDS_MAX
        self._sampled_at = now
        uses = {gpu.index: gpu.utilisation for gpu in told.gpus}
        samples = {RunKey(run.job_id, run.epoch, run.rank): run for run in told.runs}
        for key, gpus in gpus_of.items():
            watched = self._watched.setdefault(key, _Watched(now, now))
            known = [use for gpu in gpus if (use := uses.get(gpu)) is not None]
            use = sum(known) / len(known) if known and len(known) == len(gpus) else None
            flat = use is not None and all(each <= IDLE_USE_MAX or each >= BUSY_LEAST for each in known)
            same = use is not None and (watched.use is None or abs(use - watched.use) <= FLAT)
            if not (flat and same) or _moves(samples.get(key)):
                watched.since = now
            if silent or not _is_idle(use, known, samples.get(key)):
                watched.used_at = now
            watched.use = use if not same or watched.use is None else watched.use

    def still(self, key: RunKey, now: float) -> Still:
        watched = self._watched.get(key)
        unknown = self._sampled_at is None or now - self._sampled_at > SAMPLES_SECONDS_MAX
        if watched is None or watched.use is None or unknown:
            return Still()
        seconds = now - watched.since
        if seconds < max(self._step_seconds, STEPS * watched.step_seconds):
            return Still()
        return Still(self._whole(seconds), round(watched.use, 2))

    def idle_seconds(self, key: RunKey, now: float) -> int:
        """For how long a run has used none of its GPUs, in whole steps; 0: it uses them, or its use is unknown."""
        watched = self._watched.get(key)
        if watched is None or self._sampled_at is None or now - self._sampled_at > SAMPLES_SECONDS_MAX:
            return 0
        return self._whole(now - watched.used_at)

    def _whole(self, seconds: float) -> int:
        return int(seconds // self._step_seconds * self._step_seconds)


def _is_idle(use: float | None, uses: Sequence[float], sample: RunSample | None) -> bool:
    """Is no GPU of a run used? A run with a share of a GPU is judged by its own use of that, if its node knows."""
    if sample is not None and sample.share is not None and sample.share.used is not None:
        return sample.share.used <= IDLE_USE_MAX
    return use is not None and max(uses) <= IDLE_USE_MAX


def _moves(sample: RunSample | None) -> bool:
    if sample is None:
        return False
    rates = (
        sample.disk_read_rate,
        sample.disk_write_rate,
        sample.network_receive_rate,
        sample.network_send_rate,
    )
    return any(rate is not None and rate > BYTES_RATE for rate in rates)
