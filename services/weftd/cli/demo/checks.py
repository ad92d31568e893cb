"""Did each job do what it should have? Judged by its state, its story and its log, never assumed. Pure."""

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

from msgspec import Struct

from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.http import EventView, JobView
from weft.messages.http.explanation import Explanation
from weftd.cli.demo import parts
from weftd.cli.demo.burst import Burst

WAITS_FOR_ROOM = frozenset({CauseCode.NO_ROOM, CauseCode.HELD_BACK, CauseCode.MAKING_ROOM})
CHANGED_LEAST = 0.1  # part of a GPU's time: on a busy machine each job gets less of it than its share
SECONDS_LEAST = 12


class Evidence(Struct, frozen=True, kw_only=True):
    """The evidence of one job. `logs`: of each rank, in its last epoch."""

    job: JobView
    story: tuple[EventView, ...]
    logs: tuple[str, ...] = ()
    explained: Explanation | None = None  # while it waited
    burst: Burst | None = None  # of the service


class CheckResult(Struct, frozen=True):
    """`why` tells the course of a good job, or the mistake of a bad one."""

    good: bool
    why: str


def judge(name: str, evidence: Evidence) -> CheckResult:
    wanted = JobState.CANCELLED if name in ("doomed", "model", "starved") else JobState.SUCCEEDED
    if evidence.job.state is not wanted:
        return CheckResult(False, f"should be {wanted}: {last_sentence(evidence.story)}")
    match name:
        case "picky":
            return _avoided(evidence)
        case "starved":
            return _fed(evidence)
        case "alpha" | "beta":
            return _divided(evidence, grows=name == "beta")
        case "trainer":
            return _resumed(evidence)
        case "gang":
            return _agreed(evidence)
        case "flaky":
            return _retried(evidence)
        case "patient":
            return _explained(evidence)
        case "elastic":
            return _grew_and_gave_back(evidence)
        case "major" | "minor":
            return _shared(evidence, more_first=name == "major")
        case "model":
            return _served(evidence)
        case "lender":
            return _lent(evidence)
        case "doomed":
            return CheckResult(True, "cancelled, as asked")
        case _:
            return _preempted_another(evidence)


def _avoided(evidence: Evidence) -> CheckResult:
    slow = (parts.SLOW_NODE, parts.SLOW_GPU)
    placed = [event.data for event in of_kind(evidence.story, JobEvent.PLACED) if event.data.placement]
    places = [one for data in placed if data.placement for one in data.placement.allocations]
    if any((one.node_id, gpu) == slow for one in places for gpu in one.gpus):
        return CheckResult(False, "is on the slow GPU")
    sentence = "; ".join(sentence_of(data.cause) for data in placed)
    aside = re.search(rf"left aside: (gpu-{slow[1]} of {slow[0]} is [0-9.]+× slower)", sentence)
    if aside is None:
        return CheckResult(False, f"its placement does not name the slow GPU: {sentence}")
    return CheckResult(True, f"has another GPU: {aside[1]}")


def _fed(evidence: Evidence) -> CheckResult:
    kept = [event.data for event in of_kind(evidence.story, JobEvent.TUNED) if _for(event, CauseCode.KEPT)]
    if not kept or kept[0].cause is None:
        tried = [sentence_of(event.data.cause) for event in of_kind(evidence.story, JobEvent.TUNED)]
        return CheckResult(False, f"no change of its CPUs was kept: {'; '.join(tried) or 'none was tried'}")
    numbers = kept[0].cause.numbers
    if numbers["speed"] <= numbers["speed_before"]:
        return CheckResult(False, f"it did not become faster: {kept[0].cause.sentence}")
    return CheckResult(True, kept[0].cause.sentence)


def _started_again(evidence: Evidence, should: str) -> CheckResult:
    """The failed check, with the last event before the latest start, which gives the reason for that start."""
    before = [event.data for event in evidence.story if event.data.epoch < evidence.job.epoch]
    why = sentence_of(before[-1].cause) if before else "unknown"
    return CheckResult(False, f"was started {evidence.job.epoch + 1} times ({why}): {should}")


def _divided(evidence: Evidence, *, grows: bool) -> CheckResult:
    """By its own count: `alpha` had all GPUs and then fewer, as `beta` had some; then `beta` had all."""
    seen = [int(count) for count in re.findall(r"members: ([0-9]+)", evidence.logs[0])] or [0]
    whole, least = parts.GPUS, parts.BETA_LEAST
    shared = [count for count in seen if least <= count < whole] if grows else [whole - seen[-1]]
    if whole not in seen or (grows and seen[-1] != whole) or max(shared, default=0) < least:
        return CheckResult(
            False, f"had {seen} GPUs in turn; it should have {whole} alone, and {least} fewer beside the other"
        )
    if evidence.job.epoch:
        return _started_again(evidence, "its size should change while it runs")
    return CheckResult(True, f"had {', '.join(map(str, seen))} GPUs in turn, without a restart")


def _resumed(evidence: Evidence) -> CheckResult:
    evictions = [event.data for event in of_kind(evidence.story, JobEvent.REQUEUED) if _for(event, CauseCode.PREEMPTED)]
    if not evictions:
        return CheckResult(False, "was never pre-empted, so it shows nothing")
    steps = re.findall(r"resumed at step ([0-9]+)", evidence.logs[0])
    if not steps or int(steps[0]) < 1:
        return CheckResult(False, "did not resume from its checkpoint: its last log does not say so")
    fell = re.search(r"loss fell from [0-9.]+ to [0-9.]+", evidence.logs[0])
    if fell is None:
        return CheckResult(False, "its log does not say that the loss fell")
    return CheckResult(True, f"pre-empted, resumed at step {steps[0]}; {fell[0]}")


def _agreed(evidence: Evidence) -> CheckResult:
    agreeing = sum("all ranks have the same weights: True" in log for log in evidence.logs)
    if agreeing != evidence.job.replicas:
        return CheckResult(False, f"{agreeing} of {evidence.job.replicas} ranks say that their weights are the same")
    fell = re.search(r"loss fell from [0-9.]+ to [0-9.]+", evidence.logs[0])
    return CheckResult(True, f"{agreeing} ranks, the same weights; {fell[0] if fell else ''}")


def _retried(evidence: Evidence) -> CheckResult:
    retries = [event.data for event in of_kind(evidence.story, JobEvent.REQUEUED) if _for(event, CauseCode.EXITED)]
    if len(retries) != 1:
        return CheckResult(False, f"was tried again {len(retries)} times after a failure, not once")
    if "try 2:" not in evidence.logs[0]:
        return CheckResult(False, "its log does not say that the second try succeeded")
    return CheckResult(True, f"try 1 failed ({sentence_of(retries[0].cause)}), try 2 did not")


def _explained(evidence: Evidence) -> CheckResult:
    explained = evidence.explained
    if explained is None or not explained.sentence or explained.code not in WAITS_FOR_ROOM:
        return CheckResult(False, "`explain` gave no reason for its wait")
    return CheckResult(True, f"waited: {explained.sentence}")


def _grew_and_gave_back(evidence: Evidence) -> CheckResult:
    changes = of_kind(evidence.story, JobEvent.RESIZED)
    grew = [event.data for event in changes if _for(event, CauseCode.GREW)]
    gave = [event.data for event in changes if _for(event, CauseCode.PREEMPTED)]
    if not grew or not gave:
        return CheckResult(False, f"grew {len(grew)} times and gave ranks back {len(gave)} times")
    if evidence.job.epoch:
        return _started_again(evidence, "its size should change while it runs")
    seen = [int(count) for count in re.findall(r"members: ([0-9]+)", evidence.logs[0])]
    if not seen or max(seen) <= seen[0] or min(seen[seen.index(max(seen)) :]) == max(seen):
        return CheckResult(False, f"its rank 0 saw {seen} members: they never grew and shrank")
    return CheckResult(True, f"{seen[0]} to {max(seen)} ranks as GPUs came free; then {sentence_of(gave[0].cause)}")


def _shared(evidence: Evidence, *, more_first: bool) -> CheckResult:
    """It had more of the GPU's time first than in the end, or the other way round; by its own count."""
    parts = [float(part) for part in re.findall(r"second [0-9]+: ([0-9.]+) of the GPU", evidence.logs[0])]
    if len(parts) < SECONDS_LEAST:
        return CheckResult(False, f"it was busy for {len(parts)} seconds: too short to judge")
    first, last = median(parts[1:4]), median(parts[-6:-2])
    if (first - last if more_first else last - first) < CHANGED_LEAST:
        return CheckResult(False, f"it had {first:.2f} of its GPU, then {last:.2f}: its share did not change hands")
    if evidence.job.epoch:
        return _started_again(evidence, "its share should change while it runs")
    return CheckResult(True, f"{first:.2f} of its GPU, then {last:.2f}, without a restart")


def _served(evidence: Evidence) -> CheckResult:
    """It grew for its load, lost no request, and gave replicas back."""
    burst = evidence.burst
    if burst is None or not burst.sent:
        return CheckResult(False, "no request was sent to it")
    if burst.answered != burst.sent:
        bad = f"{burst.refused} were refused, {burst.failed} failed"
        return CheckResult(False, f"{burst.answered} of {burst.sent} requests were answered: {bad}")
    sizes = [event.data.size or {} for event in of_kind(evidence.story, JobEvent.SCALED) if _for(event, CauseCode.LOAD)]
    wanted = [sum(size.values()) for size in sizes]
    if not wanted or max(wanted) < 2:
        return CheckResult(False, f"its load never asked for more than one replica: {wanted}")
    if wanted[-1] >= max(wanted):
        return CheckResult(False, f"it was never made smaller again: {wanted}")
    if evidence.job.epoch:
        return _started_again(evidence, "its size should change while it runs")
    quick = f"95 % within {burst.within(0.95):.2f} s"
    return CheckResult(True, f"1 to {max(wanted)} replicas and back; {burst.answered} requests, {quick}")


def _lent(evidence: Evidence) -> CheckResult:
    lent = [event.data for event in of_kind(evidence.story, JobEvent.RESIZED) if _for(event, CauseCode.LENT)]
    if not lent:
        return CheckResult(False, "lent nothing to the service")
    if evidence.job.epoch:
        return _started_again(evidence, "it should lend while it runs")
    return CheckResult(True, sentence_of(lent[0].cause))


def _preempted_another(evidence: Evidence) -> CheckResult:
    waits = [event.data for event in of_kind(evidence.story, JobEvent.WAITING) if _for(event, CauseCode.MAKING_ROOM)]
    return CheckResult(True, sentence_of(waits[0].cause) if waits else last_sentence(evidence.story))


def of_kind(story: Sequence[EventView], kind: JobEvent) -> list[EventView]:
    return [event for event in story if event.type.rpartition(".")[2] == kind]


def spent(story: Sequence[EventView], *states: JobState) -> float:
    """Seconds in any of these states, by the story."""
    total = 0.0
    for event, following in pairwise(story):
        if event.data.state in states:
            total += max(0.0, (_at(following) - _at(event)).total_seconds())  # steps of two services, by two clocks
    return total


def last_sentence(story: Sequence[EventView]) -> str:
    told = [sentence_of(event.data.cause) for event in story]
    return next((sentence for sentence in reversed(told) if sentence), "its history gives no reason")


def _for(event: EventView, code: CauseCode) -> bool:
    return event.data.cause is not None and event.data.cause.code == code


def sentence_of(cause: object) -> str:
    return str(getattr(cause, "sentence", "") or getattr(cause, "code", ""))


def _at(event: EventView) -> datetime:
    return datetime.fromisoformat(event.time)
