"""`weft simulate`: run a trace of jobs on a simulated cluster, with the decisions that the scheduler would take.

No hardware is asked and no cluster is needed. Several orders, placements or backfills are run one after the other and
compared with the first. The same inputs give the same output, byte by byte.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.simulator.model import Cluster
from weft.simulator.outcome import Outcome
from weft.simulator.report import ReportError, check_drawable, write_report
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.study.simulation.inputs import cluster_of, services_of, workload_of
from weftd.cli.study.simulation.options import SEED, STDOUT, add_options
from weftd.cli.study.simulation.plan import plans_of
from weftd.cli.study.simulation.results import document, drawing
from weftd.cli.study.simulation.running import interruptible, outcomes_of


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "simulate", help="run a trace of jobs on a simulated cluster, and compare policies", description=__doc__
    )
    add_options(parser)
    parser.set_defaults(func=simulate)


async def simulate(args: argparse.Namespace) -> int:
    plans = plans_of(args)
    _check_outputs(args)
    with interruptible():
        cluster = cluster_of(args)
        workload = workload_of(args, cluster.gpus)
        services = services_of(args)
    bar = sys.stderr.isatty() and not args.quiet
    outcomes = outcomes_of(plans, workload, cluster, told_settings(args), bar=bar, services=services)
    with interruptible():
        _write(args, outcomes, cluster)
    if args.json != STDOUT:
        page.show(drawing(outcomes, page.context()))
    return 0


def told_settings(args: argparse.Namespace) -> dict[str, str]:
    """The settings to show in the result that the engine does not record itself; files without their folders."""
    said = {
        "profile": None if args.profile is None else args.profile.name,
        "load": args.load,
        "nodes_per_rack": args.nodes_per_rack,
        "rack_penalty": args.rack_penalty,
        "start_s": args.start_cost,
        "decide_every_s": args.decide_every,
        "patience_s": args.patience,
        "failures per node day": args.failures,
        "repair_s": args.repair,
        "drift": None if args.drift is None else f"every {args.drift:g} h",
        "scores": args.scores,
        "noise": args.noise,
        "checkpoints": args.checkpoints,
        "elastic": None if args.elastic is None else f"1 to {args.elastic:g} x",
        "exponent": args.exponent,
        "resize": args.resize,
        "resize_s": args.resize_cost,
        "theta1": args.theta1,
        "theta2": args.theta2,
        "services": None if args.services is None else args.services.name,
        "hours": args.hours,
        "durations": "known" if args.durations_known else None,
        "seed": None if args.seed == SEED else args.seed,
    }
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in said.items()
        if value is not None
    }


def _check_outputs(args: argparse.Namespace) -> None:
    """Check the output files before the hours that a simulation may take."""
    for path in (args.json, args.report):
        if path is not None and path != STDOUT and not path.parent.is_dir():
            raise CliError(f"cannot write {path}: there is no folder {path.parent}")
    if args.report is not None:
        if args.trace is None and args.generate is None:
            raise CliError("--report draws jobs, and there are none: add --trace or --generate", status=2)
        try:
            check_drawable(args.report)
        except ReportError as error:
            raise CliError(str(error)) from error


def _write(args: argparse.Namespace, outcomes: Sequence[Outcome], cluster: Cluster) -> None:
    if args.json == STDOUT:
        page.write(document(outcomes))
    elif args.json is not None:
        _written(args.json, document(outcomes))
    if args.report is not None:
        try:
            write_report(outcomes, args.report, scores=cluster.scores)
        except OSError as error:
            raise CliError(f"cannot write {args.report}: {error.strerror}") from error


def _written(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error
