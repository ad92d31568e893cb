"""The jobs and the cluster of a simulation, read or generated. Mistakes in them are Complaints."""

import argparse
from collections.abc import Mapping
from math import floor, inf
from pathlib import Path
from random import Random

from msgspec import structs
from msgspec.structs import replace

from weft.profiles import ProfileError, read_profile, scores_for
from weft.simulator.generate import SYNERGY, GeneratorSettings, generate
from weft.simulator.model import Cluster
from weft.simulator.serving.file import read_services
from weft.simulator.serving.service import Services
from weft.simulator.traces import read
from weft.simulator.workload import Elastic, InputError, TraceJob, Workload, with_checkpoints
from weftd.cli.cli_error import CliError
from weftd.cli.study.simulation.options import SEED

NODES, GPUS_PER_NODE = 16, 4
HOURS = 24.0
OF_JOBS = ("format", "limit", "load", "jobs", "rate", "durations", "checkpoints", "elastic", "exponent", "resize")
EXPONENT, RESIZE_S = 0.85, 30.0  # of jobs that are made elastic
EACH = (1.0, 0.0, 0.0)  # one GPU a replica: a trace says nothing of CPU cores and memory


def workload_of(args: argparse.Namespace, gpus: int) -> Workload:
    _check_source(args)
    if args.trace is None and args.generate is None:
        return Workload(name=args.services.stem, jobs=())
    try:
        found = _generated(args) if args.trace is None else _read(args)
        if args.load is not None:
            found = scaled(found, args.load, gpus)
        if args.checkpoints is not None:
            found = with_checkpoints(found, args.checkpoints, seed=SEED if args.seed is None else args.seed)
        if args.elastic is not None:
            found = _elastic(args, found, gpus)
        check_fits(found, gpus, file=None if args.trace is None else str(args.trace))
    except InputError as error:
        raise CliError(str(error)) from error
    except ValueError as error:
        raise CliError(str(error), status=2) from error
    return found


def services_of(args: argparse.Namespace) -> Services | None:
    if args.services is None:
        return None
    try:
        return read_services(args.services, lasts_s=(args.hours or HOURS) * 3600.0)
    except InputError as error:
        raise CliError(str(error)) from error


def cluster_of(args: argparse.Namespace) -> Cluster:
    nodes, gpus_per_node = args.nodes or NODES, args.gpus_per_node or GPUS_PER_NODE
    return Cluster(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        scores={} if args.profile is None else _scores(args.profile, nodes, gpus_per_node),
        nodes_per_rack=args.nodes_per_rack or 0,
    )


def _check_source(args: argparse.Namespace) -> None:
    """Refuse options of one source together with the other."""
    if args.trace is None and args.generate is None:
        if args.services is None:
            raise CliError("one of the arguments --trace --generate --services is required", status=2)
        for name in OF_JOBS:
            if getattr(args, name) is not None:
                raise CliError(f"--{name} goes with --trace or --generate only: there are no jobs", status=2)
    wrong, source = (
        (("jobs", "rate", "durations"), "--generate") if args.trace is not None else (("format", "limit"), "--trace")
    )
    for name in wrong:
        if getattr(args, name) is not None:
            raise CliError(f"--{name} goes with {source} only", status=2)
    for name in ("exponent", "resize", "resize_cost"):
        if getattr(args, name) is not None and args.elastic is None:
            raise CliError(f"--{name.replace('_', '-')} goes with --elastic only", status=2)


def _read(args: argparse.Namespace) -> Workload:
    return read(args.trace, format=args.format or "auto", jobs=args.limit)


def _elastic(args: argparse.Namespace, rigid: Workload, gpus: int) -> Workload:
    return made_elastic(
        rigid,
        times=args.elastic,
        exponent=EXPONENT if args.exponent is None else args.exponent,
        resize_s=RESIZE_S if args.resize_cost is None else args.resize_cost,
        live=args.resize == "live",
        gpus_most=gpus,
    )


def _generated(args: argparse.Namespace) -> Workload:
    settings = SYNERGY if args.generate == "synergy" else GeneratorSettings()
    asked = {"jobs": args.jobs, "jobs_per_hour": args.rate, "durations": args.durations}
    settings = replace(settings, **{name: value for name, value in asked.items() if value is not None})
    return generate(settings, Random(SEED if args.seed is None else args.seed))


def _scores(path: Path, nodes: int, gpus_per_node: int) -> Mapping[str, tuple[float, ...]]:
    try:
        return scores_for(read_profile(path), nodes, gpus_per_node)
    except ProfileError as error:
        raise CliError(str(error)) from error


def made_elastic(
    workload: Workload, *, times: float, exponent: float, resize_s: float, live: bool = False, gpus_most: int
) -> Workload:
    """Each job that is not elastic already may have 1 GPU to `times` as many as it asks for, `gpus_most` at the most.

    Raises ValueError if `times` is below 1 or another setting makes no sense.
    """
    if not 1 <= times < inf:
        raise ValueError(f"times must be at least 1, and finite: {times:g}")
    jobs = tuple(
        structs.replace(job, elastic=_elastic_elastic(job, times, exponent, resize_s, live, gpus_most))
        for job in workload.jobs
    )
    how = f"live in {resize_s:g} s" if live else f"by restarts of {resize_s:g} s"
    note = f"elastic: 1 to {times:g} × the GPUs that each job asks for, {how}; n are n ** {exponent:g} times as fast"
    return structs.replace(workload, jobs=jobs, notes=(*workload.notes, note))


def _elastic_elastic(
    job: TraceJob, times: float, exponent: float, resize_s: float, live: bool, gpus_most: int
) -> Elastic:
    if job.elastic is not None:
        return job.elastic
    most = max(job.gpus, min(floor(job.gpus * times), gpus_most))
    return Elastic(asked=job.gpus, least=1, most=most, each=EACH, exponent=exponent, live=live, resize_s=resize_s)


def offered_load(workload: Workload, gpus_in_cluster: int) -> float:
    """The arriving GPU seconds per available GPU second; infinite if all jobs arrive at once."""
    work = sum(job.work_s * job.gpus for job in workload.jobs)
    span = _span(workload) * gpus_in_cluster
    return work / span if span > 0 else inf


def scaled(workload: Workload, load: float, gpus_in_cluster: int) -> Workload:
    """The same jobs, with arrivals stretched to offer this `load`."""
    if not 0 < load < inf:
        raise ValueError(f"load must be above 0, and finite: {load}")
    if gpus_in_cluster < 1:
        raise ValueError(f"gpus_in_cluster must be at least 1: {gpus_in_cluster}")
    if _span(workload) <= 0:
        raise ValueError(f"load: the jobs of {workload.name} all arrive at once, so no pace offers {load:g}")
    stretch = offered_load(workload, gpus_in_cluster) / load
    note = f"arrival times × {stretch:.6g}: a load of {load:g} on {gpus_in_cluster} GPUs"
    return replace(
        workload,
        jobs=tuple(replace(job, arrival_s=job.arrival_s * stretch) for job in workload.jobs),
        notes=(*workload.notes, note),
    )


def check_fits(workload: Workload, gpus: int, *, file: str | None = None) -> None:
    """Refuse a workload with jobs that could never start on `gpus` GPUs: the others would wait behind them for ever."""
    too_large = [job for job in workload.jobs if job.gpus > gpus]
    if too_large:
        first, others = too_large[0], len(too_large) - 1
        also = f", and {others:,} more such jobs" if others else ""
        asked = f"job {first.id} asks for {first.gpus:,} GPUs, the cluster has {gpus:,}{also}"
        raise InputError(file or workload.name, 0, asked)


def _span(workload: Workload) -> float:
    arrivals = [job.arrival_s for job in workload.jobs]
    return max(arrivals, default=0.0) - min(arrivals, default=0.0)
