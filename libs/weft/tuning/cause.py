"""What holds a job back as a whole: in synchronous training the waiting ranks look idle, and another rank is the cause.

A verdict stands once two windows in a row agree; until then the previous verdict stands, and at first none.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct, structs

from weft.samples.thresholds import THROTTLED, UNTHROTTLED
from weft.tuning.verdict import (
    HELD_BACK,
    THREAD_BUSY,
    USE_HIGH,
    Reading,
    Verdict,
    read,
)
from weft.tuning.window import JobWindow, Window

AGREE = 2  # windows in a row
EXCHANGE_PART = 0.5  # of a step: a rank that sends and receives for longer is network-bound, if nothing else is found
EGRESS_SOME = 0.4  # of its cap: a rank that sends in bursts meets the cap without filling it


class Judged(Struct, frozen=True, kw_only=True):
    """One window: `job` is what holds the job back; `rank` and `role` are where (-1 and "": nowhere in particular)."""

    job: Reading
    ranks: dict[int, Reading]
    rank: int = -1
    role: str = ""


def judge(window: JobWindow) -> Judged:
    readings = {rank.rank: read(rank, _peers_step(rank, window.ranks)) for rank in window.ranks}
    by_rank = {rank.rank: rank for rank in window.ranks}
    held = [rank for rank, reading in readings.items() if reading.code in HELD_BACK]
    if not held:
        found = _by_exchange(window.ranks, readings)
        if found is not None:
            readings[found[0]] = found[1]
            held = [found[0]]
    if held:
        worst = max(held, key=lambda rank: (readings[rank].weight, -rank))
        return _held_back(worst, by_rank, readings)
    return Judged(job=_all_free(window.ranks, readings), ranks=readings)


class Stood(Struct, frozen=True, kw_only=True):
    """The verdict on a rank or a job. `times`: how many windows in a row agree; `since`: from when on."""

    reading: Reading
    rank: int
    role: str
    times: int
    since: float


class StandingVerdicts:
    """The verdicts that stand on one job: by rank, and under -1 that on the whole job."""

    def __init__(self) -> None:
        self.stands: dict[int, Stood] = {}
        self._latest: dict[int, Stood] = {}

    def take(self, judged: Judged, *, at: float) -> None:
        self._take(-1, judged.job, judged.rank, judged.role, at)
        for rank, reading in judged.ranks.items():
            self._take(rank, reading, rank, "", at)

    @property
    def job(self) -> Stood | None:
        return self.stands.get(-1)

    def _take(self, subject: int, reading: Reading, rank: int, role: str, at: float) -> None:
        last = self._latest.get(subject)
        if last is not None and (last.reading.code, last.role) == (reading.code, role):
            now = structs.replace(last, reading=reading, rank=rank, times=last.times + 1)
        else:
            now = Stood(reading=reading, rank=rank, role=role, times=1, since=at)
        self._latest[subject] = now
        if now.times >= AGREE:
            self.stands[subject] = now


def _peers_step(window: Window, ranks: Sequence[Window]) -> float | None:
    peers = [
        other.step_seconds
        for other in ranks
        if other.role == window.role and other.rank != window.rank and other.step_seconds
    ]
    return median(peers) if peers else None


def _held_back(worst: int, by_rank: Mapping[int, Window], readings: dict[int, Reading]) -> Judged:
    """Ranks that wait for `worst` count as healthy, not over-provisioned: they need their CPU once it is faster."""
    cause, role = readings[worst], by_rank[worst].role
    others = {
        rank: structs.replace(
            reading, code=Verdict.HEALTHY, sentence=f"waits for {role} rank {worst}: {reading.sentence}"
        )
        if reading.code is Verdict.OVER_PROVISIONED
        else reading
        for rank, reading in readings.items()
    }
    alike = sum(reading.code is cause.code and by_rank[rank].role == role for rank, reading in readings.items())
    more = f", and {alike - 1} more of its role" if alike > 1 else ""
    sentence = f"{role} rank {worst}{more} holds it back: {cause.sentence}"
    numbers = {**cause.numbers, "rank": float(worst), "alike": float(alike)}
    return Judged(job=structs.replace(cause, sentence=sentence, numbers=numbers), ranks=others, rank=worst, role=role)


def _by_exchange(ranks: Sequence[Window], readings: Mapping[int, Reading]) -> tuple[int, Reading] | None:
    """The rank to blame where no rank is held back by itself, and most of a step is sending and receiving."""
    parts = {rank.rank: part for rank in ranks if (part := rank.phase_part("t_push", "t_pull")) is not None}
    if not parts or max(parts.values()) < EXCHANGE_PART:
        return None
    if any((rank.cpu_throttled or 0.0) >= THROTTLED or (rank.use_part or 0.0) >= USE_HIGH for rank in ranks):
        return None
    part = max(parts.values())
    for rank in ranks:
        busy = rank.busiest_thread or 0.0
        if busy >= THREAD_BUSY and (rank.cpu_throttled or 0.0) < UNTHROTTLED:
            sentence = f"one thread of it is busy {busy:.0%} of the time: more replicas would help, more CPUs would not"
            return rank.rank, Reading(
                code=Verdict.LAUNCH_BOUND, sentence=sentence, numbers={"busiest_thread": busy}, weight=part
            )
    capped = {rank.rank: (rank.network_send_rate or 0.0) / rank.egress for rank in ranks if rank.egress}
    sender = max(capped, key=lambda rank: (capped[rank], -rank), default=-1)
    if sender < 0 or capped[sender] < EGRESS_SOME:
        sender = max(parts, key=lambda rank: (parts[rank], -rank))
    numbers = {"exchange_part": round(part, 6), "part_used": round(capped.get(sender, 0.0), 6)}
    sentence = f"{part:.0%} of each step is spent in sending and receiving"
    return sender, Reading(code=Verdict.NETWORK_BOUND, sentence=sentence, numbers=numbers, weight=part)


def _all_free(ranks: Sequence[Window], readings: Mapping[int, Reading]) -> Reading:
    """The job's reading where no rank is held back."""
    codes = {reading.code for reading in readings.values()}
    if codes == {Verdict.UNKNOWN} or not readings:
        return Reading(code=Verdict.UNKNOWN, sentence="too few measurements of its ranks")
    for code, words in (
        (Verdict.OVER_PROVISIONED, "leave CPU unused"),
        (Verdict.GPU_BOUND, "keep their GPUs busy"),
    ):
        if code in codes:
            alike = [rank for rank in ranks if readings[rank.rank].code is code]
            first = readings[alike[0].rank]
            sentence = f"{len(alike)} of {len(ranks)} ranks {words}: rank {alike[0].rank} {first.sentence}"
            return structs.replace(first, sentence=sentence, numbers={**first.numbers, "alike": float(len(alike))})
    return Reading(code=Verdict.HEALTHY, sentence="none of its measurements shows a bottleneck")
