"""Changes of a running job: its size, its share of a GPU, its command."""

import msgspec
from msgspec import Struct, structs

from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.job import FINAL, REVISIONS_BYTES_MAX, REVISIONS_MAX, Job, JobState, Revision
from weft.domain.shares import thousandths
from weft.domain.sizes import Size, why_never, wrong_size
from weft.domain.spec import JobSpec
from weft.messages.asks import Reshare, Update
from weft.messages.http import ShareWanted
from weft.messages.http.services import UpdateWanted
from weftd.gateway.errors import RejectedError
from weftd.gateway.thinking.admission import Admission

ENV_MAX = 1024  # variables, as in a specification


class Checked(Struct, frozen=True):
    """The update command, the bytes of the resulting revision, and its largest field."""

    update: Update
    bytes_after: int
    largest: str


def check_update(job: Job, wanted: UpdateWanted, admission: Admission) -> Checked:
    """Check the resulting job like a submission. Raises RejectedError."""
    if not job.spec.is_service:
        why = "only a service (kind inference with `service`) is updated"
        raise RejectedError(409, "job", f"{job.id} is no service: {why}")
    if job.state in FINAL:
        raise RejectedError(409, "job", f"{job.id} is over already: {job.state}")
    if job.state is JobState.STOPPING:
        raise RejectedError(409, "job", f"{job.id} is being stopped")
    env = _env_after(job, wanted)
    if len(env) > ENV_MAX:
        raise RejectedError(400, "env", f"its replicas would have {len(env)} variables of their own; at most {ENV_MAX}")
    _check_revisions(job, wanted)
    following = _following(job.spec, wanted, env)
    try:
        decode_spec(msgspec.json.encode(following))
    except UnicodeEncodeError:
        raise RejectedError(400, "", "has text that is not Unicode (half of a surrogate pair)") from None
    except SpecError as error:
        raise RejectedError(400, error.field, error.reason) from None
    admission.check_runtime(following)
    update = Update(image=wanted.image, command=wanted.command, env=wanted.env)
    largest = max(("env", "command", "image"), key=lambda name: len(msgspec.json.encode(getattr(update, name))))
    return Checked(update, _bytes_after(job, update), largest)


def _bytes_after(job: Job, update: Update) -> int:
    """The bytes of the newest revision after the update."""
    newest = job.revisions[-1] if job.revisions else Revision(number=0)
    env = {**(newest.env or {}), **(update.env or {})}
    image, command = update.image or newest.image, update.command or newest.command
    return len(msgspec.json.encode((image, command, env)))


def _check_revisions(job: Job, wanted: UpdateWanted) -> None:
    """Check the revisions that replicas still run or that may come back, together with the new one."""
    running = {one.revision for one in job.placement.allocations} if job.placement is not None else set()
    kept = [one for one in job.revisions if one.number in running or one is job.revisions[-1]]
    if len(kept) + 2 > REVISIONS_MAX:
        why = f"its replicas run {len(kept)} of its older revisions still; wait until they are replaced"
        raise RejectedError(409, "job", why)
    size = len(msgspec.json.encode([kept, job.revisions[-1:], wanted]))
    if size > REVISIONS_BYTES_MAX:
        why = (
            f"would have {size} bytes together with the revisions that its replicas run still; at most"
            f" {REVISIONS_BYTES_MAX}: wait until they are replaced"
        )
        raise RejectedError(409, "env", why)


def _env_after(job: Job, wanted: UpdateWanted) -> dict[str, str]:
    """The environment that its replicas would get in addition to that of every run; an empty text removes a
    variable."""
    env = dict(job.spec.env)
    for role in job.spec.roles.values():
        env |= role.env
    newest = job.revisions[-1].env if job.revisions else None  # with what the ones before it added
    env |= (newest or {}) | (wanted.env or {})
    return {name: value for name, value in env.items() if value}


def _following(spec: JobSpec, wanted: UpdateWanted, env: dict[str, str]) -> JobSpec:
    """The specification of a job that starts with the update; a service has one role."""
    ((name, role),) = spec.roles.items()
    return structs.replace(
        spec,
        image=wanted.image or role.image or spec.image,
        command=wanted.command or role.command or spec.command,
        env=env,
        roles={name: structs.replace(role, image=None, command=None, env={})},
    )


def check_size(job: Job, size: Size) -> None:
    """Raises RejectedError with the first mistake. A job that waits may have every size in its range."""
    if job.state in FINAL:
        raise RejectedError(409, "job", f"{job.id} is over already: {job.state}")
    if (wrong := wrong_size(job.spec, size)) is not None:
        role, reason = wrong
        raise RejectedError(400, f"size.{role}", reason)
    if (job.state.holding or job.spec.pin is not None) and (why := why_never(job.spec)):
        raise RejectedError(409, "job", f"{job.id} keeps its size: {why}")


def check_share(job: Job, wanted: ShareWanted) -> Reshare:
    """The command for the scheduler. Raises RejectedError with the first mistake."""
    sharing = [name for name, role in job.spec.roles.items() if role.share is not None]
    if not sharing:
        raise RejectedError(409, "job", f"{job.id} has no share of a GPU")
    if wanted.role is not None and wanted.role not in sharing:
        raise RejectedError(400, "role", f"{wanted.role} is no role of {job.id} with a share: {', '.join(sharing)}")
    if wanted.role is None and len(sharing) > 1:
        raise RejectedError(400, "role", f"several roles of {job.id} have shares: {', '.join(sharing)}; name one")
    if job.state is not JobState.RUNNING:
        raise RejectedError(409, "job", f"{job.id} is {job.state}: its share can be changed while it runs")
    return Reshare(
        request=None if wanted.request is None else thousandths(wanted.request),
        limit=None if wanted.limit is None else thousandths(wanted.limit),
        role=wanted.role or "",
    )
