"""The store in one process: the guarantees of the real one, without a server. Its state ends with the process.

It has no clock and no randomness: the same calls in the same order leave the same state, event for event.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, islice

import msgspec
from msgspec import structs

from libs.domain.arrays import ARRAY_PREFIX
from libs.domain.cluster import Node
from libs.domain.dependencies import Ends
from libs.domain.job import HOLDING, Job, JobChange, JobEvent, JobState, after
from libs.domain.lease import Lease
from libs.domain.selection import Selection
from libs.domain.spec import JobSpec
from libs.domain.tenants import Allowance, Use, full
from libs.messages.accounts import JobFacts
from libs.messages.asks import AskKind, Reshare, Scale, Tune
from libs.messages.events import Event, step_data, submission_data
from libs.messages.history import Record
from libs.messages.series import GpuChanges
from libs.messages.signals import GpuScore
from libs.planning.quota.decay import decayed
from libs.store import JobsKept, KeyReusedError, OpenService, TenantFullError, UnlawfulError
from libs.store.accounts import Moment
from libs.store.arrays import ArrayKept
from libs.store.memory.accounts import account, facts, node_stories
from libs.store.memory.arrays import array_of, elements_in, ends_in
from libs.store.memory.asks import Asks
from libs.store.memory.events import Events
from libs.store.memory.history import History
from libs.store.memory.learnt import LearntTables
from libs.store.memory.quotas import QuotaTable
from libs.store.memory.serving import service_of
from libs.store.memory.slots import Gpu, Slots, slots_after
from libs.store.memory.times import micro
from libs.store.memory.tokens import Tokens
from libs.store.memory.usage import job_changes, node_changes
from libs.store.memory.webhooks import MemoryWebhooks
from libs.store.rows import as_micros, hash_of
from libs.store.submissions import StoredSubmission
from libs.store.tenants import TenantKept
from libs.store.tuning import Envelope


class MemoryStore(QuotaTable, Tokens, History, Events, Asks, LearntTables, MemoryWebhooks):
    """Every store Protocol of `libs.store`. A call runs to its end before the next begins, so each is atomic."""

    def __init__(self) -> None:
        super().__init__()
        self._submitted: dict[str, Job] = {}  # as it was submitted, in that order
        self._seq = 0
        self._keys: dict[tuple[str, str], tuple[str, bytes]] = {}
        self._jobs: dict[str, Job] = {}  # admitted
        self._slots: Slots = {}
        self._nodes: dict[str, tuple[Node, int]] = {}  # with its version
        self._jobs_kept: dict[str, JobsKept] = {}  # by pool
        self._policies: dict[str, str] = {}  # by the name of a lease
        self._envelopes: dict[str, Envelope] = {}
        self._scores: dict[tuple[str, int, str], tuple[GpuScore, float]] = {}  # with when it was stored

    # gateway

    async def submit(
        self,
        spec: JobSpec,
        *,
        job_id: str,
        tenant: str,
        key: str | None,
        at: float,
        allowance: Allowance | None = None,
        given: JobSpec | None = None,
    ) -> StoredSubmission:
        spec_hash = hash_of(given or spec)
        before = None if key is None else self._keys.get((tenant, key))
        if before is not None:
            return _the_same(before, spec_hash)
        if allowance is not None and (reason := full(self._use(tenant), allowance, spec_bytes=_bytes_of(spec))):
            raise TenantFullError(reason)
        self._add_job(spec, job_id=job_id, tenant=tenant, at=micro(at))
        if key is not None:
            self._keys[tenant, key] = (job_id, spec_hash)
        return StoredSubmission(job_id=job_id, created=True)

    async def submit_array(
        self,
        elements: Sequence[tuple[str, JobSpec]],
        *,
        given: JobSpec,
        array: str,
        tenant: str,
        key: str | None,
        at: float,
        allowance: Allowance | None = None,
    ) -> StoredSubmission:
        before = None if key is None else self._keys.get((tenant, key))
        if before is not None:
            return _the_same(before, hash_of(given))
        size = sum(_bytes_of(spec) for _, spec in elements)
        if allowance is not None and (
            reason := full(self._use(tenant), allowance, spec_bytes=size, jobs=len(elements))
        ):
            raise TenantFullError(reason)
        for job_id, spec in elements:
            self._add_job(spec, job_id=job_id, tenant=tenant, at=micro(at))
        if key is not None:
            self._keys[tenant, key] = (array, hash_of(given))
        return StoredSubmission(job_id=array, created=True)

    def _add_job(self, spec: JobSpec, *, job_id: str, tenant: str, at: float) -> None:
        assert job_id not in self._submitted, f"two jobs with the id {job_id}"
        self._seq += 1
        job = Job(id=job_id, tenant=tenant, spec=spec, seq=self._seq, submitted_at=at, since=at, priority=spec.priority)
        self._submitted[job_id] = job
        self._add_ask(AskKind.SUBMIT, subject_id=job_id, pool=spec.pool, tenant=tenant, at=at)
        data = submission_data(job_id, tenant, spec)
        self._tell("jobs", JobEvent.SUBMITTED, job_id, 1, at, data, tenant=tenant)

    async def submitted(self, spec: JobSpec, *, tenant: str, key: str) -> StoredSubmission | None:
        before = self._keys.get((tenant, key))
        if before is None:
            return None
        return _the_same(before, hash_of(spec))

    async def ask_requeue(self, *, job_id: str, pool: str, tenant: str, at: float, allowance: Allowance) -> None:
        reason = full(self._use(tenant, asked=True), allowance, spec_bytes=_bytes_of(self._submitted[job_id].spec))
        if reason is not None:
            raise TenantFullError(reason)
        self._add_ask(AskKind.REQUEUE, subject_id=job_id, pool=pool, tenant=tenant, at=micro(at))

    async def tenants(self, *, tenant: str | None = None, limit: int = 1000) -> list[TenantKept]:
        found = [kept for name, kept in sorted(self._tenants.items()) if tenant in (None, name)]
        return [structs.replace(kept, use=self._use(kept.id)) for kept in found[:limit]]

    async def decayed_use(self, *, pool: str, at: float, half_life: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for job in self._jobs.values():
            ended = job.held_since if job.state.holding else job.ended_at or job.since
            if job.spec.pool == pool and job.attained_seconds > 0 and ended > at - min(30 * half_life, 1e9):
                gpus = job.attained_gpu_seconds / job.attained_seconds
                used = decayed(decayed(0.0, gpus, job.attained_seconds, half_life), 0.0, at - ended, half_life)
                found[job.tenant] = found.get(job.tenant, 0.0) + used
        return {tenant: used for tenant, used in sorted(found.items()) if used}

    async def job(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id) or self._submitted.get(job_id)

    async def jobs(
        self,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        name: str = "",
        limit: int = 100,
        before: int = 0,
        elements: bool = True,
    ) -> list[Job]:
        newest_first = (self._jobs.get(job.id, job) for job in reversed(self._submitted.values()))
        found = [
            job
            for job in newest_first
            if tenant in (None, job.tenant)
            and (not states or job.state in states)
            and name in ("", job.name)
            and (not before or job.seq < before)
            and (elements or job.spec.element is None)
        ]
        return found[:limit]

    async def jobs_selected(
        self,
        selection: Selection,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        limit: int = 100,
        before: int = 0,
    ) -> list[Job]:
        found = await self.jobs(tenant=tenant, states=states, limit=len(self._submitted), before=before)
        return [job for job in found if selection.holds(job)][:limit]

    async def ids_beginning(self, prefix: str, *, tenant: str | None, limit: int) -> list[str]:
        found = await self.jobs(tenant=tenant, limit=len(self._submitted))
        return [job.id for job in found if job.id.startswith(prefix)][:limit]

    async def array_jobs(
        self, array: str, *, states: Sequence[JobState] = (), limit: int = 100, after: int = 0
    ) -> list[Job]:
        page = [job for job in elements_in(self._now(), array) if job.seq > after][:limit]
        return [job for job in page if not states or job.state in states]

    async def arrays(
        self, *, ids: Sequence[str] = (), tenant: str | None = None, opened: bool = False, limit: int = 100
    ) -> list[ArrayKept]:
        by_array: dict[str, list[Job]] = {}
        for job in self._now():
            if job.spec.element is not None:
                by_array.setdefault(job.spec.element.array, []).append(job)
        if ids:
            return [array_of(array, by_array[array]) for array in ids if array in by_array]
        found = [array_of(array, jobs) for array, jobs in by_array.items()]
        found = [one for one in found if tenant in (None, one.tenant) and not (opened and one.over)]
        return sorted(found, key=lambda one: (one.submitted_at, one.id), reverse=True)[:limit]

    async def array_named(self, name: str, *, tenant: str | None) -> str | None:
        found = await self.arrays(tenant=tenant, limit=len(self._submitted))
        return next((one.id for one in found if one.name == name), None)

    async def ask_elements(
        self,
        kind: AskKind,
        *,
        array: str,
        states: Sequence[JobState],
        job_ids: Sequence[str] = (),
        tenant: str,
        at: float,
        allowance: Allowance | None = None,
    ) -> int:
        known = {ask.subject_id for _, ask in self._asks.values() if ask.kind is kind}
        wanted = [
            job
            for job in elements_in(self._now(), array)
            if job.state in states and (not job_ids or job.id in job_ids) and job.id not in known
        ]
        over = [job for job in wanted if job.state.final]
        size = sum(_bytes_of(job.spec) for job in over)
        if allowance is not None and over:
            reason = full(self._use(tenant, asked=True), allowance, spec_bytes=size, jobs=len(over))
            if reason is not None:
                raise TenantFullError(reason)
        for job in wanted:
            self._add_ask(kind, subject_id=job.id, pool=job.pool, tenant=tenant, at=micro(at))
        return len(wanted)

    async def policy(self, *, pool: str) -> str:
        return self._policies.get(pool, "")

    async def nodes(self, *, pool: str | None = None) -> list[Node]:
        return [node for _, (node, _) in sorted(self._nodes.items()) if pool in (None, node.pool)]

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        return self._jobs_in(pool, HOLDING)

    async def queued_jobs(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        return self._jobs_in(pool, {JobState.QUEUED})

    async def services(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        return [job for job in self._jobs_in(pool, HOLDING) if job.spec.is_service]

    async def specifications(self, job_ids: Sequence[str], *, bytes_max: int) -> dict[str, JobSpec]:
        found: dict[str, JobSpec] = {}
        size = 0
        for job_id in sorted(set(job_ids) & self._submitted.keys()):
            if found and size >= bytes_max:
                break
            found[job_id] = self._submitted[job_id].spec
            size += len(msgspec.json.encode(found[job_id]))
        return found

    async def jobs_of(self, job_ids: Sequence[str]) -> list[Job]:
        found = [self._jobs.get(job_id) or self._submitted.get(job_id) for job_id in job_ids]
        return sorted((job for job in found if job is not None), key=lambda job: job.seq)

    async def ended_last(self, *, pool: str, since: float, limit: int) -> list[str]:
        ended = [(job.ended_at, job.id) for job in self._jobs.values() if job.pool == pool and job.ended_at is not None]
        return [job_id for at, job_id in sorted(ended, reverse=True) if at >= since][:limit]

    async def jobs_kept(self) -> list[JobsKept]:
        return [kept for _, kept in sorted(self._jobs_kept.items())]

    async def jobs_between(self, begins: float, *, limit: int) -> list[str]:
        jobs = (self._jobs.get(job_id, job) for job_id, job in self._submitted.items())
        found = (job.id for job in jobs if job.ended_at is None or job.ended_at > micro(begins) - 3600)
        return list(islice(found, limit))

    async def gpu_changes(self, job_ids: Sequence[str], *, begins: float, ends: float) -> list[GpuChanges]:
        known = [self._jobs.get(job_id) or self._submitted[job_id] for job_id in job_ids if job_id in self._submitted]
        return job_changes(known, self._stories, begins=as_micros(begins), ends=as_micros(ends))

    async def gpus_there(self, *, begins: float, ends: float) -> GpuChanges:
        told = [event for event in self._events if event.topic == "nodes"]
        return node_changes(told, begins=as_micros(begins), ends=as_micros(ends))

    async def job_facts(self, job_ids: Sequence[str]) -> list[JobFacts]:
        known = [self._jobs.get(job_id) or self._submitted[job_id] for job_id in job_ids if job_id in self._submitted]
        return [facts(job) for job in sorted(known, key=lambda job: job.id)]

    async def accounts(self, job_ids: Sequence[str], *, begins: float, ends: float) -> list[Event]:
        return [
            event
            for job_id in sorted(job_ids)
            for event in account(self._stories.get(job_id, ()), begins=as_micros(begins), ends=as_micros(ends))
        ]

    async def node_stories(self, *, begins: float, ends: float) -> list[Event]:
        told = [event for event in self._events if event.topic == "nodes" and event.at < micro(ends)]
        return node_stories(told, begins=as_micros(begins))

    async def told_until(self, moment: Moment) -> list[Event]:
        found: list[Event] = []
        for job_id, story in sorted(self._stories.items()):
            told = [event.version for event in story if moment.holds(event)]
            job = self._jobs.get(job_id)
            if told and (len(told) < len(story) or job is None or not job.state.final):
                found += [event for event in story if event.version <= told[-1]]
        nodes = {event.subject_id: event for event in self._events if event.topic == "nodes" and moment.holds(event)}
        return found + [event for _, event in sorted(nodes.items())]

    # scheduler

    async def lead_by(self, lease: Lease, policy: str) -> int:
        self._must_hold(lease)
        self._policies[lease.name] = policy
        return self._begin_load(lease)

    async def admit(self, lease: Lease, *, load: int, pool: str, limit: int) -> list[Job]:
        self._must_hold(lease)
        self._must_have_loaded_last(lease, load)
        waiting = [ask for of_pool, ask in self._asks.values() if of_pool == pool and ask.kind is AskKind.SUBMIT]
        born = [self._submitted[ask.subject_id] for ask in waiting[:limit]]
        for ask in waiting[:limit]:
            del self._asks[ask.id]
        self._jobs.update({job.id: job for job in born})
        return sorted(born, key=lambda job: job.seq)

    async def ends_of(self, ids: Sequence[str]) -> list[Ends]:
        jobs = list(self._now()) if any(one.startswith(ARRAY_PREFIX) for one in ids) else []
        found: list[Ends] = []
        for one in ids:
            job = self._jobs.get(one) or self._submitted.get(one)
            found.append(ends_in(one, elements_in(jobs, one) if job is None else [job]))
        return found

    async def open_jobs(self, *, pool: str) -> list[Job]:
        return self._jobs_in(pool, {state for state in JobState if not state.final})

    async def take(self, lease: Lease, changes: Sequence[JobChange], *, record: Record | None = None) -> list[bool]:
        if not changes:
            return []
        self._must_hold(lease)
        # All steps are checked first: if one is refused, nothing changes.
        moved: dict[str, Job] = {}
        left_out: set[str] = set()
        taken: list[bool] = []
        for change in changes:
            before = moved.get(change.before.id) or self._jobs.get(change.before.id)
            current = before is not None and before.version == change.step.version
            taken.append(current and change.before.id not in left_out)
            if not taken[-1]:
                left_out.add(change.before.id)
            else:
                assert before == change.before, f"the caller's picture of {change.before.id} is wrong"
                moved[change.before.id] = _lawful(change)
        were = [self._jobs[job_id] for job_id in moved]
        self._slots = slots_after(self._slots, were, moved.values(), self._gpu_memory())
        self._jobs.update(moved)
        if record is not None:
            await self.record(lease, record)
        self._xid += 1
        for change in compress(changes, taken):
            step, job = change.step, change.after
            self._asks.pop(step.ask, None)
            at, data = micro(step.at), step_data(change)
            self._tell("jobs", step.event, job.id, job.version, at, data, tenant=job.tenant, alone=False)
        return taken

    async def save_node(
        self,
        lease: Lease,
        node: Node,
        *,
        event: str,
        cause: str,
        at: float | None = None,
        ask: int = 0,
        load: int | None = None,
    ) -> None:
        self._must_hold(lease)
        self._must_have_loaded_last(lease, load)
        node = structs.replace(node, seen_at=micro(node.seen_at))
        version = self._nodes[node.id][1] + 1 if node.id in self._nodes else self._first_version(node.id)
        self._nodes[node.id] = (node, version)
        self._asks.pop(ask, None)
        if event:
            self._tell_node(node, version, event, cause, at=node.seen_at if at is None else at)

    async def remove_node(self, lease: Lease, node_id: str, *, cause: str, at: float, load: int | None = None) -> None:
        self._must_hold(lease)
        self._must_have_loaded_last(lease, load)
        if node_id in self._nodes:
            node, version = self._nodes.pop(node_id)
            self._tell_node(node, version + 1, "removed", cause, at=at)

    async def forget_jobs(self, lease: Lease, *, before: float, kept_seconds: float, limit: int) -> int:
        self._must_hold(lease)
        before = micro(before)
        known = self._jobs_kept.get(lease.name)
        self._jobs_kept[lease.name] = JobsKept(
            pool=lease.name,
            seconds=kept_seconds,
            forgotten_before=before if known is None else max(before, known.forgotten_before),
        )
        asked = {ask.subject_id for _, ask in self._asks.values()}
        over = [
            job
            for job in self._jobs.values()
            if job.pool == lease.name and job.ended_at is not None and job.ended_at < before and job.id not in asked
        ]
        published = [job for job in over if all(event.id not in self._outbox for event in self._stories[job.id])]
        gone = {job.id for job in sorted(published, key=lambda job: job.ended_at or 0.0)[:limit]}
        told = {event.id for event in self._node_events_before(before, lease.name)[:limit]}
        for job_id in gone:
            del self._jobs[job_id], self._submitted[job_id], self._stories[job_id]
            self._envelopes.pop(job_id, None)
        self._keys = {key: kept for key, kept in self._keys.items() if kept[0] not in gone}
        self._events = [
            event
            for event in self._events
            if event.id not in told and not (event.topic == "jobs" and event.subject_id in gone)
        ]
        return len(gone) + len(told)

    async def touch_nodes(self, lease: Lease, node_ids: Sequence[str], *, at: float) -> None:
        self._must_hold(lease)
        for node_id in set(node_ids) & self._nodes.keys():
            node, version = self._nodes[node_id]
            self._nodes[node_id] = (structs.replace(node, seen_at=micro(at)), version)

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]:
        known = {node.id for node in await self.nodes(pool=pool)}
        return [
            score
            for (node_id, _, _), (score, at) in sorted(self._scores.items(), key=lambda kept: kept[0])
            if node_id in known and (at >= since or node_id in nodes)
        ]

    # scorer

    async def save_scores(self, scores: Sequence[GpuScore], *, at: float) -> None:
        for score in scores:
            key = (score.node_id, score.gpu_index, score.job_class)
            if key not in self._scores or self._scores[key][1] <= micro(at):
                measured_at = None if score.measured_at is None else micro(score.measured_at)
                until = None if score.quarantined_until is None else micro(score.quarantined_until)
                kept = structs.replace(score, measured_at=measured_at, quarantined_until=until)
                self._scores[key] = (kept, micro(at))

    async def ended_jobs(self, *, tenants: Sequence[str], since: float, until: float, label: str) -> list[Job]:
        found = [
            job
            for job in self._jobs.values()
            if job.tenant in tenants
            and job.state is JobState.SUCCEEDED
            and since <= (job.ended_at or 0.0) < until
            and job.spec.labels.get(label) == "1"
        ]
        return sorted(found, key=lambda job: (job.ended_at or 0.0, job.seq))

    async def forget_scores(self, *, before: float) -> int:
        gone = [key for key, (_, at) in self._scores.items() if at < micro(before) and key[0] not in self._nodes]
        for key in gone:
            del self._scores[key]
        return len(gone)

    # router

    async def open_services(self, *, job_ids: Sequence[str] | None = None) -> list[OpenService]:
        wanted = None if job_ids is None else set(job_ids)
        found = [job for job in self._jobs.values() if not job.state.final and (wanted is None or job.id in wanted)]
        return [seen for job in sorted(found, key=lambda job: job.seq) if (seen := service_of(job)) is not None]

    # reallocator

    async def envelopes(self, *, pool: str) -> list[Envelope]:
        return [
            envelope
            for job_id, envelope in sorted(self._envelopes.items())
            if envelope.pool == pool and job_id in self._jobs and not self._jobs[job_id].state.final
        ]

    async def save_envelope(self, envelope: Envelope, *, at: float) -> None:
        del at
        self._envelopes[envelope.job_id] = envelope

    async def ask_tune(self, envelope: Envelope, tune: Tune, *, at: float) -> bool:
        if not self._may_ask(AskKind.TUNE, envelope):
            return False
        self._add_ask(
            AskKind.TUNE, subject_id=envelope.job_id, pool=envelope.pool, tenant="weft", at=micro(at), tune=tune
        )
        self._envelopes[envelope.job_id] = envelope
        return True

    async def ask_scale(self, envelope: Envelope, scale: Scale, *, at: float) -> bool:
        if not self._may_ask(AskKind.SCALE, envelope):
            return False
        self._add_ask(
            AskKind.SCALE, subject_id=envelope.job_id, pool=envelope.pool, tenant="weft", at=micro(at), scale=scale
        )
        self._envelopes[envelope.job_id] = envelope
        return True

    async def ask_sizes(self, sizes: Mapping[str, Scale], *, pool: str, at: float) -> list[str]:
        asked = {ask.subject_id for _, ask in self._asks.values() if ask.kind is AskKind.SCALE and ask.tenant == "weft"}
        free = [job for job in map(self._jobs.get, sorted(sizes)) if job is not None and job.id not in asked]
        found = [job.id for job in free if job.pool == pool and not job.state.final]
        for job_id in found:
            scale = sizes[job_id]
            self._add_ask(AskKind.SCALE, subject_id=job_id, pool=pool, tenant="weft", at=micro(at), scale=scale)
        return found

    async def ask_shares(self, shares: Mapping[str, Reshare], *, pool: str, at: float) -> list[str]:
        asked = {ask.subject_id for _, ask in self._asks.values() if ask.kind is AskKind.SHARE and ask.tenant == "weft"}
        free = [job for job in map(self._jobs.get, sorted(shares)) if job is not None and job.id not in asked]
        found = [job.id for job in free if job.pool == pool and job.state is JobState.RUNNING]
        for job_id in found:
            share = shares[job_id]
            self._add_ask(AskKind.SHARE, subject_id=job_id, pool=pool, tenant="weft", at=micro(at), share=share)
        return found

    async def drop_envelopes(self, *, pool: str) -> int:
        gone = [
            job_id
            for job_id, envelope in self._envelopes.items()
            if envelope.pool == pool and job_id in self._jobs and self._jobs[job_id].state.final
        ]
        for job_id in gone:
            del self._envelopes[job_id]
        return len(gone)

    # internal

    def _may_ask(self, kind: AskKind, envelope: Envelope) -> bool:
        """Whether the job runs in that epoch, and the reallocator's last ask of the kind is done."""
        job = self._jobs.get(envelope.job_id)
        open_asks = (ask for _, ask in self._asks.values() if (ask.kind, ask.tenant) == (kind, "weft"))
        if job is None or any(ask.subject_id == job.id for ask in open_asks):
            return False
        return job.state is JobState.RUNNING and (job.pool, job.epoch) == (envelope.pool, envelope.epoch)

    def _use(self, tenant: str, *, asked: bool = False) -> Use:
        """What a tenant has open; with `asked`, also what it asked to have requeued."""
        now = [self._jobs.get(job.id, job) for job in self._submitted.values() if job.tenant == tenant]
        counted = [job for job in now if not job.state.final]
        if asked:
            requeued = [ask.subject_id for _, ask in self._asks.values() if ask.kind is AskKind.REQUEUE]
            counted += [self._submitted[job_id] for job_id in requeued if self._submitted[job_id].tenant == tenant]
        return Use(jobs=len(counted), spec_bytes=sum(_bytes_of(job.spec) for job in counted))

    def _now(self) -> Iterable[Job]:
        """Every job as it is now, in the order of submission."""
        return (self._jobs.get(job_id, job) for job_id, job in self._submitted.items())

    def _jobs_in(self, pool: str, states: Iterable[JobState]) -> list[Job]:
        wanted = frozenset(states)
        found = [job for job in self._jobs.values() if job.pool == pool and job.state in wanted]
        return sorted(found, key=lambda job: job.seq)

    def _gpu_memory(self) -> dict[Gpu, int]:
        nodes = (node for node, _ in self._nodes.values())
        return {(node.id, gpu.index): gpu.memory for node in nodes for gpu in node.capacity.gpus}

    def _node_events_before(self, before: float, pool: str) -> list[Event]:
        """Node events that may be deleted: published, and not the last of a node that is still there."""
        told = [event for event in self._events if event.topic == "nodes" and event.at < before]
        last = {event.subject_id: event.version for event in told if event.subject_id in self._nodes}
        return [
            event
            for event in told
            if event.id not in self._outbox
            and last.get(event.subject_id) != event.version
            and msgspec.json.decode(event.data)["pool"] == pool
        ]


def _bytes_of(spec: JobSpec) -> int:
    return len(msgspec.json.encode(spec))


def _lawful(change: JobChange) -> Job:
    """The job after the step. Raises UnlawfulError for a step that the rules forbid."""
    try:
        job = after(change.before, change.step)
    except AssertionError as error:
        raise UnlawfulError(str(error)) from error
    assert job == change.after, f"{job.id} after {change.step.event} is not as the law says"
    return job


def _the_same(before: tuple[str, bytes], spec_hash: bytes) -> StoredSubmission:
    job_id, known_hash = before
    if known_hash != spec_hash:
        raise KeyReusedError(f"this key was used for job {job_id}, which has another specification")
    return StoredSubmission(job_id=job_id, created=False)
