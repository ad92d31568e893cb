"""A mixed day, simulated: elastic training, notebooks, and two services with objectives, under a rate that follows the
day, with bursts; by Weft, and by Kubernetes: whole GPUs, gangs, no sharing, no pre-emption, and services with an
autoscaler or with fixed replicas. Replicas that share a GPU divide its time by their shares, as if each were always
busy.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from random import Random
from statistics import fmean

from msgspec import Struct, structs

from tests.bench.figures import Aim
from tests.bench.partition.dorm import shipped_planner, shipped_scheduler
from tests.bench.serving.baselines.hpa import FITTED, Hpa, HpaConstants
from tests.bench.serving.rules import Totals, by_name, fixed, maker, rate_of_day, totals
from weft.planning.policy import Policy
from weft.planning.preemption.minimum_run import MinimumRun
from weft.simulator.counted import Counted, Trajectory
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import Outcome
from weft.simulator.run import simulate
from weft.simulator.serving.over_time import MakeAutoscaler, Serving
from weft.simulator.serving.rates import RequestRate
from weft.simulator.serving.service import WHOLE, Services, Spread, TraceService
from weft.simulator.workload import Elastic, TraceJob, Workload
from weftd.cli.study.simulation.inputs import EACH

NODES, GPUS = 4, 4
NOTEBOOKS, NOTEBOOK_SHARE = 3, 200
JOBS, ASKED, MOST = 8, 2, 8
WORK_S = (1800.0, 5400.0)
DAY_S, QUICK_DAY_S = 4 * 3600.0, 2 * 3600.0
KUBERNETES = Policy("fifo", "packed-sticky", "none")
PENALTY, MOVE_S = 1.1, 5.0
WITHOUT = {
    "weft": "all of it",
    "weft-without-shares": "autoscaler: no larger shares",
    "weft-without-forecast": "autoscaler: no forecast",
    "weft-without-bursts": "autoscaler: no window of seconds",
    "weft-without-alarm": "autoscaler: no alarm",
    "weft-without-reserve": "autoscaler: no reserve",
    "no-loans": "training lends nothing",
    "no-sharing": "whole GPUs",
    "knative": "Kubernetes, Knative's rule",
    "hpa": "Kubernetes, a horizontal autoscaler",
    "fixed-mean": "Kubernetes without an autoscaler, replicas for the mean",
    "fixed-peak": "Kubernetes without an autoscaler, replicas for the peak",
}
PLAIN = ("knative", "hpa", "fixed-mean", "fixed-peak")
AUTOSCALED = PLAIN[:2]
FIT_SEEDS = (1001, 1002)  # no table uses them
TARGETS, DOWN_SECONDS = (0.3, 0.5, 0.7, 0.9), (60.0, 300.0)


class Run(Struct, frozen=True, kw_only=True):
    """`work_per_hour`: GPU-hours of training work done per hour until the last job ended; `gpu_s`: of services, without
    notebooks; `lost`: the part of training's held GPU-seconds that loans lost."""

    services: tuple[Counted, ...]
    jct_mean_s: float
    work_per_hour: float
    gpu_s: float
    lost: float
    trajectories: tuple[Trajectory, ...]


def services_of(day_s: float, *, whole: bool) -> tuple[TraceService, ...]:
    def rate(mean: float) -> RequestRate:
        return rate_of_day(mean, swing=0.6, day_s=day_s, burst_every_s=day_s / 4)

    chat = TraceService(
        name="chat",
        rate=rate(8.0),
        work=Spread(mean_s=0.05, cv=0.5),
        start=Spread(mean_s=20.0, cv=0.2),
        timeout_s=5.0,
        latency_s=1.0,
        rate_promised=13.0,
        most=16,
        want=2,
        share=250,
        share_most=WHOLE,
    )
    search = TraceService(
        name="search",
        rate=rate(12.0),
        work=Spread(mean_s=0.03, cv=0.3),
        start=Spread(mean_s=10.0, cv=0.2),
        timeout_s=3.0,
        latency_s=0.6,
        rate_promised=20.0,
        most=16,
        want=2,
        share=250,
        share_most=WHOLE,
    )
    notebook = TraceService(
        name="notebook",
        rate=RequestRate(),
        work=Spread(mean_s=0.1),
        start=Spread(mean_s=5.0),
        most=1,
        share=NOTEBOOK_SHARE,
        share_most=NOTEBOOK_SHARE,
    )
    notebooks = [structs.replace(notebook, name=f"notebook-{number}") for number in range(NOTEBOOKS)]
    found = (chat, search, *notebooks)
    return tuple(structs.replace(each, share=None, share_most=None) for each in found) if whole else found


def jobs_of(day_s: float, seed: int) -> Workload:
    """Training that arrives within the first quarter of the day."""
    dice = Random(seed)
    scale = day_s / DAY_S
    jobs = [
        TraceJob(
            id=f"train-{number}",
            arrival_s=dice.uniform(0, day_s / 4),
            gpus=ASKED,
            work_s=dice.uniform(*WORK_S) * scale,
            elastic=Elastic(asked=ASKED, least=1, most=MOST, each=EACH, exponent=0.9, live=True, resize_s=3.0),
        )
        for number in range(JOBS)
    ]
    return Workload(name="mixed", jobs=tuple(sorted(jobs, key=lambda job: job.arrival_s)))


def run(name: str, day_s: float, seed: int, constants: HpaConstants | None = None) -> Run:
    """One day. `constants` for the horizontal autoscaler; None: the fitted ones."""
    plain = name in PLAIN
    services = services_of(day_s, whole=plain or name == "no-sharing")
    if name.startswith("fixed"):
        services = fixed(services, name)
    rule = name if plain or name.startswith("weft") else "weft"
    workload = jobs_of(day_s, seed)
    core = shipped_scheduler().core
    world = World(
        penalty=PENALTY,
        move_s=MOVE_S,
        moves=core.moves,
        patience_s=core.patience_seconds,
        minimum_run=MinimumRun(core.preemption_after_seconds),
    )
    outcome = simulate(
        workload,
        Cluster(nodes=NODES, gpus_per_node=GPUS),
        KUBERNETES if plain else core.policy,
        World(penalty=PENALTY, move_s=MOVE_S) if plain else world,
        seed=seed,
        partitioning=None if plain or name == "no-loans" else shipped_planner(),
        serving=Serving(
            services=Services(services=services, lasts_s=day_s), name=name, make=_maker(rule, day_s, constants)
        ),
    )
    return run_of(outcome)


def _maker(rule: str, day_s: float, constants: HpaConstants | None) -> MakeAutoscaler:
    if constants is None:
        return maker(rule, day_s)
    return lambda trace, goal, at: Hpa(goal, at, constants)


def run_of(outcome: Outcome) -> Run:
    jobs = outcome.jobs
    ends = max(job.completed_s for job in jobs) - min(job.arrival_s for job in jobs)
    served = [each for each in outcome.services if not each.name.startswith("notebook")]
    held = sum((spell.end_s - spell.begin_s) * len(spell.gpus) for spell in outcome.spells)
    return Run(
        services=tuple(served),
        jct_mean_s=fmean(job.jct_s for job in jobs),
        work_per_hour=sum(job.work_s * job.gpus for job in jobs) / ends,
        gpu_s=sum(each.gpu_s for each in served),
        lost=sum(each.loan_lost_gpu_s for each in served) / held,
        trajectories=outcome.trajectories,
    )


def measure(seed: int, executor: Executor, *, quick: bool) -> dict[str, Aim]:
    day_s, seeds = (QUICK_DAY_S, (seed,)) if quick else (DAY_S, tuple(range(seed, seed + 5)))
    found = by_name(executor, run, WITHOUT, day_s, seeds)
    print(
        f"\nsimulated mixed day of {day_s / 3600:g} h on {NODES * GPUS} GPUs, {len(seeds)} seeds; all requests count\n"
    )
    print("| what | bad, % | bad windows | service GPU h | training, min | GPU h of work an hour | loans | lost, % |")
    print("|---|---|---|---|---|---|---|---|")
    for name, runs in found.items():
        all_runs = _totals(runs)
        print(
            f"| {WITHOUT[name]} | {all_runs.bad_part:.3%} | {all_runs.bad_windows} | {_mean(runs, 'gpu_s') / 3600:.1f}"
            f" | {_mean(runs, 'jct_mean_s') / 60:.1f} | {_mean(runs, 'work_per_hour'):.1f}"
            f" | {sum(each.loans for one in runs for each in one.services)} | {_mean(runs, 'lost'):.2%} |"
        )
    print(flush=True)
    ours, peak = found["weft"], found["fixed-peak"]
    return {
        "mixed.bad_windows": Aim(value=_totals(ours).bad_windows, aim=0),
        "mixed.bad_requests_part": Aim(value=round(_totals(ours).bad_part, 5), aim=0.001),
        "mixed.gpu_s_against_peak": Aim(value=round(_mean(ours, "gpu_s") / _mean(peak, "gpu_s"), 3), aim=0.667),
        "mixed.work_per_hour_gain": Aim(
            value=round(_mean(ours, "work_per_hour") / _mean(peak, "work_per_hour") - 1, 3), aim=0.6, at_least=True
        ),
        "mixed.training_time_change": Aim(
            value=round(_mean(ours, "jct_mean_s") / _mean(peak, "jct_mean_s") - 1, 3), aim=-0.7
        ),
        "mixed.training_lost_part": Aim(value=round(_mean(ours, "lost"), 5), aim=0.01),
    }


def fit(executor: Executor, *, quick: bool) -> dict[str, Aim]:
    """Find the constants of the horizontal autoscaler, on seeds of their own: of those with no more bad requests than
    Weft, the ones with most training work; if there are none, those with the fewest bad requests."""
    day_s = QUICK_DAY_S if quick else DAY_S
    grid = [HpaConstants(target=target, down_seconds=down) for target in TARGETS for down in DOWN_SECONDS]
    futures = {one: [executor.submit(run, "hpa", day_s, seed, one) for seed in FIT_SEEDS] for one in grid}
    ours = [executor.submit(run, "weft", day_s, seed) for seed in FIT_SEEDS]
    bad = _totals([future.result() for future in ours]).bad
    found = {one: [future.result() for future in of_seeds] for one, of_seeds in futures.items()}
    for one, runs in found.items():
        print(f"{one}: {_totals(runs).bad} bad, {_mean(runs, 'work_per_hour'):.2f} GPU h of work an hour", flush=True)
    enough = [one for one, runs in found.items() if _totals(runs).bad <= bad]
    if enough:
        best = max(enough, key=lambda one: _mean(found[one], "work_per_hour"))
    else:
        best = min(found, key=lambda one: _totals(found[one]).bad)
    print(f"Weft has {bad} bad requests; fitted: {best}, used: {FITTED}", flush=True)
    return {}


def against_kubernetes(seed: int, executor: Executor, *, quick: bool) -> dict[str, Aim]:
    """Weft against Kubernetes with each autoscaler; as a third row, replicas for the peak."""
    day_s, seeds = (QUICK_DAY_S, (seed,)) if quick else (DAY_S, tuple(range(seed, seed + 3)))
    found = by_name(executor, run, ("weft", *AUTOSCALED, "fixed-peak"), day_s, seeds)
    ours = found.pop("weft")
    aims: dict[str, Aim] = {}
    for name, runs in {"weft": ours, **found}.items():
        bad, lasts = _totals(runs), _mean(runs, "jct_mean_s") / 60
        work = _mean(runs, "work_per_hour")
        print(f"{WITHOUT[name]}: {work:.2f} GPU h of work an hour, training {lasts:.1f} min, {bad.bad} bad", flush=True)
    for name, runs in found.items():
        work = _mean(ours, "work_per_hour") / _mean(runs, "work_per_hour") - 1
        lasts = _mean(ours, "jct_mean_s") / _mean(runs, "jct_mean_s") - 1
        of = f"mixed day, to {WITHOUT[name]}"
        aims[f"{of}, work"] = Aim(value=round(work, 3), aim=0.6, at_least=True)
        aims[f"{of}, training time"] = Aim(value=round(lasts, 3), aim=-0.45)
        aims[f"{of}, bad requests more"] = Aim(value=_totals(ours).bad - _totals(runs).bad, aim=0)
    return aims


def _totals(runs: Sequence[Run]) -> Totals:
    return totals([each for one in runs for each in one.services])


def _mean(runs: Sequence[Run], field: str) -> float:
    return fmean(getattr(one, field) for one in runs)
