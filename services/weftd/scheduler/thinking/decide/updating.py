"""What the replicas of a service run: updates that are asked for, replicas replaced one after the other, and the way
back where a new revision does not become ready."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct, structs

from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX
from weft.domain.job import (
    REVISIONS_BYTES_MAX,
    REVISIONS_MAX,
    Allocation,
    Cause,
    CauseCode,
    Job,
    JobEvent,
    JobState,
    Revision,
    Step,
)
from weft.domain.text import listed
from weft.messages.asks import Ask
from weftd.scheduler.thinking.state.cluster_state import ClusterState

_C = CauseCode

ENV_NAMES_MAX = 1024
ENV_NAMES_SHOWN_MAX = 16
ENV_NAME_CHARACTERS_MAX = 64

AS_SPECIFIED = Revision(number=0)


def update(cluster_state: ClusterState, ask: Ask, now: float) -> list[Step]:
    """The step that gives a service another revision; none if it is no service, stops, or would run the same."""
    job, asked = cluster_state.jobs.get(ask.subject_id), ask.update
    if job is None or asked is None or not job.spec.is_service or job.state is JobState.STOPPING:
        return []
    wanted = revision_of(job, job.revision)
    after = structs.replace(
        wanted,
        image=wanted.image if asked.image is None else asked.image,
        command=wanted.command if asked.command is None else asked.command,
        env=wanted.env if not asked.env else {**(wanted.env or {}), **asked.env},
    )
    if after == wanted or _is_too_much(after):
        return []
    back = wanted.number if wanted.back_to is None else wanted.back_to
    new = structs.replace(after, number=_fresh_number(job), at=round(now, 6), back_to=back if job.worked else None)
    revisions = _kept(job, new)
    if len(revisions) > REVISIONS_MAX or len(msgspec.json.encode(revisions)) > REVISIONS_BYTES_MAX:
        return []  # the gateway refuses such an update
    sentence = f"revision {wanted.number} → {new.number} by {ask.by}: {_what(asked.image, asked.command, asked.env)}"
    cause = Cause(code=_C.UPDATE_ASKED, sentence=sentence, by=ask.by)
    return cluster_state.go(
        job, JobEvent.UPDATED, cause, now, ask=ask.id, revisions=revisions, attempts=0, not_before=now
    )


def _is_too_much(revision: Revision) -> bool:
    """Updates add up: is the revision more than a specification may hold?"""
    return len(revision.env or {}) > ENV_NAMES_MAX or len(msgspec.json.encode(revision)) > SPEC_BYTES_MAX


def may_go_back(job: Job) -> bool:
    """Does the newest revision still have to show that it becomes ready?"""
    return bool(job.revisions) and job.revisions[-1].back_to is not None


def go_back(cluster_state: ClusterState, job: Job, why: Cause, now: float) -> list[Step]:
    """The revision before comes back, under a new number, which the replicas that still run it have from now on."""
    failed = job.revisions[-1]
    assert failed.back_to is not None
    assert job.placement is not None
    former = revision_of(job, failed.back_to)
    new = structs.replace(former, number=_fresh_number(job), at=round(now, 6), back_to=None)
    sentence = f"revision {failed.number} did not become ready: revision {former.number} comes back; {why.sentence}"
    cause = structs.replace(why, code=_C.UPDATE_FAILED, sentence=sentence)
    placement = structs.replace(
        job.placement,
        allocations=tuple(
            structs.replace(each, revision=new.number) if each.revision == former.number else each
            for each in job.placement.allocations
        ),
    )
    running = {each.revision for each in placement.allocations}
    revisions = (*(one for one in job.revisions if one.number in running), new)
    return cluster_state.go(
        job, JobEvent.UPDATED, cause, now, placement=placement, revisions=revisions, attempts=0, not_before=now
    )


def revision_of(job: Job, number: int) -> Revision:
    return next((one for one in job.revisions if one.number == number), AS_SPECIFIED)


def _fresh_number(job: Job) -> int:
    return job.revision + 1


def _kept(job: Job, new: Revision) -> tuple[Revision, ...]:
    """The revisions that replicas still run, or that may come back, and the new one."""
    running = {each.revision for each in job.placement.allocations} if job.placement is not None else set()
    needed = running | {new.back_to}
    return (*(one for one in job.revisions if one.number in needed), new)


def _what(image: str | None, command: tuple[str, ...] | None, env: Mapping[str, str] | None) -> str:
    """The change of an update, in words: of the environment only some names, as values may be secret."""
    parts = [f"image {image}"] if image is not None else []
    parts += ["another command"] if command is not None else []
    if env:
        parts.append(f"env {listed([_shortened(name) for name in sorted(env)], ENV_NAMES_SHOWN_MAX)}")
    return ", ".join(parts)


def _shortened(name: str) -> str:
    return name if len(name) <= ENV_NAME_CHARACTERS_MAX else f"{name[:ENV_NAME_CHARACTERS_MAX]}…"


class Exchange(Struct, frozen=True, kw_only=True):
    """Replicas that leave now, how many may join then, and whether that replaces those of an earlier revision."""

    leave: tuple[Allocation, ...] = ()
    join: int = 0
    replaces: bool = False


def plan(job: Job, ready: frozenset[int]) -> Exchange:
    """What follows for a running service from its size and its newest revision. `ready`: ranks that take requests.

    During an update there are at most `max_surge` replicas beyond the size. Each new one that is ready lets an old one
    leave.
    """
    assert job.placement is not None
    assert job.spec.service is not None
    wanted = sum(job.wanted.values())
    staying = job.placement.staying
    new = [each for each in staying if each.revision == job.revision]
    old = [each for each in staying if each.revision != job.revision]
    borrowed = {loan.rank for loan in job.loans}

    def last_first(each: Allocation) -> tuple[bool, bool, int]:
        return (each.rank not in borrowed, each.rank in ready, -each.rank)

    new_leave = sorted(new, key=last_first)[: max(0, len(new) - wanted)]
    new_stay = [each for each in new if each not in new_leave]
    new_ready = sum(each.rank in ready for each in new_stay)
    old_leave = sorted(old, key=last_first)[: max(0, len(old) - max(0, wanted - new_ready))]
    left = len(old) - len(old_leave)
    most = wanted + (job.spec.service.max_surge if old else 0)
    beyond = len(new_stay) + left - most
    if beyond > 0:  # the size fell while an update was under way
        unready = [each for each in sorted(new_stay, key=last_first) if each.rank not in ready][:beyond]
        new_leave, new_stay = [*new_leave, *unready], [each for each in new_stay if each not in unready]
    join = min(wanted - len(new_stay), most - len(new_stay) - left)
    return Exchange(leave=(*new_leave, *old_leave), join=max(0, join), replaces=bool(old))


def gives_way(job: Job, ready: frozenset[int]) -> Allocation | None:
    """The replica that leaves first where there is no room beside it for a new one: none if it is the only one, or one
    less than there should be is at work already."""
    assert job.placement is not None
    staying = job.placement.staying
    old = [each for each in staying if each.revision != job.revision]
    if not old or len(staying) < max(2, sum(job.wanted.values())) or len(staying) < len(job.placement.allocations):
        return None
    if any(each.revision == job.revision and each.rank not in ready for each in staying):
        return None  # one of the new is about to be ready
    return min(old, key=lambda each: (each.rank in ready, -each.rank))
