"""The options of `weft simulate`. A missing option is None: a preset may have its own default."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

FORMATS = ("auto", "sia-philly", "philly", "openb", "plain")
GENERATORS = ("poisson", "synergy")
RESIZES = ("restart", "live")
DURATIONS = ("log-uniform", "philly", "synergy")
SCORES = ("oracle", "offline", "online")
STDOUT = Path("-")
SEED = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    _workload(parser.add_argument_group("the jobs"))
    _cluster(parser.add_argument_group("the cluster (simulated: no hardware is asked)"))
    _policy(parser.add_argument_group("policies (each a name, or several with commas: all are run and compared)"))
    _world(parser.add_argument_group("costs"))
    _output(parser.add_argument_group("output"))


def _workload(group: "argparse._ArgumentGroup") -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument("--trace", type=Path, metavar="FILE", help="CSV file of jobs to replay")
    source.add_argument("--generate", choices=GENERATORS, help="generate random jobs of this kind instead of a trace")
    group.add_argument(
        "--services", type=Path, metavar="FILE", help="file of services to simulate with the jobs, or alone (YAML)"
    )
    group.add_argument("--hours", type=above_nothing, metavar="H", help="simulated hours of the services (default: 24)")
    group.add_argument("--format", choices=FORMATS, help="format of the trace (default: auto, by its header)")
    group.add_argument("--limit", type=at_least_one, metavar="N", help="replay only the first N jobs of the trace")
    group.add_argument(
        "--load", type=above_nothing, metavar="L", help="scale arrivals to this load; 1.0 is the capacity of the GPUs"
    )
    group.add_argument(
        "--checkpoints",
        type=part,
        metavar="X",
        help="fraction of the jobs that write a checkpoint when they are stopped (1)",
    )
    group.add_argument("--jobs", type=at_least_one, metavar="N", help="number of jobs to generate (default: 1000)")
    group.add_argument("--rate", type=above_nothing, metavar="JOBS_PER_HOUR", help="arrival rate of the generated jobs")
    group.add_argument("--durations", choices=DURATIONS, help="duration distribution of the generated jobs")
    group.add_argument(
        "--elastic", type=one_or_more, metavar="X", help="elastic jobs: from 1 GPU to X times their request"
    )
    group.add_argument(
        "--exponent", type=nothing_or_more, metavar="A", help="n replicas run n ** A times as fast (0.85)"
    )
    group.add_argument("--resize", choices=RESIZES, help="method to change a job's size (default: restart)")
    group.add_argument("--resize-cost", type=nothing_or_more, metavar="S", help="seconds per change of size (30)")


def _cluster(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--nodes", type=at_least_one, metavar="N", help="number of nodes (default: 16)")
    group.add_argument("--gpus-per-node", type=at_least_one, metavar="G", help="GPUs per node (default: 4)")
    group.add_argument(
        "--nodes-per-rack", type=at_least_one, metavar="N", help="nodes per rack (default: all in one rack)"
    )
    group.add_argument(
        "--profile", type=Path, metavar="FILE", help="file of the speed of each GPU (default: all the same)"
    )


def _policy(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--preset", metavar="NAME", help="policy for order, placement and backfill together: weft-best")
    group.add_argument("--order", type=names, metavar="NAME", help="order of the queue (default: priority)")
    group.add_argument("--placement", type=names, metavar="NAME", help="placement policy (default: weft-best)")
    group.add_argument("--backfill", type=names, metavar="NAME", help="backfill policy (default: easy)")
    group.add_argument("--partition", type=names, metavar="NAME", help="policy that sizes elastic jobs (default: none)")
    group.add_argument("--autoscaler", type=names, metavar="NAME", help="policy that sizes services (default: weft)")
    group.add_argument("--theta1", type=nothing_or_more, metavar="X", help="maximum unfairness of a partition (0.1)")
    group.add_argument("--theta2", type=nothing_or_more, metavar="X", help="fraction of the jobs resized at once (0.2)")
    group.add_argument("--durations-known", action="store_true", help="give policies each job's true duration")
    group.add_argument("--scores", choices=SCORES, help="source of GPU speeds (default: oracle)")


def _world(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--penalty", type=one_or_more, metavar="X", help="slowdown factor of a job that spans nodes (1.7)"
    )
    group.add_argument(
        "--rack-penalty", type=one_or_more, metavar="X", help="further slowdown factor across racks (1.0)"
    )
    group.add_argument("--move-cost", type=nothing_or_more, metavar="S", help="seconds per move and restart (60)")
    group.add_argument("--start-cost", type=nothing_or_more, metavar="S", help="seconds per first start (0)")
    group.add_argument(
        "--decide-every", type=nothing_or_more, metavar="S", help="seconds between decisions (0: at each event)"
    )
    group.add_argument(
        "--patience",
        type=nothing_or_more,
        metavar="S",
        help="seconds of waiting after which nodes are kept for a job (300)",
    )
    group.add_argument("--failures", type=nothing_or_more, metavar="PER_NODE_DAY", help="number of node failures (0)")
    group.add_argument("--repair", type=nothing_or_more, metavar="S", help="seconds that a failed node is away (3600)")
    group.add_argument(
        "--drift", type=nothing_or_more, metavar="HOURS", help="hours between two changes of all scores (0: none)"
    )
    group.add_argument(
        "--noise", type=nothing_or_more, metavar="X", help="relative noise of one measured step time (0.02)"
    )
    group.add_argument("--seed", type=int, metavar="N", help=f"random seed (default: {SEED})")


def _output(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--json",
        type=Path,
        metavar="OUT",
        help="JSON file of every job and all metrics; - for stdout, instead of the table",
    )
    group.add_argument("--report", type=Path, metavar="OUT", help="HTML file of results, with charts, to write")
    group.add_argument("--quiet", action="store_true", help="show no progress bar")


# values


def names(text: str) -> list[str]:
    found = list(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not found:
        raise argparse.ArgumentTypeError("expected a name, or several with commas")
    return found


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, not {text}")
    return value


at_least_one.__name__ = "int"  # as argparse names it where it is no number


def part(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected 0 to 1, not {text}")
    return value


part.__name__ = "float"


def _number(said: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and fits(value)):
            raise argparse.ArgumentTypeError(f"expected {said}, not {text}")
        return value

    return number


nothing_or_more = _number("0 or more", lambda value: value >= 0)
above_nothing = _number("more than 0", lambda value: value > 0)
one_or_more = _number("1 or more", lambda value: value >= 1)
