"""The one path of a submission, over HTTP or NATS (`over_nats.py`)."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext

from msgspec import structs

from weft.bus import Bus
from weft.domain.arrays import ARRAY_PREFIX, JOB_PREFIX
from weft.domain.checkpoints import lost_seconds
from weft.domain.contract import own_values
from weft.domain.decoding.elements import ArrayTooLargeError, elements_of
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.idling import bounded
from weft.domain.schedules import SCHEDULE_PREFIX, Schedule
from weft.domain.schedules.cron import next_after
from weft.domain.sizes import how_resized, why_never
from weft.domain.spec import JobSpec, Kind, ResizeHow
from weft.domain.tenants import Allowance
from weft.domain.text import listed
from weft.messages import http
from weft.messages.http.schedules import ScheduleKept
from weft.store import GatewayStore, KeyReusedError, ScheduleTakenError, TenantFullError
from weft.store.submissions import StoredSubmission
from weft.store.tenants import Access
from weftd.gateway.allowances import Allowances, NoRoom, NoRoomError, check
from weftd.gateway.checkpoints import with_source
from weftd.gateway.dependencies import check_element_wise, named
from weftd.gateway.errors import RejectedError
from weftd.gateway.limits.concurrency import ConcurrencyLimit
from weftd.gateway.limits.cpu_budget import ASK_SECONDS, RECEIVED_SECONDS_PER_BYTE, STORED_SECONDS_PER_BYTE
from weftd.gateway.readmodel.snapshots import Snapshots
from weftd.gateway.registry.pinning import names_registry, pinned_spec
from weftd.gateway.registry.upstream import Registry
from weftd.gateway.secret_provider import check_stored
from weftd.gateway.wakeup import Wakeups

DOCUMENTS_AT_ONCE = 2
LARGE_BYTES = 64 << 10  # such a specification is read in a thread, one of a tenant at a time
LARGE_AT_ONCE = 2
ELEMENT_SECONDS = 6e-6  # CPU time to make one element of an array
SHORT_SECONDS = 600.0  # a job with a lower time limit does not need to write checkpoints
_NAMES_SHOWN_MAX = 20  # in one note
KEY_CHARACTERS_MAX = 255
ID_BEGINS = "j-"
ID_CHARACTERS = 10
SCHEDULES_PER_TENANT_MAX = 100
SCHEDULE_BYTES_MAX = 64 << 10  # a specification that recurs is kept for as long as its tenant likes

# curl's default, the form type, is taken for JSON.
CONTENTS = {
    "": "json",
    "application/json": "json",
    "application/octet-stream": "json",
    "application/x-www-form-urlencoded": "json",
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
}


class Submissions:
    def __init__(
        self,
        *,
        store: GatewayStore,
        snapshots: Snapshots,
        allowances: Allowances,
        registry: Registry | None,
        bus: Bus,
        wakeups: Wakeups,
        charge: Callable[[str, float], None],
        now: Callable[[], float],
        characters: Callable[[int], str],
    ) -> None:
        """`charge` takes CPU seconds from a tenant's budget."""
        self._store = store
        self._snapshots = snapshots
        self._allowances = allowances
        self._registry = registry
        self._bus = bus
        self.documents = ConcurrencyLimit("documents in YAML", at_once=DOCUMENTS_AT_ONCE, per_tenant=1)
        self.large = ConcurrencyLimit("large specifications", at_once=LARGE_AT_ONCE, per_tenant=1)
        self.arrays = ConcurrencyLimit("arrays", at_once=1, per_tenant=1)  # each may have many megabytes
        self.no_room = NoRoom(store=store, allowances=allowances)
        self._wakeups = wakeups
        self._charge = charge
        self._now = now
        self._characters = characters

    async def submit(self, who: Access, body: bytes, *, content_type: str, key: str | None) -> http.Submitted:
        """Check a specification, store it, return when it is durable. Its tenant pays the price of a command, and for
        its bytes. Raises RejectedError, StoreUnavailableError."""
        self._charge(who.tenant, RECEIVED_SECONDS_PER_BYTE * len(body))
        _check_key(key)
        large = len(body) > LARGE_BYTES
        async with self.large.one(who.tenant, patient=True) if large else nullcontext():
            if large and key is None:
                await self.no_room.check(who, len(body))
            spec = await self._decoded(who.tenant, body, _content(content_type))
            if spec.recurs is not None:
                return await self._add_schedule(spec, spec.recurs, who, len(body))
            return await self._submit(spec, who, key, size=len(body))

    async def submit_run(self, who: Access, spec: JobSpec, *, key: str) -> http.Submitted:
        """Submit the job of a schedule's run, as its tenant would. Raises RejectedError, StoreUnavailableError."""
        return await self._submit(spec, who, key, size=0)

    async def _submit(self, spec: JobSpec, who: Access, key: str | None, *, size: int) -> http.Submitted:
        """Check the job and store it. `size`: bytes of the specification as it was given."""
        allowance = self._allowances.of(who)
        try:
            check(spec, allowance)
            (await self._snapshots.nodes.get()).admission.check(spec, who.tenant)
        except RejectedError:
            # A repeat of an accepted submission is not refused, whatever became of the nodes.
            if key is None or (before := await self._before(spec, who, key)) is None:
                raise
            return before
        try:
            stored, elements = await self._stored(spec, who, key, allowance)
        except TenantFullError as error:
            refusal = NoRoomError(str(error))
            if size > LARGE_BYTES:
                await self.no_room.note(who, size, refusal)
            raise refusal from None
        except KeyReusedError as error:
            raise RejectedError(409, "Idempotency-Key", str(error)) from None
        if stored.created:
            self._charge(who.tenant, ASK_SECONDS + STORED_SECONDS_PER_BYTE * size)
            self._wakeups.asked(spec.pool, told=True)
        return http.Submitted(
            id=stored.job_id, name=spec.name, created=stored.created, notes=notes_on(spec), elements=elements
        )

    async def _add_schedule(self, spec: JobSpec, schedule: Schedule, who: Access, size: int) -> http.Submitted:
        """Check a job that recurs as each of its runs is checked, and store its schedule. The same specification again
        is the same schedule."""
        if size > SCHEDULE_BYTES_MAX:
            raise RejectedError(
                413, "schedule", f"a job that recurs has at most {SCHEDULE_BYTES_MAX} bytes, not {size}"
            )
        owner = structs.replace(who, admin=False)  # its runs have the allowance of the tenant, whoever submitted it
        check(spec, self._allowances.of(owner))
        (await self._snapshots.nodes.get()).admission.check(spec, who.tenant)
        await check_stored(self._store, who.tenant, spec, at=self._now())
        new = ScheduleKept(
            id=f"{SCHEDULE_PREFIX}{self._characters(ID_CHARACTERS)}",
            tenant=who.tenant,
            name=spec.name,
            spec=spec,
            submitter=who.named,
            created_at=self._now(),
            next_at=next_after(schedule, self._now()),
        )
        try:
            stored = await self._store.add_schedule(new, most=SCHEDULES_PER_TENANT_MAX)
        except ScheduleTakenError as error:
            raise RejectedError(409, "name", f"{error}: remove that one first") from None
        except TenantFullError as error:
            raise RejectedError(409, "schedule", str(error)) from None
        self._charge(who.tenant, ASK_SECONDS + STORED_SECONDS_PER_BYTE * size)
        return http.Submitted(
            id=stored, name=spec.name, created=stored == new.id, notes=notes_on(spec), next_run_at=new.next_at
        )

    async def check(self, who: Access, body: bytes, *, content_type: str) -> http.Checked:
        """Check a specification as `submit` does, and store nothing. Raises RejectedError, StoreUnavailableError."""
        self._charge(who.tenant, ASK_SECONDS + RECEIVED_SECONDS_PER_BYTE * len(body))
        async with self.large.one(who.tenant) if len(body) > LARGE_BYTES else nullcontext():
            spec = await self._decoded(who.tenant, body, _content(content_type))
            check(spec, self._allowances.of(who))
            (await self._snapshots.nodes.get()).admission.check(spec, who.tenant)
            await check_stored(self._store, who.tenant, spec, at=self._now())
            elements = 0
            if spec.is_array:
                async with self.arrays.one(who.tenant):
                    elements = len(await self._elements(who.tenant, spec, f"{ARRAY_PREFIX}check"))
        return http.Checked(spec=spec, notes=notes_on(spec), elements=elements)

    async def _stored(
        self, spec: JobSpec, who: Access, key: str | None, allowance: Allowance | None
    ) -> tuple[StoredSubmission, int]:
        """Store a job, or the elements of an array, and return their number. Raises RejectedError,
        TenantFullError, KeyReusedError."""
        name = self._characters(ID_CHARACTERS)
        may_be_gone = spec.all_secrets or spec.context or spec.from_checkpoint or names_registry(self._registry, spec)
        if key is not None and (spec.after or spec.is_array or may_be_gone):
            before = await self._store.submitted(spec, tenant=who.tenant, key=key)  # what it names may be gone
            if before is not None:
                return before, 0
        await check_stored(self._store, who.tenant, spec, at=self._now())
        wanted = await named(self._store, who.tenant, await pinned_spec(self._registry, who.tenant, spec))
        wanted = await with_source(self._store, self._bus, who.tenant, wanted)
        wanted = bounded(wanted, 0 if allowance is None else allowance.idle_seconds_max)
        if not spec.is_array:
            job_id = f"{JOB_PREFIX}{name}"
            stored = await self._store.submit(
                wanted,
                job_id=job_id,
                tenant=who.tenant,
                key=key,
                at=self._now(),
                allowance=allowance,
                given=spec,
                submitter=who.named,
            )
            return stored, 0
        array = f"{ARRAY_PREFIX}{name}"
        async with self.arrays.one(who.tenant, patient=True):
            elements = await self._elements(who.tenant, wanted, array)
            stored = await self._store.submit_array(
                elements,
                given=spec,
                array=array,
                tenant=who.tenant,
                key=key,
                at=self._now(),
                allowance=allowance,
                submitter=who.named,
            )
        return stored, len(elements)

    async def _elements(self, tenant: str, spec: JobSpec, array: str) -> list[tuple[str, JobSpec]]:
        """The elements of an array, for which its tenant pays, whether they are stored or not."""
        try:
            elements = await asyncio.to_thread(elements_of, spec, array)
            self._charge(tenant, ELEMENT_SECONDS * len(elements))
        except SpecError as error:
            status = 413 if isinstance(error, ArrayTooLargeError) else 400
            raise RejectedError(status, error.field, error.reason) from None
        await check_element_wise(self._store, spec, elements)
        return elements

    async def _decoded(self, tenant: str, body: bytes, content: str) -> JobSpec:
        """The specification. YAML is read in a thread, one document of a tenant at a time: that is bounded, but takes
        long."""
        try:
            if content == "yaml":
                async with self.documents.one(tenant, patient=True):
                    return await asyncio.to_thread(decode_spec, body, content=content)
            if len(body) > LARGE_BYTES:
                return await asyncio.to_thread(decode_spec, body, content=content)
            return decode_spec(body, content=content)
        except SpecError as error:
            raise RejectedError(400, error.field, error.reason, errors=error.mistakes) from None

    async def _before(self, spec: JobSpec, who: Access, key: str) -> http.Submitted | None:
        try:
            before = await self._store.submitted(spec, tenant=who.tenant, key=key)
        except KeyReusedError:
            return None
        if before is None:
            return None
        return http.Submitted(id=before.job_id, name=spec.name, created=False, notes=notes_on(spec))


def notes_on(spec: JobSpec) -> tuple[str, ...]:
    """Sentences for the user about effects that may be unexpected."""
    notes: list[str] = []
    if spec.preemptible and spec.kind in (Kind.NOTEBOOK, Kind.INFERENCE):
        notes.append(
            f"Weft may stop this {spec.kind} to make room for more important jobs. Its memory is lost then, and it"
            " starts again as soon as there is room. A higher priority makes that less likely"
        )
    if any(role.replicas.most > role.replicas.want for role in spec.roles.values()) and (why := why_never(spec)):
        notes.append(f"its max is above its want, but its size cannot change while it runs: {why}")
    if how_resized(spec) is ResizeHow.RESTART and lost_seconds(spec) is None:
        notes.append("it restarts to change its size, but writes no checkpoints, so it loses its progress then")
    elif _gains_by_checkpoints(spec):
        notes.append(
            "it does not set `checkpoints`; a job that saves its work and sets them waits less, gets its fair share of"
            " the GPUs and moves to faster ones"
        )
    return (*notes, *_notes_on_variables(spec))


def _gains_by_checkpoints(spec: JobSpec) -> bool:
    """Return True for a training job that may run for long on GPUs and writes no known checkpoints."""
    limit = spec.time_limit_seconds
    return (
        spec.kind is Kind.TRAINING
        and spec.preemptible
        and spec.pin is None
        and lost_seconds(spec) is None
        and any(role.gpus or role.share is not None for role in spec.roles.values())
        and (limit is None or limit >= SHORT_SECONDS)
    )


def _notes_on_variables(spec: JobSpec) -> list[str]:
    """Notes on variables that both the job and Weft set, with the value that a run gets."""
    own = own_values(spec)
    notes: list[str] = []
    if own.of_job:
        names, are, values = _listed(own.of_job)
        notes.append(f"{names} {are} set by the job; Weft's own {values} not used")
    if own.of_weft:
        names, are, _ = _listed(own.of_weft)
        notes.append(f"{names} {are} Weft's to set; the job's value is not used where Weft has one")
    return notes


def _listed(names: tuple[str, ...]) -> tuple[str, str, str]:
    """The names as a short list, and the words that follow it."""
    shown = listed(names, _NAMES_SHOWN_MAX)
    return (shown, "is", "value is") if len(names) == 1 else (shown, "are", "values are")


def _content(content_type: str) -> str:
    media = content_type.partition(";")[0].strip().lower()
    if media not in CONTENTS:
        raise RejectedError(415, "Content-Type", f"expected application/json or application/yaml, not {media[:100]}")
    return CONTENTS[media]


def _check_key(key: str | None) -> None:
    if key is None:
        return
    if not key or len(key) > KEY_CHARACTERS_MAX or not key.isprintable():
        raise RejectedError(400, "Idempotency-Key", f"expected 1 to {KEY_CHARACTERS_MAX} printable characters")
