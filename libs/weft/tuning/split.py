"""How to share one budget among the roles of a job, and how much faster the job would be: a model fitted to one window.

With Q of the resource a role needs D/Q of a step's time, D being what it uses per step. The times of roles that take
turns add up; roles that overlap, or steps so short that a quota of 100 ms averages them, wait for the slowest. Both are
ends of one family, T = (Σ (D/Q)^p)^(1/p). The parts of the time in which each role was seen at its limit must give
1 = (Σ part^p)^(1/p), which determines p. The best split of a budget then gives each role D^(p/(p+1)): in proportion
to its use where roles overlap, to the root of its use where they take turns.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

P_MAX = 32.0  # as good as the slowest alone
PART_MIN = 0.01
ROUNDS = 60


class Demand(Struct, frozen=True, kw_only=True):
    """One role. `given`: to its ranks together; `part`, 0–1: for how much of the time it was at its limit.

    `most`: as much as it could use; `least`: what it must keep.
    """

    role: str
    given: float
    part: float
    most: float
    least: float


class Fit(Struct, frozen=True, kw_only=True):
    """`p` of the model; `other`: the part of the time in which no role is at its limit."""

    p: float
    other: float


class Split(Struct, frozen=True, kw_only=True):
    """The limits that each role would get, and the relative gain of the job."""

    by_role: dict[str, float]
    gain: float

    @property
    def total(self) -> float:
        return sum(self.by_role.values())


def fit(parts: Sequence[float]) -> Fit:
    """The p at which the parts give 1; if they sum to less than 1, the rest is `other`."""
    clipped = [min(1.0, max(PART_MIN, part)) for part in parts]
    if sum(clipped) <= 1.0:
        return Fit(p=1.0, other=1.0 - sum(clipped))
    low, high = 1.0, P_MAX
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if sum(part**middle for part in clipped) > 1.0:
            low = middle
        else:
            high = middle
    return Fit(p=high, other=0.0)


def predicted(demands: Sequence[Demand], by_role: Mapping[str, float], fitted: Fit) -> float:
    """The time of a step with these amounts, in units of the time of a step now."""
    parts = [_part(demand, by_role[demand.role]) for demand in demands]
    return float(fitted.other + sum(part**fitted.p for part in parts) ** (1.0 / fitted.p))


def best_split(demands: Sequence[Demand], budget: float) -> Split:
    """The fastest split of at most `budget`. An amount that no role could use stays with the roles that have it."""
    fitted = fit([demand.part for demand in demands])
    power = fitted.p / (fitted.p + 1.0)
    low, high = 0.0, budget / min(_need(demand) ** power for demand in demands) + 1.0
    for _ in range(ROUNDS):
        scale = (low + high) / 2
        if sum(_clamped(demand, scale, power) for demand in demands) > budget:
            high = scale
        else:
            low = scale
    by_role = {demand.role: _clamped(demand, low, power) for demand in demands}
    _leave_the_rest(demands, by_role, budget)
    now = predicted(demands, {demand.role: demand.given for demand in demands}, fitted)
    return Split(by_role=by_role, gain=now / max(predicted(demands, by_role, fitted), 1e-9) - 1.0)


def _part(demand: Demand, given: float) -> float:
    """The role's part of the step time with `given` resources: the measured part, scaled."""
    now = min(demand.given, demand.most)
    return min(1.0, max(PART_MIN, demand.part)) * now / max(min(given, demand.most), 1e-9)


def _need(demand: Demand) -> float:
    """D: what the role would use if a step took 1, so that its part of the time is the measured one."""
    return max(PART_MIN, min(1.0, demand.part)) * max(min(demand.given, demand.most), 1e-6)


def _clamped(demand: Demand, scale: float, power: float) -> float:
    return max(demand.least, min(demand.most, scale * float(_need(demand) ** power)))


def _leave_the_rest(demands: Sequence[Demand], by_role: dict[str, float], budget: float) -> None:
    """Return to each role the part of its offer that no other role takes."""
    rest = min(budget, sum(demand.given for demand in demands)) - sum(by_role.values())
    for demand in demands:
        back = min(max(0.0, demand.given - by_role[demand.role]), max(0.0, rest))
        by_role[demand.role] += back
        rest -= back
