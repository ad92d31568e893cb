"""The jobs and the cluster of a simulation, read or generated. Mistakes in them are Complaints."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from random import Random

from msgspec.structs import replace

from libs.profiles import ProfileError, read_profile, scores_for
from libs.simulator.generate import SYNERGY, GeneratorSettings, generate
from libs.simulator.model import Cluster
from libs.simulator.traces import read
from libs.simulator.traces.load import check_fits, scaled
from libs.simulator.workload import InputError, Workload
from services.cli.complaint import Complaint
from services.cli.simulation.options import SEED

NODES, GPUS_PER_NODE = 16, 4


def workload_of(args: argparse.Namespace, gpus: int) -> Workload:
    _check_source(args)
    try:
        found = _generated(args) if args.trace is None else _read(args)
        if args.load is not None:
            found = scaled(found, args.load, gpus)
        check_fits(found, gpus, file=None if args.trace is None else str(args.trace))
    except InputError as error:
        raise Complaint(str(error)) from error
    except ValueError as error:
        raise Complaint(str(error), status=2) from error
    return found


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
    wrong, source = (
        (("jobs", "rate", "durations"), "--generate") if args.trace is not None else (("format", "limit"), "--trace")
    )
    for name in wrong:
        if getattr(args, name) is not None:
            raise Complaint(f"--{name} goes with {source} only", status=2)


def _read(args: argparse.Namespace) -> Workload:
    return read(args.trace, format=args.format or "auto", jobs=args.limit)


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
