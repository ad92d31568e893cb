"""The state machine of one GPU or node. Every state has a cause, numbers and an exit.

    sign            healthy, suspect, probation         quarantined          broken
    of a suspect    suspect                             stays                stays
    of a quarantine quarantined; the third time broken  stays                stays
    of a break      broken                              broken               stays

Without a sign a suspect is healthy again after a time that doubles with each quarantine before. A quarantine turns into
probation once the sign is gone for `clean_seconds` and, after most signs, a reset was seen; a probation ends well
after a time that doubles likewise. A person returns what is broken.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, structs

from weft.domain.health import HealthRecord, HealthState
from weft.domain.quantity import duration_text
from weft.health.catalogue import Verdict, code_of_xid, severity, verdict_of

_S = HealthState
OFFENCES_MAX = 3  # quarantines within `offences_seconds` after which a GPU is broken


class HealthTimes(Struct, frozen=True, kw_only=True):
    """In seconds."""

    clean_seconds: float = 30.0  # without a sign, before a quarantine turns into probation
    suspect_seconds: float = 900.0  # without a sign, before a suspect is healthy
    probation_seconds: float = 1800.0
    longest_seconds: float = 48 * 3600.0  # that a probation or a suspicion lasts
    offences_seconds: float = 14 * 86400.0  # for so long a quarantine counts


class Reading(Struct, frozen=True, kw_only=True):
    """The signs of one GPU (`gpu` None: of the node), as its node reported them last.

    `xids`: counts by number since `boot`, the start of the node's telemetry; `resets`: the resets since then. `levels`:
    the signs that are there now, each with its number.
    """

    node_id: str
    gpu: int | None = None
    uuid: str = ""
    xids: Mapping[str, int] = {}
    resets: int = 0
    levels: Mapping[str, float] = {}
    detail: str = ""
    boot: str = ""
    node_boot: str = ""


class _Sign(Struct, frozen=True):
    code: str
    verdict: Verdict
    number: float
    new: bool  # it happened since the last judgement, and is not only still there


def judged(
    known: HealthRecord | None, reading: Reading, now: float, times: HealthTimes, *, may_take: Callable[[], bool]
) -> HealthRecord | None:
    """The state after a reading; None: healthy, and nothing worth keeping. `may_take`: may another one of the pool be
    taken out of use? It is asked once at most, and True is acted on."""
    if known is not None and known.uuid != reading.uuid:
        known = None  # another GPU has this index now
    sign = _worst(known, reading)
    if sign is not None:
        return _sick(known, reading, sign, now, times, may_take)
    return None if known is None else _clean(known, reading, now, times, may_take)


def returned(known: HealthRecord, by: str, now: float, times: HealthTimes) -> HealthRecord:
    """Put a GPU on probation for a person, whatever it had. A sign that is still there takes it out of use again."""
    lasts = _doubled(times.probation_seconds, known.offences, now, times)
    return structs.replace(
        known,
        state=_S.PROBATION,
        code="returned",
        sentence=f"returned by {by}",
        exit=f"healthy after {duration_text(lasts)} without a sign",
        numbers={},
        since=now,
        clean_since=now,
        due=False,
        lost=False,
        needs_reset=False,
    )


def _worst(known: HealthRecord | None, reading: Reading) -> _Sign | None:
    found = [*_new_xids(known, reading), *_levels(reading)]
    return max(found, key=lambda sign: (severity(sign.verdict), sign.new, sign.code), default=None)


def _new_xids(known: HealthRecord | None, reading: Reading) -> Iterable[_Sign]:
    before = known.xids if known is not None and known.boot == reading.boot else {}
    for xid, count in reading.xids.items():
        code = code_of_xid(xid)
        if count > before.get(xid, 0) and (verdict := verdict_of(code)) is not None:
            yield _Sign(code, verdict, float(count - before.get(xid, 0)), True)


def _levels(reading: Reading) -> Iterable[_Sign]:
    for code, number in reading.levels.items():
        if (verdict := verdict_of(code)) is not None:
            yield _Sign(code, verdict, number, False)


def _sick(
    known: HealthRecord | None,
    reading: Reading,
    sign: _Sign,
    now: float,
    times: HealthTimes,
    may_take: Callable[[], bool],
) -> HealthRecord:
    before = known or HealthRecord(gpu=reading.gpu, uuid=reading.uuid, since=now)
    again = sign.new and sign.verdict.resets  # a reset before it is not the one that it needs
    out = structs.replace(_seen(before, reading) if again else _counted(before, reading), clean_since=None)
    if before.state is _S.BROKEN or (before.due and not _worse(before, sign)):
        return _due(out, now, times, may_take) if before.due else out
    if sign.verdict.state is _S.SUSPECT:
        known_already = before.state is _S.QUARANTINED or (before.state is _S.SUSPECT and before.code == sign.code)
        return out if known_already else _suspect(out, reading, sign, now, times)
    if before.state is _S.QUARANTINED and sign.verdict.state is _S.QUARANTINED:
        return structs.replace(
            out, lost=out.lost or sign.verdict.lost, needs_reset=out.needs_reset or sign.verdict.resets
        )
    taken = _taken(_seen(out, reading), reading, sign, now, times)
    if before.state is _S.QUARANTINED or may_take():
        return taken
    return structs.replace(
        taken,
        state=_S.SUSPECT,
        lost=False,
        due=True,
        exit=f"too many GPUs of its pool are out of use already: drain {reading.node_id}, or repair it",
    )


def _worse(before: HealthRecord, sign: _Sign) -> bool:
    known = verdict_of(before.code)
    return known is None or severity(sign.verdict) > severity(known)


def _due(health: HealthRecord, now: float, times: HealthTimes, may_take: Callable[[], bool]) -> HealthRecord:
    """Take it out now if the pool's bound leaves room by now."""
    verdict = verdict_of(health.code)
    if verdict is None or not may_take():
        return health
    broken = verdict.state is _S.BROKEN
    return structs.replace(
        health,
        state=verdict.state,
        lost=verdict.lost,
        due=False,
        since=now,
        exit=_BROKEN_EXIT if broken else _exit(verdict, health.offences, now, times),
    )


_BROKEN_EXIT = "a person must repair or replace it, then `weft gpu return`"


def _suspect(health: HealthRecord, reading: Reading, sign: _Sign, now: float, times: HealthTimes) -> HealthRecord:
    lasts = _doubled(times.suspect_seconds, health.offences, now, times)
    return structs.replace(
        health,
        state=_S.SUSPECT,
        code=sign.code,
        sentence=_sentence(reading, sign),
        exit=f"healthy after {duration_text(lasts)} without a sign",
        numbers={sign.code: sign.number},
        since=now,
        due=False,
        lost=False,
        needs_reset=False,
    )


def _taken(health: HealthRecord, reading: Reading, sign: _Sign, now: float, times: HealthTimes) -> HealthRecord:
    """Quarantined, or broken; the third quarantine within a while is a break."""
    verdict, sentence = sign.verdict, _sentence(reading, sign)
    offences = tuple(at for at in health.offences if now - at < times.offences_seconds)
    if health.state is not _S.QUARANTINED:
        offences = (*offences, now)[-OFFENCES_MAX:]
    broken = verdict.state is _S.BROKEN
    if not broken and (verdict.resets or verdict.hours) and len(offences) >= OFFENCES_MAX:
        broken, sentence = True, f"{sentence}, for the third time in {duration_text(times.offences_seconds)}"
    return structs.replace(
        health,
        state=_S.BROKEN if broken else _S.QUARANTINED,
        code=sign.code,
        sentence=sentence,
        exit=_BROKEN_EXIT if broken else _exit(verdict, offences, now, times),
        numbers={sign.code: sign.number, "offences": float(len(offences))},
        since=now,
        offences=offences,
        due=False,
        lost=verdict.lost,
        needs_reset=verdict.resets,
    )


def _clean(
    known: HealthRecord, reading: Reading, now: float, times: HealthTimes, may_take: Callable[[], bool]
) -> HealthRecord:
    if known.state in (_S.HEALTHY, _S.BROKEN):
        return known
    if known.needs_reset and _was_reset(known, reading):
        known = structs.replace(_seen(known, reading), needs_reset=False)
    if known.clean_since is None:
        known = structs.replace(known, clean_since=now)
    assert known.clean_since is not None
    clean = now - known.clean_since
    if known.due:
        if known.needs_reset:
            return _due(known, now, times, may_take)
        return structs.replace(known, due=False, exit="healthy after a while without a sign")
    if known.state is _S.QUARANTINED:
        over = clean >= _quarantine_seconds(verdict_of(known.code), known.offences, now, times)
        return _end_quarantine(known, now, times) if over and not known.needs_reset else known
    if known.state is _S.PROBATION:
        lasts = _doubled(times.probation_seconds, known.offences, now, times)
        return _well(known, now) if now - known.since >= lasts else known
    lasts = _doubled(times.suspect_seconds, known.offences, now, times)
    return _well(known, now) if clean >= lasts else known


def _end_quarantine(known: HealthRecord, now: float, times: HealthTimes) -> HealthRecord:
    lasts = _doubled(times.probation_seconds, known.offences, now, times)
    return structs.replace(
        known,
        state=_S.PROBATION,
        sentence=f"clean again: {known.sentence}",
        exit=f"healthy after {duration_text(lasts)} without a sign",
        since=now,
        lost=False,
    )


def _well(known: HealthRecord, now: float) -> HealthRecord:
    return structs.replace(
        known, state=_S.HEALTHY, code="", sentence="without a sign for long enough", exit="", numbers={}, since=now
    )


def _was_reset(known: HealthRecord, reading: Reading) -> bool:
    before = known.resets if known.boot == reading.boot else 0
    return reading.node_boot != known.node_boot or reading.resets > before


def _counted(health: HealthRecord, reading: Reading) -> HealthRecord:
    """The record with all Xids of the reading judged; which resets it has seen stays as it is."""
    acting = {xid: count for xid, count in reading.xids.items() if verdict_of(code_of_xid(xid)) is not None}
    resets = health.resets if health.boot == reading.boot else 0
    return structs.replace(health, boot=reading.boot, xids=acting, resets=resets)


def _seen(health: HealthRecord, reading: Reading) -> HealthRecord:
    """The record with all that the reading counts judged: only a later reset ends a quarantine."""
    return structs.replace(_counted(health, reading), node_boot=reading.node_boot, resets=reading.resets)


def _sentence(reading: Reading, sign: _Sign) -> str:
    number = sign.code.removeprefix("xid-")
    named = f"Xid {number}: " if number != sign.code else ""
    return f"{named}{sign.verdict.words}{f' ({reading.detail})' if reading.detail and not named else ''}"


def _quarantine_seconds(verdict: Verdict | None, offences: tuple[float, ...], now: float, times: HealthTimes) -> float:
    """The time without a sign after which a quarantine ends."""
    if verdict is None or not verdict.hours:
        return times.clean_seconds
    return _doubled(verdict.hours * 3600.0, offences, now, times)


def _exit(verdict: Verdict, offences: tuple[float, ...], now: float, times: HealthTimes) -> str:
    if verdict.hours:
        lasts = duration_text(_quarantine_seconds(verdict, offences, now, times))
        return f"probation after {lasts}, or by `weft gpu return`"
    if verdict.resets:
        return "probation once a reset of the GPU or a reboot of its node was seen, or by `weft gpu return`"
    return "probation once the sign is gone, or by `weft gpu return`"


def _doubled(seconds: float, offences: tuple[float, ...], now: float, times: HealthTimes) -> float:
    """The seconds, twice as long for each quarantine after the first that still counts."""
    count = sum(now - at < times.offences_seconds for at in offences)
    return min(times.longest_seconds, seconds * 2.0 ** max(0, count - 1))
