"""Derives a recorded history again, with the production code, and reports the first difference."""

import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from weft.domain.job import Step
from weft.domain.spec import JobSpec
from weft.messages.history import Record
from weft.messages.nodes import NodeReported
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.record.entries import (
    READS,
    Admitted,
    Answered,
    Asked,
    Began,
    Changed,
    CoreSnapshot,
    Decided,
    EndsTold,
    Entry,
    Followed,
    Learnt,
    Loaded,
    NotStored,
    PenaltiesLearnt,
    QuotasSet,
    RatiosLearnt,
    Repeated,
    Reported,
    Rescored,
    Slowed,
    SpecificationError,
    digest_of,
    encode,
    entries_of,
    jobs_of,
    report_of,
    specified,
)
from weftd.scheduler.thinking.record.keeping import unpickled
from weftd.scheduler.thinking.record.long_texts import in_steps, marked_again
from weftd.scheduler.thinking.state.pool import NodeChange

T = TypeVar("T")


class Difference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first difference between a history and its replay. `what`: step, node, answer, failed or unreadable."""

    what: str
    sentence: str
    epoch: int
    record: int
    cycle: int  # counted from where the replay began
    at: float
    recorded: Step | NodeChange | None = None
    derived: Step | NodeChange | None = None


class Unread(Struct, frozen=True, kw_only=True):
    """A record that this version cannot read; the replay goes on at the next record that begins."""

    epoch: int
    record: int
    sentence: str


class Replay:
    """`feed` it the records of a pool in order, until one differs. Records before the first that begins are skipped.

    A record that `lacks` specifications needs `specify` before `feed`.
    """

    def __init__(self) -> None:
        self.records = 0
        self.cycles = 0
        self.steps = 0
        self.skipped = 0
        self.unread: list[Unread] = []
        self.difference: Difference | None = None
        self._specs: dict[str, JobSpec] = {}
        self._opened: tuple[Record, list[Entry]] | None = None
        self._core: Scheduler | None = None
        self._reports: list[NodeReported] = []
        self._last: Record | None = None
        self._now = 0.0
        self._steps: list[Step] = []

    def feed(self, record: Record) -> Difference | None:
        """Derive one more record; returns the difference, if any. After a difference nothing more is derived."""
        if self.difference is None:
            self.difference = self._feed(record)
        return self.difference

    def lacks(self, record: Record) -> list[str]:
        """The jobs in the record whose specification the replay still needs from the store."""
        if record.format not in READS or record.format == 1:
            return []
        try:
            entries = entries_of(record)
        except (zlib.error, msgspec.DecodeError):
            return []  # `feed` reports this
        self._opened = (record, entries)
        wanted = dict.fromkeys(job.id for entry in entries for job in jobs_of(entry))
        return [job_id for job_id in wanted if job_id not in self._specs]

    def specify(self, specs: Mapping[str, JobSpec]) -> None:
        self._specs.update(specs)

    def _feed(self, record: Record) -> Difference | None:
        before, self._last = self._last, record
        self._now = record.at
        if self._core is None and not record.begins:
            self.skipped += 1
            return None
        if record.format not in READS:
            *others, last = map(str, READS)
            self._leave(f"is of format {record.format}; this version reads {', '.join(others)} and {last}")
            return None
        follows = before is not None and (record.epoch, record.number) == (before.epoch, before.number + 1)
        if before is not None and not record.begins and not follows:
            sentence = f"records are missing: {record.epoch}/{record.number} follows {before.epoch}/{before.number}"
            return self._differs("unreadable", sentence)
        try:
            entries = self._entries_of(record)
        except (zlib.error, msgspec.DecodeError) as error:
            return self._differs("unreadable", f"cannot be read: {error}")
        except SpecificationError as error:
            self._leave(str(error))
            return None
        self.records += 1
        for entry in entries:
            try:
                difference = self._tell(entry)
            except pickle.UnpicklingError as error:
                self.records -= 1
                self._leave(f"begins with a record that cannot be read here: {error}")
                return None
            except (AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
                return self._differs("failed", f"the code fails: {type(error).__name__}: {error}")
            if difference is not None:
                return difference
        return None

    def _entries_of(self, record: Record) -> list[Entry]:
        opened, self._opened = self._opened, None
        entries = opened[1] if opened is not None and opened[0] is record else entries_of(record)
        if self._core is not None and isinstance(entries[0], CoreSnapshot):
            return [entries[0], *(specified(entry, self._specs) for entry in entries[1:])]  # the core is there already
        return [specified(entry, self._specs) for entry in entries]

    def _leave(self, sentence: str) -> None:
        """Skip this record, and all up to the next that begins."""
        assert self._last is not None
        self.unread.append(Unread(epoch=self._last.epoch, record=self._last.number, sentence=sentence))
        self._core = None

    def _tell(self, entry: Entry) -> Difference | None:
        """Pass a recorded entry to the core; compare the result if the entry has it."""
        match entry:
            case Loaded():
                self._core = Scheduler(pool=entry.pool, settings=entry.settings)
                self._core.load(
                    jobs=entry.jobs,
                    nodes=entry.nodes,
                    scores=entry.scores,
                    classes=entry.classes,
                    slowdowns=entry.slowdowns,
                    penalties=entry.penalties,
                    ratios=entry.ratios,
                    now=entry.now,
                    went_back_at=entry.went_back_at,
                    held_until=entry.held_until,
                    quotas=entry.quotas,
                    used=entry.used,
                )
                self._reports, self._steps = [], []
                return None
            case CoreSnapshot():
                difference = None
                if self._core is None:
                    self._core = unpickled(entry.core, entry.jobs)
                else:
                    told = (self._go_on(self._core, one) for one in entry.before)
                    difference = next((one for one in told if one is not None), None)
                self._reports, self._steps = [], []
                return difference
            case _:
                assert self._core is not None, "a history begins with what was known"
                return self._go_on(self._core, entry)

    def _go_on(self, core: Scheduler, entry: Entry) -> Difference | None:
        match entry:
            case Began(at):
                self.cycles += 1
                self._now, self._steps = at, []
                core.take_hinted()
                core.begin_turn()
            case Admitted(jobs):
                core.admit(jobs)
            case Asked(ask, job):
                self._steps += core.ask(ask, self._now, job=job)
            case Reported(report):
                self._reports.append(report)
                core.report(report, self._now)
            case Changed(number) | Repeated(number):
                report = self._reports[number] = report_of(entry, self._reports[number])
                core.report(report, self._now)
            case Followed(number):
                self._steps += core.follow(self._reports[number], self._now)
            case Rescored(scores):
                core.cluster_state.rescore(scores)
            case Learnt(classes):
                core.cluster_state.learn(classes, self._now)
            case Slowed(slowdowns):
                core.cluster_state.slow(slowdowns)
            case PenaltiesLearnt(penalties):
                core.cluster_state.learn_penalties(penalties)
            case RatiosLearnt(ratios):
                core.cluster_state.learn_ratios(ratios)
            case QuotasSet(at, quotas):
                core.cluster_state.limit(quotas, at)
            case EndsTold(ends, at):
                core.tell_ends(ends, at)
            case Decided():
                self._steps += core.decide(self._now)
                self.steps += len(self._steps)
                return self._compare(entry, core.take_node_changes())
            case NotStored(job_id, version, at, told):
                steps = core.not_stored(job_id, version, at)
                self.steps += len(steps)
                return self._first("step", told, list[Step], in_steps(steps, marked_again))
            case Answered(numbers, digest):
                return self._compare_answers(core, numbers, digest)
            case _:
                raise AssertionError(f"no code handles {type(entry).__name__}")
        return None

    def _compare(self, decided: Decided, changes: Sequence[NodeChange]) -> Difference | None:
        return self._first("step", decided.steps, list[Step], in_steps(self._steps, marked_again)) or self._first(
            "node", decided.changes, list[NodeChange], changes
        )

    def _first(self, what: str, told: msgspec.Raw, kind: Any, derived: Sequence[Any]) -> Difference | None:
        """The first step or node change that differs in any field."""
        if bytes(told) == encode(derived):
            return None
        recorded = msgspec.msgpack.decode(told, type=kind)
        if recorded == derived:
            return None  # a field with its default may be left out in one encoding only
        for place in range(max(len(recorded), len(derived))):
            was, now = _at(recorded, place), _at(derived, place)
            if encode(_explicit(was)) != encode(_explicit(now)):
                return self._differs(what, _how(was, now), recorded=was, derived=now)
        return None

    def _compare_answers(self, core: Scheduler, numbers: Sequence[int], recorded: int) -> Difference | None:
        digest = 0
        for number in numbers:
            digest = digest_of(core.answer(self._reports[number].node_id), digest)
        if digest == recorded:
            return None
        nodes = ", ".join(self._reports[number].node_id for number in numbers)
        return self._differs("answer", f"nodes would get other orders: one of {nodes}")

    def _differs(
        self,
        what: str,
        sentence: str,
        *,
        recorded: Step | NodeChange | None = None,
        derived: Step | NodeChange | None = None,
    ) -> Difference:
        assert self._last is not None
        return Difference(
            what=what,
            sentence=sentence,
            epoch=self._last.epoch,
            record=self._last.number,
            cycle=self.cycles,
            at=self._now,
            recorded=recorded,
            derived=derived,
        )


def _at(items: Sequence[T], place: int) -> T | None:
    return items[place] if place < len(items) else None


def _how(was: object, now: object) -> str:
    if was is None:
        return "was not decided then"
    return "was decided otherwise then" if now is not None else "would not be decided now"


def _explicit(value: object) -> object:
    """The value with every field named, also fields with their defaults."""
    match value:
        case Struct():
            return {name: _explicit(getattr(value, name)) for name in value.__struct_fields__}
        case list() | tuple():
            return [_explicit(one) for one in value]
        case dict():
            return {key: _explicit(one) for key, one in value.items()}
        case _:
            return value
