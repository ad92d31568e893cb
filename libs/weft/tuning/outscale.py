"""One more replica of the role that holds a job back, where no other limit helps: when it is proposed, and of which."""

from statistics import median

from msgspec import Struct

from weft.domain.job import CauseCode
from weft.domain.shares import gpus_held
from weft.messages.asks import RankTuning
from weft.messages.signals import Finding
from weft.samples.thresholds import UNTHROTTLED
from weft.tuning.cpus import SMALLEST
from weft.tuning.envelope import CPUS_MIN, cpus_of, grained
from weft.tuning.held import ALIKE
from weft.tuning.proposal import GAIN_MIN, WORTH_MIN, Case, Proposal
from weft.tuning.verdict import THREAD_BUSY, Verdict

EXPONENT_USUAL = 0.85  # of the replicas, until a trial has measured it
_HOLDS_BACK = (Verdict.CPU_QUOTA_BOUND, Verdict.NETWORK_BOUND, Verdict.LAUNCH_BOUND)


def suggested(case: Case) -> Finding | None:
    """Says that one more replica might help, for jobs that are not given it: their users decide."""
    role = role_of(case)
    if role is None:
        return None
    have = case.job.granted[role]
    most = case.job.spec.roles[role].replicas.max
    if most is not None and have >= most:
        return None
    return Finding(
        code="outscale",
        job_id=case.job.id,
        sentence=f"one more {role} of {case.job.name} might help; its replicas cannot get more, or would gain nothing: "
        + case.stood.reading.sentence,
        numbers={**case.stood.reading.numbers, "have": float(have)},
    )


def one_more(case: Case) -> Proposal | None:
    """One more replica of the role that holds the job back; None if it may not have it, or it is not predicted to pay.

    A job that restarts for it must gain more, until it ends or the horizon, than the restart costs.
    """
    role, room = role_of(case), case.room
    if role is None or room is None or role not in room.roles or not case.open(_direction(role)):
        return None
    have = case.job.granted[role]
    if not 0 < have < case.job.spec.roles[role].replicas.most or not _may_send(case, role):
        return None
    shared = _shared(case, role)
    if shared is None:
        return None
    more = (1.0 + 1.0 / have) ** room.exponents.get(role, EXPONENT_USUAL)
    gain = more / _slower(case, role, shared.part) - 1.0
    cost = shared.cost
    if (
        gain < GAIN_MIN
        or gain < WORTH_MIN * cost
        or (room.cost_s and gain * (room.left_s - room.cost_s) <= room.cost_s)
    ):
        return None
    sentence = f"{role} {have} → {have + 1}"
    if room.cost_s:
        sentence += f", for {room.cost_s:.0f} s without progress"
    return Proposal(
        direction=_direction(role),
        code=CauseCode.OUTSCALED,
        gain=gain,
        cost=cost,
        sentence=sentence,
        numbers={"had": float(have), "cost": round(cost, 6), "cost_seconds": room.cost_s},
        size_before={role: have},
        size_after={role: have + 1},
        before=shared.before,
        after=shared.after,
        sharing=shared.sharing,
    )


def role_of(case: Case) -> str | None:
    """The role that holds the job back and of which one more replica might help."""
    if case.stood.reading.code in _HOLDS_BACK:
        return case.stood.role or None
    return _one_thread(case) if case.stood.reading.code in (Verdict.HEALTHY, Verdict.OVER_PROVISIONED) else None


def told(case: Case) -> int:
    """The number of ranks that report their speed, of the role that holds the job back."""
    role = role_of(case)
    return sum(window.role == role and window.speed is not None for window in case.recent[-1].ranks)


def _one_thread(case: Case) -> str | None:
    """A role that may have more ranks, each with one thread that is busy all the time: it lacks ranks, not cores."""
    for name, role in case.job.spec.roles.items():
        windows = [window for window in case.recent[-1].ranks if window.role == name]
        busy = (
            (window.busiest_thread or 0.0) >= THREAD_BUSY and (window.cpu_throttled or 0.0) < UNTHROTTLED
            for window in windows
        )
        if windows and len(windows) < role.replicas.most and all(busy):
            return name
    return None


def _direction(role: str) -> str:
    return f"replicas:one-more:{role}"


def _allowed(case: Case, role: str) -> float:
    """The cores that the job may have with a further replica, beyond what it has."""
    roles, tuning = case.job.spec.roles, case.job.spec.tuning
    asked = sum(roles[one.role].cpus for one in case.allocations)
    times = 1.0 if tuning.cpus is not None else 1.0 + roles[role].cpus / asked
    return case.bounds.cpus * times - cpus_of(case.allocations)


def _may_send(case: Case, role: str) -> bool:
    """True if the sum of what the job's ranks may send leaves room for a further replica."""
    sends = sum(one.egress or 0 for one in case.allocations) + (case.job.spec.roles[role].egress_bytes or 0)
    return case.bounds.egress_total is None or sends <= case.bounds.egress_total


class _Shared(Struct, frozen=True, kw_only=True):
    """The limits of a role's ranks with a further one: `before`; `after`, to make room for it; `sharing`, once it is
    there. `part`: of the cores that a rank has, so much it then has; `cost`: by which part the job's resources grow."""

    before: tuple[RankTuning, ...] = ()
    after: tuple[RankTuning, ...] = ()
    sharing: tuple[RankTuning, ...] = ()
    part: float = 1.0
    cost: float = 0.0


def _shared(case: Case, role: str) -> _Shared | None:
    """In synchronous training the slowest rank alone counts, so that the further rank has as much as its peers: as far
    as the job may have so much, else all of them share what there is. None if that is too little.

    It joins with what its role asks for: where that is more than is left, its peers first give it.
    """
    asked, peers = case.job.spec.roles[role], [one for one in case.allocations if one.role == role]
    usual, count = median(one.cpus for one in peers), len(peers)
    has = sum(one.cpus for one in peers) + _allowed(case, role)
    room = (has - asked.cpus) / count  # for each of its peers, while it joins
    each = asked.cpus if usual <= min(asked.cpus, room) else min(usual, has / (count + 1))
    if min(each, room) < CPUS_MIN:
        return None
    lower, each = grained(room), grained(each)
    yields = any(one.cpus > lower + ALIKE for one in peers)
    giving = [one for one in peers if one.cpus > each + SMALLEST or (yields and one.cpus > min(lower, each))]
    new = _joining(case, role, each)
    shared = tuple(RankTuning(rank=one.rank, cpus=min(one.cpus, each)) for one in giving)
    return _Shared(
        before=tuple(RankTuning(rank=one.rank, cpus=one.cpus) for one in giving),
        after=tuple(RankTuning(rank=one.rank, cpus=min(one.cpus, lower)) for one in giving) if yields else (),
        sharing=(*shared, new) if new is not None else shared,
        part=min(1.0, each / usual),
        cost=_cost(case, role, new, given=sum(max(0.0, one.cpus - each) for one in giving)),
    )


def _joining(case: Case, role: str, cpus: float) -> RankTuning | None:
    """Limits of the additional rank that differ from its role's. Egress with a bounded sum stays as requested."""
    asked, peers = case.job.spec.roles[role], [one for one in case.allocations if one.role == role]
    memory = int(median(one.memory for one in peers))
    sends = int(median(one.egress or 0 for one in peers)) if case.bounds.egress_total is None else 0
    limits = RankTuning(
        rank=-1,
        cpus=cpus if abs(cpus - asked.cpus) > ALIKE else None,
        memory=memory if memory > asked.memory_bytes else None,
        egress=sends if asked.egress_bytes is not None and sends > asked.egress_bytes else None,
    )
    return None if limits == RankTuning(rank=-1) else limits


def _cost(case: Case, role: str, new: RankTuning | None, *, given: float) -> float:
    """By which part the job's cores or GPUs grow, whichever grow more: its peers give the cores `given`."""
    held, asked = case.allocations, case.job.spec.roles[role]
    cpus = asked.cpus if new is None or new.cpus is None else new.cpus
    of_cpus = max(0.0, cpus - given) / cpus_of(held)
    gpus = asked.gpus if asked.share is None else asked.share.request
    return max(of_cpus, gpus / sum(gpus_held(one.gpus, one.share) for one in held)) if gpus else of_cpus


def _slower(case: Case, role: str, part: float) -> float:
    """The factor by which a step takes longer if each rank of the role has only this part of its cores."""
    windows = [window for window in case.recent[-1].ranks if window.role == role]
    used = max((window.use_part or 0.0 for window in windows), default=1.0)
    at_limit = min(1.0, used)
    return at_limit / part + 1.0 - at_limit
