"""The revisions of a service: updates that are asked for, and the way back where a new revision does not become ready.
`weft.planning.replicas` decides which replicas are replaced, one after the other."""

from collections.abc import Mapping

import msgspec
from msgspec import structs

from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX
from weft.domain.job import (
    REVISIONS_BYTES_MAX,
    REVISIONS_MAX,
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
    """Return True if the revision, as updates add up, is larger than a specification may be."""
    return len(revision.env or {}) > ENV_NAMES_MAX or len(msgspec.json.encode(revision)) > SPEC_BYTES_MAX


def may_go_back(job: Job) -> bool:
    """Return True while no replica of the newest revision has become ready."""
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
