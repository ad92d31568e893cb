"""Throughput against size: a job's measured speed at some numbers of replicas and CPUs, and its expected speed at
others.

Between two measured sizes the speed is interpolated, in logarithms; beyond them it is extrapolated, never faster than
in proportion to the replicas or to the CPUs. The workload's other jobs are a prior: scaled to the job's own points,
they fill the sizes without a measurement. Confidence, 0 to 1, falls with every halving or doubling away from a point.

Each model of GPUs has its own points. Where neither the job nor its workload was measured on a model, the speed on
another model counts, times the ratio of the two models' speeds with one GPU, with less confidence.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, inf, log, log2
from statistics import median

from weft.messages.signals import Curve, CurvePoint

SPEED_MIN, SPEED_MAX = 1e-9, 1e15  # a second; a node may report any number, and what is beyond makes no sense
SPREAD_MAX = 1e3  # of a point: that is as unsure as can be
CPU_STEP = 0.5  # cores: numbers nearer to each other than this are one size
POINTS_MAX = 64
WINDOWS_MEMORY = 20  # a point keeps the weight of this many windows
WINDOWS_KNOWN = 3  # from this many on, a very different speed is taken in step by step
CHANGE_MOST = 1.5
HALF_SURE_WINDOWS = 4.0
HALF_SURE_SPREAD = 0.2
EXPONENT_USUAL = 0.85  # of the replicas, unless two measured sizes give another
CPU_EXPONENT_USUAL = 0.5  # of the CPUs, below what was measured
PRIOR_COUNTS = 0.7  # the weight of other jobs' points, against the job's own
UNSCALED_COUNTS = 0.6  # and if it is unknown how this job compares to them
PROJECTED_COUNTS = 0.5  # and of points on another model of GPUs


def rounded(cpus: float) -> float:
    """CPUs, rounded to the step that makes two points."""
    return max(CPU_STEP, round(cpus / CPU_STEP) * CPU_STEP) if cpus >= CPU_STEP else round(cpus, 3)


def measured(replicas: int, cpus: float, speeds: Sequence[float], *, at: float, model: str = "") -> CurvePoint | None:
    """One point from the speeds of some windows; None if no speed makes sense."""
    sound = [speed for speed in speeds if SPEED_MIN <= speed <= SPEED_MAX]
    if not sound or replicas < 1 or not 0 < cpus < inf:
        return None
    middle = median(sound)
    spread = median(abs(speed - middle) for speed in sound) / middle
    return CurvePoint(
        model=model, replicas=replicas, cpus=rounded(cpus), speed=middle, spread=spread, windows=len(sound), at=at
    )


def joined(points: Iterable[CurvePoint], more: Iterable[CurvePoint]) -> tuple[CurvePoint, ...]:
    """`points` with `more` merged into them by size; the oldest are dropped if there are too many."""
    by_size = {_size(point): point for point in points if _is_sound(point)}
    for point in more:
        size = _size(point)
        known = by_size.get(size)
        by_size[size] = point if known is None else _merged(known, point)
    newest = sorted(by_size.values(), key=lambda point: point.at, reverse=True)[:POINTS_MAX]
    return tuple(sorted(newest, key=lambda point: (point.model, point.replicas, point.cpus)))


def _size(point: CurvePoint) -> tuple[str, int, float]:
    return point.model, point.replicas, rounded(point.cpus)


def _merged(known: CurvePoint, new: CurvePoint) -> CurvePoint:
    """Two points of one size, weighted by windows. A well-known speed changes by CHANGE_MOST at most."""
    speed = new.speed
    if known.windows >= WINDOWS_KNOWN:
        speed = min(max(speed, known.speed / CHANGE_MOST), known.speed * CHANGE_MOST)
    before, now = min(known.windows, WINDOWS_MEMORY), min(new.windows, WINDOWS_MEMORY)
    part = now / (before + now)
    merged = known.speed + (speed - known.speed) * part
    between = abs(new.speed - known.speed) / known.speed
    return CurvePoint(
        model=known.model,
        replicas=known.replicas,
        cpus=known.cpus,
        speed=merged,
        spread=min(SPREAD_MAX, known.spread + (max(new.spread, between / 2) - known.spread) * part),
        windows=known.windows + new.windows,
        at=max(known.at, new.at),
    )


def confidence_of(point: CurvePoint) -> float:
    """The confidence in a point: by the number of its windows, and their spread."""
    return (
        point.windows
        / (point.windows + HALF_SURE_WINDOWS)
        / (1.0 + (min(point.spread, SPREAD_MAX) / HALF_SURE_SPREAD) ** 2)
    )


def speed_at(
    curve: Curve | None,
    replicas: int,
    cpus: float,
    *,
    prior: Curve | None = None,
    model: str = "",
    ratios: Mapping[str, float] | None = None,
) -> tuple[float, float]:
    """The expected speed of `replicas` with `cpus` cores together, and the confidence; (0, 0) if nothing is known.

    `prior`: the workload's curve. `model`: that of the GPUs; empty: any. `ratios`: the usual speed on one GPU of each
    model, in any unit.
    """
    if replicas < 1 or not 0 < cpus < inf:
        return 0.0, 0.0
    own, others = _usable(curve), _usable(prior)
    scale, comparable = _scale(own, others)
    counts = PRIOR_COUNTS * (1.0 if comparable else UNSCALED_COUNTS)

    def on(model: str) -> tuple[float, float]:
        here = _on(own, model)
        speed, sure = _expected(here, replicas, cpus)
        usual, how_sure = _expected(_on(others, model), replicas, cpus)
        usual, how_sure = usual * scale, how_sure * counts
        if sure + how_sure <= 0:
            return speed or usual, 0.0
        if not usual:
            return speed, sure
        together = (speed * sure + usual * how_sure) / (sure + how_sure)
        return _not_above_linear(together, here, replicas), max(sure, how_sure)

    speed, sure = on(model)
    if speed or not model or not ratios or model not in ratios:
        return speed, sure
    measured_on = sorted({point.model for point in (*own, *others)} & ratios.keys())
    found = [(sure, other, speed) for other in measured_on for speed, sure in [on(other)] if speed]
    if not found:
        return 0.0, 0.0
    sure, other, speed = max(found)
    return speed * ratios[model] / ratios[other], sure * PROJECTED_COUNTS


def _usable(curve: Curve | None) -> tuple[CurvePoint, ...]:
    points = () if curve is None else curve.points
    return tuple(point for point in points if point.replicas >= 1 and 0 < point.cpus < inf and _is_sound(point))


def _on(points: Sequence[CurvePoint], model: str) -> tuple[CurvePoint, ...]:
    """The points on GPUs of that model, and those of which the model is unknown; all if `model` is empty."""
    return tuple(point for point in points if not model or point.model in ("", model))


def _is_sound(point: CurvePoint) -> bool:
    return SPEED_MIN <= point.speed <= SPEED_MAX


def _scale(own: Sequence[CurvePoint], others: Sequence[CurvePoint]) -> tuple[float, bool]:
    """How much faster this job is than its workload at the measured sizes and models; whether that is known."""
    ratios = []
    for point in own:
        usual, _ = _expected(_on(others, point.model), point.replicas, point.cpus)
        if usual > 0:
            ratios.append(point.speed / usual)
    return (median(ratios), True) if ratios else (1.0, False)


def _not_above_linear(speed: float, own: Sequence[CurvePoint], replicas: int) -> float:
    """Bound a prior by the speed in proportion to the largest measured size."""
    largest = max((point.replicas for point in own), default=0)
    if not largest or replicas <= largest:
        return speed
    best = max(point.speed for point in own if point.replicas == largest)
    return min(speed, best * replicas / largest)


# from points alone


def _expected(points: Sequence[CurvePoint], replicas: int, cpus: float) -> tuple[float, float]:
    """Read each row of equal replicas at the same CPUs per replica, then interpolate between the rows."""
    if not points:
        return 0.0, 0.0
    rows: dict[int, list[CurvePoint]] = {}
    for point in sorted(points, key=lambda point: (point.replicas, point.cpus)):
        rows.setdefault(point.replicas, []).append(point)
    each = cpus / replicas
    if replicas in rows:
        return _in_row(rows[replicas], cpus)
    sizes = sorted(rows)
    known = {size: _in_row(rows[size], each * size) for size in _nearest(sizes, replicas)}
    return _between(known, replicas)


def _nearest(sizes: Sequence[int], replicas: int) -> tuple[int, ...]:
    """The two sizes around it, or the last two on its side."""
    below = [size for size in sizes if size < replicas]
    above = [size for size in sizes if size > replicas]
    if below and above:
        return below[-1], above[0]
    return tuple(below[-2:] or above[:2])


def _between(known: dict[int, tuple[float, float]], replicas: int) -> tuple[float, float]:
    exponent = EXPONENT_USUAL
    for (small, (slow, _)), (large, (fast, _)) in pairwise(sorted(known.items())):
        exponent = min(1.0, max(0.0, log(fast / slow) / log(large / small)))
    nearest = min(known, key=lambda size: abs(log2(replicas / size)))
    inside = min(known) < replicas < max(known)
    begin = min(known) if inside else nearest
    speed = known[begin][0] * (replicas / begin) ** exponent
    if inside:  # between the two, also where more replicas were slower
        (small, (slow, _)), (large, (fast, _)) = sorted(known.items())
        part = log(replicas / small) / log(large / small)
        speed = min(exp(log(slow) + (log(fast) - log(slow)) * part), slow * replicas / small)
    away = abs(log2(replicas / nearest))
    surest = min(sure for _, sure in known.values()) if inside else known[nearest][1]
    return speed, surest * 0.5 ** (away / 2 if inside else away)


def _in_row(row: Sequence[CurvePoint], cpus: float) -> tuple[float, float]:
    """The speed at these CPUs, from points of equal replicas in ascending order of CPUs."""
    for point in row:
        if abs(point.cpus - cpus) <= CPU_STEP / 2:
            return point.speed, confidence_of(point)
    for low, high in pairwise(row):
        if low.cpus < cpus < high.cpus:
            part = (cpus - low.cpus) / (high.cpus - low.cpus)
            speed = low.speed + (high.speed - low.speed) * part
            near = min(abs(log2(cpus / low.cpus)), abs(log2(cpus / high.cpus)))
            return speed, min(confidence_of(low), confidence_of(high)) * 0.5 ** (near / 2)
    if cpus > row[-1].cpus:  # more CPUs may help or not: no gain is promised
        return row[-1].speed, confidence_of(row[-1]) * 0.5 ** log2(cpus / row[-1].cpus)
    least, exponent = row[0], CPU_EXPONENT_USUAL
    if len(row) > 1 and row[1].cpus > least.cpus:
        slope = log(row[1].speed / least.speed) / log(row[1].cpus / least.cpus)
        exponent = min(1.0, max(0.0, slope))
    return least.speed * (cpus / least.cpus) ** exponent, confidence_of(least) * 0.5 ** log2(least.cpus / cpus)
