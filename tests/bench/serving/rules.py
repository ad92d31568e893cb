"""Autoscalers on the same requests, GPUs and start times, simulated: ours, ours without each of its parts, and the
rules of Knative, Ray Serve, Dynamo and dstack with their own constants; sizes fixed for the mean and for the peak.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import pairwise
from typing import TypeVar

from msgspec import Struct, structs

from tests.bench.figures import Aim
from tests.bench.serving.baselines import OTHERS, WEFTS, compared
from tests.bench.serving.oracle import oracle_gpu_s
from weft.planning.policy import Policy
from weft.serving.loads import Autoscaler, Goal
from weft.simulator.counted import Counted
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import Outcome
from weft.simulator.run import simulate
from weft.simulator.serving.over_time import Serving
from weft.simulator.serving.rates import Bursts, RequestRate
from weft.simulator.serving.service import WHOLE, Services, Spread, TraceService, replicas_for
from weft.simulator.workload import Workload

D = TypeVar("D")
R = TypeVar("R")

STICKY = Policy("fifo", "packed-sticky", "none")
NONE = Workload(name="services", jobs=())
RULES = tuple(name for name in OTHERS if name not in ("fixed", "hpa"))  # the HPA has its constants for the mixed day
OWN_QUEUE = ", queue in order"
IN_ORDER = tuple(f"{name}{OWN_QUEUE}" for name in RULES)
FIXED = ("fixed-mean", "fixed-peak")
TIMES = 4.0  # of a burst
SHARE = 250  # thousandths of a GPU for each replica, where services have shares


class Day(Struct, frozen=True, kw_only=True):
    """How long a day of the rates is, how many there are, and how often bursts come."""

    lasts_s: float
    days: int
    burst_every_s: float

    @property
    def all_s(self) -> float:
        return self.lasts_s * self.days


def rate_of_day(mean: float, *, swing: float, day_s: float, burst_every_s: float) -> RequestRate:
    """Highest at noon, with bursts of a minute and a half. `mean`: a second; `swing`: the part by which it differs."""
    bursts = Bursts(every_s=burst_every_s, lasts_s=90.0, times=TIMES)
    return RequestRate(mean=mean, swing=swing, period_s=day_s, peak_at_s=day_s / 2, bursts=bursts)


QUICK = Day(lasts_s=3600.0, days=2, burst_every_s=1800.0)
FULL = Day(lasts_s=2 * 3600.0, days=2, burst_every_s=1800.0)


def services_of(day: Day) -> tuple[TraceService, ...]:
    """A chat model, one that classifies pictures, and a slow one; each with bursts. Clients wait five times as long as
    the objective is, and then give up."""

    def rate(mean: float) -> RequestRate:
        return rate_of_day(mean, swing=0.7, day_s=day.lasts_s, burst_every_s=day.burst_every_s)

    return (
        TraceService(
            name="chat",
            rate=rate(20.0),
            work=Spread(mean_s=0.1, cv=0.5),
            start=Spread(mean_s=20.0, cv=0.2),
            timeout_s=2.0,
            latency_s=0.4,
            rate_promised=34.0,
            most=60,
            want=4,
        ),
        TraceService(
            name="pictures",
            rate=rate(30.0),
            work=Spread(mean_s=0.2, cv=0.3),
            start=Spread(mean_s=10.0, cv=0.2),
            timeout_s=5.0,
            latency_s=1.0,
            rate_promised=51.0,
            most=60,
            want=3,
            concurrency=4,
        ),
        TraceService(
            name="slow",
            rate=rate(3.0),
            work=Spread(mean_s=0.8, cv=1.0),
            start=Spread(mean_s=40.0, cv=0.2),
            timeout_s=40.0,
            latency_s=8.0,
            percentile=95.0,
            rate_promised=5.0,
            most=60,
            want=4,
        ),
    )


def with_shares(service: TraceService) -> TraceService:
    """The service with a quarter of a GPU for each replica, up to all of it, under the same rate. Its requests take
    half as long with a whole GPU and may take twice as long, so that with a quarter they take the same part of what
    they may as with whole GPUs."""
    assert service.latency_s is not None
    return structs.replace(
        service,
        work=structs.replace(service.work, mean_s=service.work.mean_s / 2),
        latency_s=2 * service.latency_s,
        timeout_s=2 * service.timeout_s,
        share=SHARE,
        share_most=WHOLE,
        want=2 * service.want,
        most=2 * service.most,
    )


def ran(name: str, services: Sequence[TraceService], day: Day, seed: int) -> Outcome:
    """The services under one rule. Those with shares run beside training, which takes whatever they leave."""
    if name in FIXED:
        services = fixed(services, name)
    found = Services(services=tuple(services), lasts_s=day.all_s, beside_training=True)
    gpus = sum(service.most * service.gpus for service in services)
    return simulate(
        NONE,
        Cluster(nodes=-(-gpus // 8), gpus_per_node=8),
        STICKY,
        World(),
        seed=seed,
        serving=Serving(services=found, name=name, make=maker(name, day.lasts_s)),
    )


def maker(name: str, day_s: float) -> Callable[[TraceService, Goal, float], Autoscaler]:
    rule = "fixed" if name in FIXED else name

    def make(trace: TraceService, goal: Goal, at: float) -> Autoscaler:
        return compared(rule, goal, at=at, start=trace.start.mean_s, day=day_s)

    return make


def fixed_size(service: TraceService, name: str) -> int:
    """For the mean of the rate, or for the highest, bursts included."""
    times = service.rate.bursts.times if service.rate.bursts is not None else 1.0
    peak = service.rate.mean * (1 + service.rate.swing) * times
    return replicas_for(service, service.rate.mean if name == "fixed-mean" else peak)


def fixed(services: Sequence[TraceService], name: str) -> tuple[TraceService, ...]:
    """Those that have requests, at a size that does not change."""
    return tuple(structs.replace(each, want=fixed_size(each, name)) if each.rate.mean else each for each in services)


def counted(name: str, day: Day, seed: int, shares: bool = False) -> tuple[Counted, ...]:
    """With `OWN_QUEUE` after its name, a rule has a queue in order of arrival instead of our gate."""
    name, own = name.removesuffix(OWN_QUEUE), name.endswith(OWN_QUEUE)
    services = tuple(structs.replace(each, late_last=not own) for each in services_of(day))
    return ran(name, [with_shares(each) for each in services] if shares else services, day, seed).services


def oracles(day: Day, seed: int) -> tuple[float, ...]:
    return tuple(oracle_gpu_s(service, day.all_s, seed) for service in services_of(day))


def by_name(
    executor: Executor, run: Callable[[str, D, int], R], names: Iterable[str], day: D, seeds: Iterable[int]
) -> dict[str, list[R]]:
    """What `run` gave for each name, one after another of the seeds; all of them run at once."""
    futures = {name: [executor.submit(run, name, day, seed) for seed in seeds] for name in names}
    return {name: [future.result() for future in of_seeds] for name, of_seeds in futures.items()}


class Totals(Struct, frozen=True, kw_only=True):
    """Of all services and seeds under one rule."""

    requests: int
    bad: int
    windows: int
    bad_windows: int
    gpu_s: float
    reversals: int
    starts: int

    @property
    def bad_part(self) -> float:
        return self.bad / max(1, self.requests)


def totals(found: Sequence[Counted]) -> Totals:
    return Totals(
        requests=sum(each.arrived for each in found),
        bad=sum(each.bad for each in found),
        windows=sum(each.windows for each in found),
        bad_windows=sum(each.bad_windows for each in found),
        gpu_s=sum(each.gpu_s for each in found),
        reversals=sum(each.reversals for each in found),
        starts=sum(each.starts for each in found),
    )


def measure(seed: int, executor: Executor, *, quick: bool) -> dict[str, Aim]:
    day, seeds = (QUICK, (seed,)) if quick else (FULL, tuple(range(seed, seed + 3)))
    names = (*WEFTS, *RULES, *IN_ORDER, *FIXED)
    ideal = [executor.submit(oracles, day, one) for one in seeds]
    of_name = by_name(executor, counted, names, day, seeds)
    summed = {name: totals([each for run in runs for each in run]) for name, runs in of_name.items()}
    oracle = [sum(of_seed) for of_seed in zip(*(future.result() for future in ideal), strict=True)]
    _print(summed, sum(oracle), day, len(seeds))
    _print_services(of_name, oracle, services_of(day))
    return aims_of(summed, sum(oracle))


def shared(seed: int, executor: Executor, *, quick: bool) -> dict[str, Aim]:
    """The same rules where each replica has a quarter of a GPU, up to all of it, beside training that takes all that
    they leave. GPU-seconds are share times time, for all rules; the rules of others raise no share."""
    day, seeds = (QUICK, (seed,)) if quick else (FULL, tuple(range(seed, seed + 3)))
    names = ("weft", "weft-without-shares", "weft-without-reserve", *RULES, *IN_ORDER)
    of_name = by_name(executor, partial(counted, shares=True), names, day, seeds)
    found = {name: totals([each for run in runs for each in run]) for name, runs in of_name.items()}
    print(f"\nsimulated: 3 services with shares, {day.all_s / 3600:g} h, {len(seeds)} seeds; all requests count\n")
    print("| rule | bad requests | of them, % | bad windows | of | GPU h |\n|---|---|---|---|---|---|")
    for name, each in found.items():
        print(
            f"| {name} | {each.bad:,} | {each.bad_part:.3%} | {each.bad_windows:,} | {each.windows:,}"
            f" | {each.gpu_s / 3600:.1f} |",
            flush=True,
        )
    best = min((found[name] for name in RULES), key=lambda each: each.bad)
    own = min((found[name] for name in IN_ORDER), key=lambda each: each.bad)
    return {
        "shares.bad_against_best_rule_with_its_queue": Aim(
            value=round(found["weft"].bad / max(1, own.bad), 3), aim=0.333
        ),
        "shares.bad_against_best_rule": Aim(value=round(found["weft"].bad / max(1, best.bad), 3), aim=0.333),
        "shares.gpu_s_against_that_rule": Aim(value=round(found["weft"].gpu_s / best.gpu_s, 3), aim=1.0),
    }


def aims_of(summed: Mapping[str, Totals], oracle_s: float) -> dict[str, Aim]:
    """`best`: of the rules of others, the one with the fewest bad requests."""
    ours, peak = summed["weft"], summed["fixed-peak"]
    best = min((summed[name] for name in RULES), key=lambda found: found.bad)
    own, bare = min((summed[name] for name in IN_ORDER), key=lambda found: found.bad), summed["weft-without-reserve"]
    return {
        "simulated.bad_against_best_rule_with_its_queue": Aim(value=round(ours.bad / max(1, own.bad), 3), aim=0.333),
        "simulated.gpu_s_against_that_rule_with_its_queue": Aim(value=round(ours.gpu_s / own.gpu_s, 3), aim=1.0),
        "simulated.gpu_s_against_oracle_without_reserve": Aim(value=round(bare.gpu_s / oracle_s, 3), aim=1.15),
        "simulated.bad_against_best_rule": Aim(value=round(ours.bad / max(1, best.bad), 3), aim=0.333),
        "simulated.gpu_s_against_that_rule": Aim(value=round(ours.gpu_s / best.gpu_s, 3), aim=1.0),
        "simulated.gpu_s_against_oracle": Aim(value=round(ours.gpu_s / oracle_s, 3), aim=1.15),
        "simulated.gpu_s_against_peak": Aim(value=round(ours.gpu_s / peak.gpu_s, 3), aim=0.667),
    }


def _print(summed: Mapping[str, Totals], oracle_s: float, day: Day, seeds: int) -> None:
    print(f"\nsimulated: 3 services, {day.all_s / 3600:g} h, {seeds} seeds, bursts x {TIMES:g}; all requests count\n")
    print("| rule | bad requests | of them, % | bad windows | of | GPU h | to the oracle | starts | reversals |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, found in summed.items():
        print(
            f"| {name} | {found.bad:,} | {found.bad_part:.3%} | {found.bad_windows:,} | {found.windows:,}"
            f" | {found.gpu_s / 3600:.1f} | {found.gpu_s / oracle_s:.2f} | {found.starts:,} | {found.reversals:,} |"
        )
    print(f"| oracle | | | 0 | | {oracle_s / 3600:.1f} | 1.00 | | |\n", flush=True)


def _print_services(
    of_name: Mapping[str, Sequence[Sequence[Counted]]], oracle: Sequence[float], services: Sequence[TraceService]
) -> None:
    for place, service in enumerate(services):
        print(f"| {service.name} | bad | bad windows | GPU h | to the oracle |\n|---|---|---|---|---|")
        for name, runs in of_name.items():
            found = totals([run[place] for run in runs])
            print(
                f"| {name} | {found.bad:,} | {found.bad_windows:,} | {found.gpu_s / 3600:.1f}"
                f" | {found.gpu_s / oracle[place]:.2f} |"
            )
        print(flush=True)


# a constant rate, and one burst


def constant(seed: int, *, quick: bool) -> dict[str, Aim]:
    """Changes of size against the change before, at a constant rate; the first ten minutes are not counted, in which an
    autoscaler finds its size."""
    hours = 24.0
    rates = (5.0,) if quick else (2.0, 5.0, 12.0, 20.0)
    most = 0
    for rate in rates:
        service = TraceService(
            name=f"constant-{rate:g}",
            rate=RequestRate(mean=rate),
            work=Spread(mean_s=0.1, cv=0.5),
            start=Spread(mean_s=20.0, cv=0.2),
            latency_s=0.4,
            rate_promised=rate,
            most=40,
            want=3,
        )
        outcome = ran("weft", (service,), Day(lasts_s=hours * 3600, days=1, burst_every_s=1.0), seed)
        sizes = [(at, size) for at, size, _ in outcome.trajectories[0].wanted]
        found = outcome.services[0]
        later = [size for at, size in sizes if at > 600]
        settled = [size for at, size in sizes if at <= 600][-1:]
        turns = reversals_of([*settled, *later])
        most = max(most, turns)
        print(
            f"constant {rate:g}/s for {hours:g} h: {turns} reversals, sizes {sorted({size for _, size in sizes})},"
            f" {found.bad:,} of {found.arrived:,} bad, {found.gpu_s / 3600:.1f} GPU h",
            flush=True,
        )
    return {"simulated.reversals_constant_24h": Aim(value=most, aim=0)}


def reversals_of(sizes: Sequence[int]) -> int:
    signs = [after > before for before, after in pairwise(sizes) if after != before]
    return sum(one != other for one, other in pairwise(signs))


def bursts(seed: int, *, quick: bool) -> dict[str, Aim]:
    """From the first second of a rate of four times as much to the first decision that wants more."""
    took: list[float] = []
    begins = [1200.0 + 97.3 * number for number in range(3 if quick else 12)]
    for begin in begins:
        service = TraceService(
            name=f"burst-{begin:g}",
            rate=RequestRate(steps=((0.0, 20.0), (float(int(begin)), 80.0))),
            work=Spread(mean_s=0.1, cv=0.5),
            start=Spread(mean_s=20.0, cv=0.2),
            latency_s=0.4,
            rate_promised=30.0,
            most=60,
            want=4,
        )
        outcome = ran("weft", (service,), Day(lasts_s=begin + 60.0, days=1, burst_every_s=1.0), seed)
        wanted = outcome.trajectories[0].wanted
        before = [size for at, size, _ in wanted if at <= int(begin)][-1]
        up = [at for at, size, _ in wanted if at > int(begin) and size > before]
        took.append(up[0] - int(begin) if up else 60.0)
    print(f"burst x {TIMES:g} to decision: {', '.join(f'{each:.1f}' for each in took)} s", flush=True)
    return {"simulated.burst_to_decision_s": Aim(value=round(max(took), 2), aim=2.0)}
