"""What was recorded is derived again, byte for byte, and whatever is not as it was is found and named."""

import asyncio
import pickle
import zlib
from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec
import pytest
from msgspec import structs

from tests.support.builders import spec
from tests.support.lives import Life
from tests.support.tier import some
from weft.domain.job import CauseCode, Step
from weft.domain.spec import JobSpec
from weft.messages.history import Record
from weft.messages.nodes import RunSeen
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.entries import (
    FORMAT,
    Admitted,
    Asked,
    Changed,
    CoreSnapshot,
    Decided,
    Entry,
    Loaded,
    Rescored,
    encode,
    entries_of,
    jobs_of,
    specified,
)
from weftd.scheduler.thinking.record.history import HistoryRetention, JournalPace
from weftd.scheduler.thinking.record.keeping import pickled, unpickled
from weftd.scheduler.thinking.record.replay import Replay

EAGER = JournalPace(quiet_seconds=1.0, begin_bytes=2000)  # begins anew every few records


class Lived(list[Record]):
    """The records of a life, and the specifications of its jobs."""

    def __init__(self, records: Iterable[Record], specs: Mapping[str, JobSpec]) -> None:
        super().__init__(records)
        self.specs = specs


async def lived(seed: int, *, things: int = 150, pace: JournalPace | None = None) -> Lived:
    life = Life(seed, pace=pace)
    await life.live(things)
    await life.settle()
    return await history_of(life)


async def history_of(life: Life) -> Lived:
    records = await life.store.history(pool="default", limit=100_000, bytes_max=1 << 40)
    return Lived(records, await life.store.specifications(life.jobs, bytes_max=1 << 40))


def replayed(records: Iterable[Record], specs: Mapping[str, JobSpec]) -> Replay:
    replay = Replay()
    replay.specify(specs)
    for record in records:
        replay.feed(record)
    return replay


def rewritten(record: Record, entries: list[Entry]) -> Record:
    return structs.replace(record, body=zlib.compress(encode(entries)))


def with_steps(decided: Decided, steps: list[Step]) -> Decided:
    return structs.replace(decided, steps=msgspec.Raw(encode(steps)))


def steps_of(entry: Entry) -> list[Step]:
    return msgspec.msgpack.decode(entry.steps, type=list[Step]) if isinstance(entry, Decided) else []


@pytest.mark.parametrize("seed", some(5, range(25)))
async def test_a_history_is_derived_again_as_it_was(seed: int) -> None:
    records = await lived(seed)
    replay = replayed(records, records.specs)
    assert replay.difference is None
    assert replay.skipped == 0
    assert replay.steps == sum(record.steps for record in records) > 0
    assert replay.cycles == sum(record.cycles for record in records)


@pytest.mark.parametrize("seed", some(2, range(10)))
async def test_it_can_be_begun_in_the_middle(seed: int) -> None:
    records = await lived(seed, pace=EAGER)
    kept = [place for place, record in enumerate(records) if isinstance(entries_of(record)[0], CoreSnapshot)]
    assert len(kept) >= 2
    for place in kept:
        begun = replayed(records[place:], records.specs)
        assert (begun.difference, begun.unread) == (None, [])
    behind = replayed(records[kept[0] + 1 :], records.specs)
    assert behind.difference is None
    assert behind.skipped == next(n for n, record in enumerate(records[kept[0] + 1 :]) if record.begins)


async def test_every_stored_step_is_in_the_history() -> None:
    life = Life(7)
    await life.live(200)
    await life.settle()
    told = {
        (step.job_id, step.version)
        for record in await life.store.history(pool="default", limit=10_000)
        for entry in entries_of(record)
        for step in steps_of(entry)
    }
    events = await life.store.events(limit=100_000)
    stored = {(event.subject_id, event.version - 1) for event in events if event.topic == "jobs" and event.version > 1}
    assert stored
    assert stored <= told


async def test_a_step_that_was_altered_is_found_and_named() -> None:
    records = await lived(3)
    place, entries, at = next(
        (place, entries, at)
        for place, record in enumerate(records)
        if place > 20
        for entries in [entries_of(record)]
        for at, entry in enumerate(entries)
        if steps_of(entry)
    )
    altered, *rest = steps_of(entries[at])
    cause = structs.replace(altered.cause, sentence="because")
    decided = entries[at]
    assert isinstance(decided, Decided)
    entries[at] = with_steps(decided, [structs.replace(altered, cause=cause), *rest])
    replay = replayed([*records[:place], rewritten(records[place], entries), *records[place + 1 :]], records.specs)
    found = replay.difference
    assert found is not None
    assert found.what == "step"
    assert (found.epoch, found.record) == (records[place].epoch, records[place].number)
    assert isinstance(found.recorded, Step)
    assert found.derived == altered
    assert found.recorded.cause.sentence == "because"


async def test_a_turn_that_is_left_out_is_found() -> None:
    records = await lived(5)
    found = replayed([*records[:4], *records[5:]], records.specs).difference
    assert found is not None
    assert found.what == "unreadable"
    assert "records are missing" in found.sentence


async def test_a_report_that_was_altered_leads_to_other_steps() -> None:
    """A run that ended with a status is told to have ended well."""
    records = await lived(3)
    altered = []
    for record in records:
        entries = entries_of(record)
        for place, entry in enumerate(entries):
            if isinstance(entry, Changed):
                runs = tuple(structs.replace(one, exit_code=0) if is_failure(one) else one for one in entry.runs)
                entries[place] = structs.replace(entry, runs=runs)
        altered.append(rewritten(record, entries))
    found = replayed(altered, records.specs).difference
    assert found is not None
    assert found.what == "step"
    assert found.recorded != found.derived


def is_failure(told: object) -> bool:
    return isinstance(told, RunSeen) and bool(told.exit_code)


async def test_scores_that_were_heard_are_in_the_history_and_others_lead_elsewhere() -> None:
    records = await lived(2, things=300)
    heard = 0
    altered = []
    for record in records:
        entries = entries_of(record)
        for place, entry in enumerate(entries):
            if isinstance(entry, Rescored):
                heard += 1
                scores = tuple(structs.replace(score, score=4.0 - score.score) for score in entry.scores)
                entries[place] = Rescored(scores)
        altered.append(rewritten(record, entries))
    assert heard
    assert replayed(records, records.specs).difference is None
    found = replayed(altered, records.specs).difference
    assert found is not None
    assert found.what == "step"
    assert isinstance(found.derived, Step)
    assert found.derived.placement is not None or found.derived.cause.code is CauseCode.MOVED


async def test_a_record_that_is_damaged_is_a_difference() -> None:
    records = await lived(1, things=20)
    broken = replayed([structs.replace(records[0], body=b"nonsense")], records.specs).difference
    assert broken is not None
    assert broken.what == "unreadable"


async def test_records_of_another_format_are_named_and_the_replay_goes_on_at_the_next_beginning() -> None:
    records = await lived(1, pace=EAGER)
    first, second = [place for place, record in enumerate(records) if record.begins][:2]
    newer = [structs.replace(record, format=FORMAT + 1) for record in records[first:second]]
    replay = replayed([*newer, *records[second:]], records.specs)
    assert replay.difference is None
    assert [one.record for one in replay.unread] == [records[first].number]
    assert replay.unread[0].sentence == f"is of format {FORMAT + 1}; this version reads 1, 2, 3 and {FORMAT}"
    assert replay.skipped == second - first - 1
    assert replay.records == len(records) - second


async def test_a_history_of_format_1_is_derived_again() -> None:
    """There every job has its specification, and nothing else has to be given."""
    records = await lived(6)
    older = [
        structs.replace(rewritten(record, [as_format_1(one, records.specs) for one in entries_of(record)]), format=1)
        for record in records
    ]
    replay = replayed(older, {})
    assert (replay.difference, replay.unread, replay.skipped) == (None, [], 0)
    assert replay.steps == sum(record.steps for record in records) > 0


def as_format_1(entry: Entry, specs: Mapping[str, JobSpec]) -> Entry:
    match specified(entry, specs):
        case Loaded() as loaded:
            return structs.replace(loaded, checksums=())
        case Admitted(jobs):
            return Admitted(jobs)
        case Asked(ask, job):
            return Asked(ask, job)
        case other:
            return other


async def test_a_specification_that_is_gone_or_altered_is_named_and_the_replay_goes_on() -> None:
    records = await lived(1, pace=EAGER)
    ids = [[job.id for entry in entries_of(record) for job in jobs_of(entry)] for record in records]
    last = [named for record, named in zip(records, ids, strict=True) if record.begins][-1]
    job_id = next(job_id for named in ids for job_id in named if job_id not in last)
    gone = replayed(records, {name: spec for name, spec in records.specs.items() if name != job_id})
    assert gone.difference is None
    assert gone.unread[0].sentence == f"the specification of {job_id} is not stored any more"
    assert gone.records > 0
    altered = structs.replace(records.specs[job_id], env={"A": "another"})
    other = replayed(records, {**records.specs, job_id: altered})
    assert other.difference is None
    assert other.unread[0].sentence == f"the specification of {job_id} has changed since the record"


async def test_no_record_holds_a_specification() -> None:
    """Not the beginnings either, nor the orders of what runs."""
    life = Life(4, pace=EAGER)
    secret = "a-value-of-an-environment"
    for number in range(3):
        wanted = spec(f"big-{number}", gpus=number, env={"A": secret})
        await life.store.submit(wanted, job_id=f"big-{number}", tenant="a", key=None, at=life.now)
    await life.live(150)
    await life.settle()
    records = await life.store.history(pool="default", limit=100_000, bytes_max=1 << 40)
    assert sum(record.begins for record in records) > 3
    assert not any(secret.encode() in zlib.decompress(record.body) for record in records)


async def test_a_history_whose_beginning_is_large_does_not_begin_again_before_as_much_was_added() -> None:
    """Else every record of a pool with a long queue would hold the whole queue."""
    life = Life(4, pace=JournalPace(quiet_seconds=0.1, begin_bytes=1000))
    for number in range(100):
        await life.store.submit(spec(f"n-{number}", gpus=4), job_id=f"n-{number}", tenant="a", key=None, at=life.now)
    for _ in range(400):
        life.now += 0.5
        await life.cycle()
        for node in life.nodes:
            answer = asyncio.ensure_future(life.scheduler_loop.report(node.report()))
            await asyncio.sleep(0)
            await life.cycle()
            answered = await answer
            assert answered is not None
            node.hear(answered.jobs, now=life.now, leader=answered.leader)
    records = await life.store.history(pool="default", limit=100_000, bytes_max=1 << 40)
    begins = [place for place, record in enumerate(records) if record.begins]
    assert len(begins) > 2
    for place, following in pairwise(begins):
        added = sum(len(record.body) for record in records[place + 1 : following])
        assert added >= len(records[place].body) > 1000


class Planted:
    def __reduce__(self) -> tuple[object, ...]:
        return (pickle.loads, (b"",))


def test_what_was_planted_in_a_history_is_not_called() -> None:
    with pytest.raises(pickle.UnpicklingError, match="nothing that a core is made of"):
        unpickled(pickle.dumps(Planted()))
    with pytest.raises(pickle.UnpicklingError, match="no scheduler's core"):
        unpickled(pickle.dumps(7))
    with pytest.raises(pickle.UnpicklingError, match="EOFError"):
        unpickled(b"")


def test_a_core_of_another_version_is_known_by_its_parts() -> None:
    core = Scheduler(pool="default", settings=Settings())
    vars(core.cluster_state)["invented"] = 1
    with pytest.raises(pickle.UnpicklingError, match="another version, whose ClusterState has other parts: invented"):
        unpickled(pickled(core))


async def test_a_history_whose_core_cannot_be_read_goes_on_for_who_comes_from_before() -> None:
    records = await lived(2, pace=EAGER)
    place, entries = next(
        (place, entries)
        for place, record in enumerate(records)
        if isinstance((entries := entries_of(record))[0], CoreSnapshot)
    )
    kept = entries[0]
    assert isinstance(kept, CoreSnapshot)
    records[place] = rewritten(records[place], [structs.replace(kept, core=b"of another version"), *entries[1:]])
    assert replayed(records, records.specs).difference is None
    from_there = replayed(records[place:], records.specs)
    assert from_there.difference is None
    assert [one.record for one in from_there.unread] == [records[place].number]
    assert from_there.records > 0


async def test_what_is_left_after_trimming_is_derived_again() -> None:
    life = Life(4, pace=EAGER)
    await life.live(150)
    before = len(await life.store.history(pool="default", limit=10_000, bytes_max=1 << 40))
    life.scheduler_loop.retention = HistoryRetention(seconds=60.0, bytes=20_000)
    await life.scheduler_loop.trim()
    left = await history_of(life)
    assert 0 < len(left) < before
    replay = replayed(left, left.specs)
    assert (replay.difference, replay.skipped) == (None, 0)
