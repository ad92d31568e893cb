"""The jobs and the cluster of a simulation, read or generated. Mistakes in them are Complaints."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from random import Random

from msgspec.structs import replace

from weft.profiles import ProfileError, read_profile, scores_for
from weft.simulator.elastic import made_elastic
from weft.simulator.generate import SYNERGY, GeneratorSettings, generate
from weft.simulator.model import Cluster
from weft.simulator.serving.file import read_services
from weft.simulator.serving.service import Services
from weft.simulator.traces import read
from weft.simulator.traces.load import check_fits, scaled
from weft.simulator.workload import InputError, Workload, with_checkpoints
from weftd.cli.complaint import Complaint
from weftd.cli.study.simulation.options import SEED

NODES, GPUS_PER_NODE = 16, 4
HOURS = 24.0
OF_JOBS = ("format", "limit", "load", "jobs", "rate", "durations", "checkpoints", "elastic", "exponent", "resize")
EXPONENT, RESIZE_S = 0.85, 30.0  # of jobs that are made elastic


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
        raise Complaint(str(error)) from error
    except ValueError as error:
        raise Complaint(str(error), status=2) from error
    return found


def services_of(args: argparse.Namespace) -> Services | None:
    if args.services is None:
        return None
    try:
        return read_services(args.services, lasts_s=(args.hours or HOURS) * 3600.0)
    except InputError as error:
        raise Complaint(str(error)) from error


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
            raise Complaint("one of the arguments --trace --generate --services is required", status=2)
        for name in OF_JOBS:
            if getattr(args, name) is not None:
                raise Complaint(f"--{name} goes with --trace or --generate only: there are no jobs", status=2)
    wrong, source = (
        (("jobs", "rate", "durations"), "--generate") if args.trace is not None else (("format", "limit"), "--trace")
    )
    for name in wrong:
        if getattr(args, name) is not None:
            raise Complaint(f"--{name} goes with {source} only", status=2)
    for name in ("exponent", "resize", "resize_cost"):
        if getattr(args, name) is not None and args.elastic is None:
            raise Complaint(f"--{name.replace('_', '-')} goes with --elastic only", status=2)


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
        raise Complaint(str(error)) from error
