"""The runs to simulate: every combination of the named orders, placements and backfills."""

import argparse
from collections.abc import Sequence
from itertools import product

from msgspec import Struct

from weft.planning.partition import Rules
from weft.planning.policy import ALWAYS, Policy
from weft.serving.policies import OURS
from weft.simulator.model import World
from weft.simulator.run import PRESETS
from weft.simulator.sizing import Partitioning
from weft.simulator.sizing import partitioning_of as planner_of
from weftd.cli.cli_error import CliError
from weftd.cli.study.simulation.options import SEED


class Planned(Struct, frozen=True, kw_only=True):
    """One run."""

    policy: Policy
    world: World
    scores: str = "oracle"
    seed: int = SEED
    partitioning: Partitioning | None = None
    autoscaler: str | None = None  # of the services, where there are some

    @property
    def name(self) -> str:
        planner = None if self.partitioning is None else self.partitioning.name
        return "+".join(name for name in (str(self.policy), planner, self.autoscaler) if name is not None)


def plans_of(args: argparse.Namespace) -> list[Planned]:
    """The runs; all are compared with the first. A CliError if they make no sense."""
    if args.preset is not None and args.preset not in PRESETS:
        raise CliError(f"--preset: no such preset as {args.preset!r}; there are {', '.join(PRESETS)}", status=2)
    start = Policy() if args.preset is None else PRESETS[args.preset]
    names = (args.order or [start.order], args.placement or [start.placement], args.backfill or [start.backfill])
    world, scores, seed = world_of(args), args.scores or "oracle", SEED if args.seed is None else args.seed
    partitionings = [partitioning_of(args, name) for name in args.partition or ["none"]]
    plans: list[Planned] = []
    for order, placement, backfill, partitioning, scaler in product(*names, partitionings, autoscalers_of(args)):
        try:
            policy = Policy(order, placement, backfill)
        except ValueError as error:
            raise CliError(str(error), status=2) from error
        if partitioning is not None and policy.placing.moves == ALWAYS:
            sentence = f"--placement {placement} moves running jobs, which a partition does not allow"
            raise CliError(sentence, status=2)
        plans.append(
            Planned(policy=policy, world=world, scores=scores, seed=seed, partitioning=partitioning, autoscaler=scaler)
        )
    return plans


def partitioning_of(args: argparse.Namespace, name: str) -> Partitioning | None:
    """The planner of that name, with its rules from the options."""
    if name == "none":
        return None
    said = {rule: value for rule in ("theta1", "theta2") if (value := getattr(args, rule)) is not None}
    try:
        return planner_of(name, Rules(**said))
    except ValueError as error:
        raise CliError(f"--{error}, none", status=2) from error


def autoscalers_of(args: argparse.Namespace) -> Sequence[str | None]:
    """The names of the autoscalers to compare, where there are services."""
    if args.services is None:
        for name in ("autoscaler", "hours"):
            if getattr(args, name) is not None:
                raise CliError(f"--{name} goes with --services only", status=2)
        return (None,)
    for name in args.autoscaler or ():
        if name not in OURS:
            raise CliError(f"--autoscaler: no such autoscaler as {name!r}; there are {', '.join(OURS)}", status=2)
    return args.autoscaler or ("weft",)


def world_of(args: argparse.Namespace) -> World:
    """The world from the options, with its own defaults for the rest."""
    said = {
        "penalty": args.penalty,
        "rack_penalty": args.rack_penalty,
        "move_s": args.move_cost,
        "start_s": args.start_cost,
        "decide_every_s": args.decide_every,
        "patience_s": args.patience,
        "failures_per_node_day": args.failures,
        "repair_s": args.repair,
        "drift_s": None if args.drift is None else args.drift * 3600,
        "noise": args.noise,
        "durations_known": args.durations_known or None,
    }
    return World(**{name: value for name, value in said.items() if value is not None})
