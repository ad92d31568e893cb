"""The runs of jobs as their nodes report them, and when a run counts as gone."""

from collections.abc import Container, Mapping, Sequence
from math import inf

from msgspec import Struct, structs

from weft.domain.failure import TIMED_OUT
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState
from weft.messages.nodes import (
    NEVER_RAN,
    NOT_UPLOADED,
    NOTED_MAX,
    EndReason,
    JobOrder,
    NodeReported,
    RunSeen,
    RunState,
)

OTHER_BOOT_HEARD = 3  # reports in a row of another boot with a lower incarnation until that boot is accepted
ENDED_AT = "ended_at"  # the number of a cause: when the rank ended that stops its job, where its success was not needed
TOLD_TO_STOP = frozenset({EndReason.STOPPED, EndReason.FENCED})
_Key = tuple[str, int, int]
SIGNAL_STATUS = 128  # a process that signal N ended has this and N as its status
SIGNALS = (  # of Linux, from 1 on
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
)
FINISHED = "finished"  # `finished=1`: the work is done, whatever the steps are


class Ranks(Struct, frozen=True):
    """The ranks of one job in its present epoch, as reported by their nodes; None: not reported.

    `seen`: those of its core, which live and die together; `needed`: those of them whose success is that of the job,
    all but where `done_when` names roles; `others`: those that may come and go alone.
    """

    seen: tuple[RunSeen | None, ...]
    needed: tuple[RunSeen | None, ...]
    others: tuple[RunSeen | None, ...]
    first_node: str

    @property
    def any_seen(self) -> bool:
        return any(self.seen)

    @property
    def all_began(self) -> bool:
        return all(run is not None and _began(run) for run in self.seen)

    def all_succeeded(self, failed_at: float | None = None) -> bool:
        """Has every needed rank ended with status 0, of its own accord or stopped with the job's work done?

        Another rank of the core may have failed after that, as it may lose what it talked to, but not before.
        `failed_at`: when one did for which the job was stopped; its node may know that end no more.
        """
        done, end = self._said_finished, 0.0
        for run in self.needed:
            if run is None or not (_succeeded(run) or (done and _stopped_with_0(run))):
                return False
            end = max(end, run.ended_at or inf)
        failed = [run.ended_at or 0.0 for run in self.seen if run is not None and _failed(run)]
        return all(end < at for at in (*failed, *(() if failed_at is None else (failed_at,))))

    @property
    def _said_finished(self) -> bool:
        """Return True if the progress of any rank reports the work as done. Usually only rank 0 reports progress."""
        return any(run is not None and is_finished(run.progress) for run in (*self.seen, *self.others))

    @property
    def first_ended_badly(self) -> Cause | None:
        """Why the job ends: the first rank that failed, rather than the ranks that were stopped because of it. A rank
        that was killed outside its share comes before all: the job must not be tried again."""
        bad = [run for run in self.seen if run is not None and run.state is RunState.EXITED and not _succeeded(run)]
        first = min(bad, key=_how_late, default=None)
        if first is None:
            return None
        cause = _cause(first, of=len(self.seen))
        if first in self.needed:
            return cause
        return structs.replace(cause, numbers={**cause.numbers, ENDED_AT: first.ended_at or 0.0})

    @property
    def exit_code(self) -> int | None:
        """The first exit status that is not 0; otherwise 0 if a run ended; otherwise None."""
        codes = [run.exit_code for run in self.seen if run is not None and run.exit_code is not None]
        return next((code for code in codes if code), 0 if codes else None)

    @property
    def noted(self) -> str:
        """The notes of the nodes on its ranks, to follow another sentence."""
        told = {each.sentence: None for run in (*self.seen, *self.others) if run is not None for each in run.noted}
        return "".join(f"; {sentence}" for sentence in list(told)[:NOTED_MAX])

    @property
    def progress(self) -> dict[str, float] | None:
        """The progress of the first rank that reports any, usually rank 0; of a needed one before others."""
        ranks = (*self.needed, *self.seen, *self.others)
        return next((run.progress for run in ranks if run is not None and run.progress), None)


class Runs:
    """The runs by node. A run that was reported or offered once counts as gone only by a later report of its node."""

    def __init__(self) -> None:
        self.holding: set[str] = set()
        self._held: dict[_Key, str] = {}  # the node of every run that a job has
        self._jobs_on: dict[str, set[str]] = {}
        self._reports: dict[str, tuple[str, int, int]] = {}  # boot id, incarnation, seq
        self._other_boot: dict[str, tuple[str, int, int]] = {}  # refused reports: boot id, seq, number in a row
        self._seen: dict[str, dict[_Key, RunSeen]] = {}
        self._offered: dict[_Key, tuple[int, int]] = {}  # incarnation and seq of the report whose answer offered it
        self._ever_seen: set[_Key] = set()
        self._loaded: set[_Key] = set()  # loaded from the store: an earlier leader may have offered them
        self._noted: dict[_Key, set[str]] = {}  # codes of what the story has of each run
        self._sure: set[str] = set()  # nodes whose newest report was surely sent under this leader

    def jobs_on(self, node_id: str) -> set[str]:
        return self._jobs_on.get(node_id, set())

    def hold(self, job: Job, *, loaded: bool) -> None:
        """A job begins to hold its placement. `loaded`: from the store; an earlier leader may have offered it, so only
        a report that is surely younger proves it gone."""
        assert job.placement is not None
        self.holding.add(job.id)
        self._be_on(job)
        for allocation in job.placement.allocations:
            key = (job.id, job.epoch, allocation.rank)
            self._held[key] = allocation.node_id
            if loaded:
                self._offered[key] = (-1, 0)
                self._loaded.add(key)
            if job.state is JobState.RUNNING:
                self._ever_seen.add(key)

    def let_go(self, job: Job) -> None:
        assert job.placement is not None
        self.holding.discard(job.id)
        self._leave(job)
        for allocation in job.placement.allocations:
            self._let_go((job.id, job.epoch, allocation.rank))

    def change(self, before: Job, job: Job) -> None:
        """A job holds other ranks in the same epoch; those that it held before stay as they are known."""
        assert before.placement is not None
        assert job.placement is not None
        self._leave(before)
        self._be_on(job)
        has = {allocation.rank: allocation.node_id for allocation in job.placement.allocations}
        for allocation in before.placement.allocations:
            if allocation.rank not in has:
                self._let_go((job.id, job.epoch, allocation.rank))
        self._held.update({(job.id, job.epoch, rank): node_id for rank, node_id in has.items()})

    def _be_on(self, job: Job) -> None:
        for allocation in job.held:
            self._jobs_on.setdefault(allocation.node_id, set()).add(job.id)

    def _leave(self, job: Job) -> None:
        for allocation in job.held:
            self._jobs_on.get(allocation.node_id, set()).discard(job.id)

    def _let_go(self, key: _Key) -> None:
        self._held.pop(key, None)
        self._offered.pop(key, None)
        self._loaded.discard(key)
        self._ever_seen.discard(key)
        self._noted.pop(key, None)

    def refuses(self, report: NodeReported) -> str:
        """Why a report is refused: a newer one of the same node came already. Empty if it is accepted."""
        known = self._reports.get(report.node_id)
        if known is None or (report.incarnation, report.seq) > known[1:]:
            return ""
        if known[0] != report.boot_id and self._other_boots(report) >= OTHER_BOOT_HEARD:
            return ""  # a node without its old disk and clock has a lower incarnation; late reports do not keep coming
        return f"a newer report of {report.node_id} has arrived: another executor may speak for this node"

    def _other_boots(self, report: NodeReported) -> int:
        """Number of reports in a row from this boot, each newer than the one before."""
        boot, seq, count = self._other_boot.get(report.node_id, ("", 0, 0))
        count = count + 1 if boot == report.boot_id and report.seq > seq else 1
        self._other_boot[report.node_id] = (report.boot_id, report.seq, count)
        return count

    def see(self, report: NodeReported, *, sure: bool) -> None:
        """Take in a report. `sure`: sent under this leader. If not, it may be late: a missing run proves nothing."""
        if sure:
            self._sure.add(report.node_id)
        known = self._reports.get(report.node_id)
        if known is not None and known[0] != report.boot_id:  # A run offered before the boot cannot begin now.
            on_node = [key for key, node_id in self._held.items() if node_id == report.node_id]
            self._offered.update(dict.fromkeys(self._offered.keys() & on_node, (-1, 0)))
        self._reports[report.node_id] = (report.boot_id, report.incarnation, report.seq)
        self._other_boot.pop(report.node_id, None)
        seen = self._seen[report.node_id] = {(run.job_id, run.epoch, run.rank): run for run in report.runs}
        self._ever_seen.update(key for key in seen if self._held.get(key) == report.node_id)

    def forget(self, node_id: str) -> None:
        """Forget all reports of a removed node, which has no run."""
        assert not self.jobs_on(node_id), f"{node_id} still has runs"
        self._jobs_on.pop(node_id, None)
        self._reports.pop(node_id, None)
        self._other_boot.pop(node_id, None)
        self._seen.pop(node_id, None)
        self._sure.discard(node_id)

    def offered(self, node_id: str, orders: Sequence[JobOrder]) -> None:
        """The answer to the node's newest report ordered these ranks: they may run, whatever that report says."""
        _, incarnation, seq = self._reports[node_id]
        for order in orders:
            for rank in order.ranks:
                self._offered[order.job_id, order.epoch, rank.rank] = (incarnation, seq)

    def of(self, job: Job) -> Ranks:
        assert job.placement is not None
        allocations = job.placement.allocations
        core = [(self.run(job, allocation), allocation.role) for allocation in allocations if not allocation.extra]
        needed = job.spec.done_roles
        return Ranks(
            tuple(run for run, _ in core),
            tuple(run for run, role in core if role in needed),
            tuple(self.run(job, allocation) for allocation in allocations if allocation.extra),
            allocations[0].node_id if allocations else "",
        )

    def gone(self, job: Job, allocation: Allocation) -> bool:
        """Return True if this rank certainly does not run, and never will in this epoch once it is no longer
        desired."""
        key = (job.id, job.epoch, allocation.rank)
        run = self.run(job, allocation)
        if run is not None:
            return run.state is RunState.EXITED
        offered = self._offered.get(key)
        if offered is None:
            return True  # no node was ever ordered to run it
        if not self._can_tell(allocation.node_id, key):
            return False
        report = self._reports.get(allocation.node_id)
        return report is not None and report[1:] > offered

    def alive(self, job: Job, allocation: Allocation) -> bool:
        """Return True if the node's newest report has this rank, not ended."""
        run = self.run(job, allocation)
        return run is not None and run.state is not RunState.EXITED

    def reported_by(self, node_id: str) -> Container[_Key]:
        """The runs in the node's newest report, ended or not, by job, epoch and rank."""
        return self._seen.get(node_id, {})

    def orphans(self, node_id: str, jobs: Mapping[str, Job]) -> tuple[RunSeen, ...]:
        """Reported runs that no job has on the node: alive, or ended in an epoch that is not over for the job."""
        return tuple(
            run
            for key, run in self._seen.get(node_id, {}).items()
            if self._held.get(key) != node_id
            and (run.state is not RunState.EXITED or (run.job_id in jobs and run.epoch >= jobs[run.job_id].epoch))
        )

    def first_lost(self, job: Job) -> Cause | None:
        """A rank of its core that its node reported before and no longer reports, although no stop was ordered."""
        assert job.placement is not None
        core = (allocation for allocation in job.placement.allocations if not allocation.extra)
        return next((cause for allocation in core if (cause := self.lost(job, allocation)) is not None), None)

    def lost(self, job: Job, allocation: Allocation) -> Cause | None:
        """Why this rank counts as lost: its node reported it before and no longer does. None if it is not lost."""
        key = (job.id, job.epoch, allocation.rank)
        missing = allocation.node_id in self._seen and self.run(job, allocation) is None
        if not (missing and key in self._ever_seen and self._can_tell(allocation.node_id, key)):
            return None
        sentence = f"node {allocation.node_id} no longer has rank {allocation.rank}"
        return Cause(code=CauseCode.RUN_LOST, sentence=sentence, by=allocation.node_id)

    def ended_badly(self, job: Job, allocation: Allocation) -> Cause | None:
        """Why this rank failed; None if it did not."""
        run = self.run(job, allocation)
        if run is None or run.state is not RunState.EXITED or _succeeded(run):
            return None
        return _cause(run, of=2)

    def take_notes(self, job: Job) -> list[Cause]:
        """The notes of the nodes that no earlier call has returned: each kind once for each rank."""
        assert job.placement is not None
        found: list[Cause] = []
        for allocation in job.placement.allocations:
            run, key = self.run(job, allocation), (job.id, job.epoch, allocation.rank)
            for noted in () if run is None else run.noted:
                told = self._noted.setdefault(key, set())
                if noted.code not in told and len(told) < NOTED_MAX:
                    told.add(noted.code)
                    rank = f"rank {allocation.rank}: " if len(job.placement.allocations) > 1 else ""
                    numbers = {"rank": float(allocation.rank)}
                    sentence = f"{rank}{noted.sentence}"
                    code = CauseCode(noted.code)
                    found.append(Cause(code=code, sentence=sentence, by=allocation.node_id, numbers=numbers))
        return found

    def _can_tell(self, node_id: str, key: _Key) -> bool:
        """Return True if a run that is missing in the node's newest report certainly does not run."""
        return key not in self._loaded or node_id in self._sure

    def began(self, job: Job, allocation: Allocation) -> bool:
        """Return True if the node's newest report shows that this rank began."""
        run = self.run(job, allocation)
        return run is not None and _began(run)

    def run(self, job: Job, allocation: Allocation) -> RunSeen | None:
        """The rank as its node's newest report has it."""
        return self._seen.get(allocation.node_id, {}).get((job.id, job.epoch, allocation.rank))


def _began(run: RunSeen) -> bool:
    if run.state is RunState.EXITED:
        return run.reason not in NEVER_RAN
    return run.state is RunState.RUNNING


def _succeeded(run: RunSeen) -> bool:
    return run.state is RunState.EXITED and run.reason is EndReason.EXIT and run.exit_code == 0


def _failed(run: RunSeen) -> bool:
    return run.state is RunState.EXITED and not _succeeded(run) and not _told_to_stop(run)


def _how_late(run: RunSeen) -> tuple[bool, bool, float, int]:
    return _told_to_stop(run), not run.uncontrolled, run.ended_at or inf, run.rank


def _told_to_stop(run: RunSeen) -> bool:
    """True if it ended through no fault of its own."""
    return run.reason in TOLD_TO_STOP and not run.uncontrolled


def _stopped_with_0(run: RunSeen) -> bool:
    return run.state is RunState.EXITED and _told_to_stop(run) and run.exit_code == 0


def _cause(run: RunSeen, *, of: int) -> Cause:
    """Why a rank ended badly, and what its node saw of it."""
    found = _cause_alone(run, of=of)
    return structs.replace(found, sentence="; ".join([found.sentence, *(each.sentence for each in run.noted)]))


def _cause_alone(run: RunSeen, *, of: int) -> Cause:
    rank = f"rank {run.rank} " if of > 1 else ""
    numbers = {"rank": float(run.rank)}
    if run.exit_code is not None:
        numbers["exit_code"] = float(run.exit_code)
    match run.reason:
        case EndReason.START_FAILED if run.detail.startswith(f"{CauseCode.OBJECT_STORE}: "):
            sentence = f"{rank}could not start: {run.detail.partition(': ')[2]}"
            return Cause(code=CauseCode.OBJECT_STORE, sentence=sentence, numbers=numbers)
        case EndReason.START_FAILED:
            sentence = f"{rank}could not start: {run.detail}"
            code = CauseCode.CANNOT_START if run.for_good else CauseCode.START_FAILED
            return Cause(code=code, sentence=sentence, numbers=numbers)
        case EndReason.EXIT if run.exit_code == NOT_UPLOADED and run.detail.startswith(f"{CauseCode.OBJECT_STORE}: "):
            sentence = f"{rank}ended, and {run.detail.partition(': ')[2]}"
            return Cause(code=CauseCode.OBJECT_STORE, sentence=sentence, numbers=numbers)
        case EndReason.PORT_TAKEN:
            return Cause(code=CauseCode.PORT_TAKEN, sentence=f"{rank}could not start: {run.detail}")
        case EndReason.OOM:
            sentence = f"{rank}ran out of memory: it used more than it asked for, and was killed"
            return Cause(code=CauseCode.OUT_OF_MEMORY, sentence=sentence, numbers=numbers)
        case EndReason.FENCED:
            return Cause(code=CauseCode.NODE_STOPPED, sentence=f"{rank}was stopped by its node, which was cut off")
        case EndReason.STOPPED if run.uncontrolled:
            sentence = (
                f"{rank}used its GPU outside its share, and this pool or its node is strict about that: it was killed"
            )
            return Cause(code=CauseCode.UNCONTROLLED, sentence=sentence, numbers=numbers)
        case EndReason.STOPPED:
            return Cause(code=CauseCode.NODE_STOPPED, sentence=f"{rank}was stopped by its node, which was shut down")
        case EndReason.LOST:
            return Cause(code=CauseCode.RUN_LOST, sentence=f"{rank}vanished from its node. {run.detail}".strip())
        case _:
            sentence = f"{rank}{status_text(run.exit_code)}"
            if run.timed_out and of > 1:
                numbers[TIMED_OUT] = 1.0
                sentence += ", after a rank waited for the others in vain"
            code = CauseCode.EXITED if of == 1 else CauseCode.RANK_ENDED
            return Cause(code=code, sentence=sentence, numbers=numbers)


def status_text(status: int | None) -> str:
    """`ended with status 3`; above 128 the signal is named, as a shell reports one that killed its command."""
    number = (status or 0) - SIGNAL_STATUS
    if not 1 <= number <= len(SIGNALS):
        return f"ended with status {status}"
    return f"was killed by {SIGNALS[number - 1]} (status {status})"


def is_finished(progress: Mapping[str, float]) -> bool:
    """Whether the job has reported its work as done: by that name, or by its last step."""
    steps = progress.get("steps", 0.0)
    return progress.get(FINISHED, 0.0) > 0 or (steps > 0 and progress.get("step", 0.0) >= steps)
