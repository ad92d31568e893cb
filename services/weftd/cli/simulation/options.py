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
    _policy(parser.add_argument_group("who decides (each a name, or several with commas: all are run and compared)"))
    _world(parser.add_argument_group("what things cost"))
    _output(parser.add_argument_group("what comes out"))


def _workload(group: "argparse._ArgumentGroup") -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument("--trace", type=Path, metavar="FILE", help="of jobs")
    source.add_argument("--generate", choices=GENERATORS, help="jobs from dice, where there is no trace")
    group.add_argument("--services", type=Path, metavar="FILE", help="services beside the jobs, or alone (YAML)")
    group.add_argument(
        "--hours", type=above_nothing, metavar="H", help="for which the services are there (default: 24)"
    )
    group.add_argument("--format", choices=FORMATS, help="of the trace (default: auto, by its header)")
    group.add_argument("--limit", type=at_least_one, metavar="N", help="the first N jobs of the trace only")
    group.add_argument(
        "--load", type=above_nothing, metavar="L", help="scale arrivals: 1.0 is as much as the GPUs can do"
    )
    group.add_argument("--jobs", type=at_least_one, metavar="N", help="to generate (default: 1000)")
    group.add_argument("--rate", type=above_nothing, metavar="JOBS_PER_HOUR", help="to generate")
    group.add_argument("--durations", choices=DURATIONS, help="to generate")
    group.add_argument(
        "--elastic", type=one_or_more, metavar="X", help="jobs may have 1 GPU to X times as many as they ask for"
    )
    group.add_argument("--exponent", type=nothing_or_more, metavar="A", help="n replicas are n ** A as fast (0.85)")
    group.add_argument("--resize", choices=RESIZES, help="how the size of a job changes (default: restart)")
    group.add_argument("--resize-cost", type=nothing_or_more, metavar="S", help="seconds per change of size (30)")


def _cluster(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--nodes", type=at_least_one, metavar="N", help="default: 16")
    group.add_argument("--gpus-per-node", type=at_least_one, metavar="G", help="default: 4")
    group.add_argument("--nodes-per-rack", type=at_least_one, metavar="N", help="default: all nodes are in one rack")
    group.add_argument("--profile", type=Path, metavar="FILE", help="how fast each GPU is (default: all the same)")


def _policy(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--preset", metavar="NAME", help="a whole policy by one name: weft-best")
    group.add_argument("--order", type=names, metavar="NAME", help="who is served first (default: fifo)")
    group.add_argument("--placement", type=names, metavar="NAME", help="who goes where (default: packed)")
    group.add_argument("--backfill", type=names, metavar="NAME", help="who may overtake (default: none)")
    group.add_argument("--partition", type=names, metavar="NAME", help="who sizes elastic jobs (default: none)")
    group.add_argument("--autoscaler", type=names, metavar="NAME", help="who sizes services (default: weft)")
    group.add_argument("--theta1", type=nothing_or_more, metavar="X", help="how unfair partitions may be (0.1)")
    group.add_argument("--theta2", type=nothing_or_more, metavar="X", help="part of the jobs resized at once (0.2)")
    group.add_argument("--durations-known", action="store_true", help="it is known how long each job runs")
    group.add_argument("--scores", choices=SCORES, help="how it is known how fast GPUs are (default: oracle)")


def _world(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--penalty", type=one_or_more, metavar="X", help="of spanning nodes: that much longer (1.7)")
    group.add_argument("--rack-penalty", type=one_or_more, metavar="X", help="of spanning racks, in addition (1.0)")
    group.add_argument("--move-cost", type=nothing_or_more, metavar="S", help="seconds per move and restart (30)")
    group.add_argument("--start-cost", type=nothing_or_more, metavar="S", help="seconds per first start (0)")
    group.add_argument("--decide-every", type=nothing_or_more, metavar="S", help="seconds (0: when something happens)")
    group.add_argument(
        "--patience", type=nothing_or_more, metavar="S", help="nodes are kept for a job that waited so long (never)"
    )
    group.add_argument("--failures", type=nothing_or_more, metavar="PER_NODE_DAY", help="of nodes (0)")
    group.add_argument("--repair", type=nothing_or_more, metavar="S", help="seconds that a failed node is away (3600)")
    group.add_argument(
        "--drift", type=nothing_or_more, metavar="HOURS", help="between two changes of all scores (0: none)"
    )
    group.add_argument("--noise", type=nothing_or_more, metavar="X", help="of one measured step time, as a part (0.02)")
    group.add_argument("--seed", type=int, metavar="N", help=f"of all dice (default: {SEED})")


def _output(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--json", type=Path, metavar="OUT", help="every job and all metrics; - for stdout, instead of the table"
    )
    group.add_argument("--report", type=Path, metavar="OUT", help="what came of it, with charts, as OUT.html")
    group.add_argument("--quiet", action="store_true", help="no progress bar")


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
