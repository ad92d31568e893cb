"""The runs to simulate: every combination of the named orders, placements and backfills."""

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

from msgspec import Struct

from libs.planning.policy import ALWAYS, Policy
from libs.serving.policies import OURS
from libs.simulator.model import World
from libs.simulator.rounds import PLACERS, ROUND_S
from libs.simulator.run import PRESETS
from libs.simulator.sizing import Partitioning
from services.cli.complaint import Complaint
from services.cli.simulation.options import SEED

ARTIFACT = "pal-artifact"
# Its rules as options: the one value of each option that agrees with them.
ARTIFACT_RULES = {
    "order": ["fifo"],
    "backfill": ["none"],
    "move_cost": 0.0,
    "start_cost": 0.0,
    "decide_every": ROUND_S,
    "rack_penalty": 1.0,
    "nodes_per_rack": None,
    "failures": 0.0,
    "repair": None,
    "drift": 0.0,
    "noise": 0.0,
    "scores": "oracle",
    "durations_known": False,
    "partition": ["none"],
    "elastic": None,
    "services": None,
}


class Planned(Struct, frozen=True, kw_only=True):
    """One run. `in_rounds`: by the PAL artifact's rules, which know the penalty and the placement alone."""

    policy: Policy
    world: World
    in_rounds: bool = False
    scores: str = "oracle"
    seed: int = SEED
    partitioning: Partitioning | None = None
    autoscaler: str | None = None  # of the services, where there are some

    @property
    def name(self) -> str:
        planner = None if self.partitioning is None else self.partitioning.name
        return "+".join(name for name in (str(self.policy), planner, self.autoscaler) if name is not None)


def plans_of(args: argparse.Namespace) -> list[Planned]:
    """The runs; all are compared with the first. A Complaint if they make no sense."""
    presets: Sequence[str | None] = args.preset or [None]
    for preset in presets:
        if preset is not None and preset not in PRESETS:
            raise Complaint(f"--preset: no such preset as {preset!r}; there are {', '.join(PRESETS)}", status=2)
    said = [name for name in ("order", "placement", "backfill") if getattr(args, name) is not None]
    if len(presets) > 1 and said:
        raise Complaint(f"--{said[0]} and several presets do not go together: each preset has its own", status=2)
    return [plan for preset in presets for plan in _plans(args, preset)]


def _plans(args: argparse.Namespace, preset: str | None) -> Iterator[Planned]:
    if preset == ARTIFACT:
        yield from _in_rounds(args)
        return
    start = Policy() if preset is None else PRESETS[preset].policy
    names = (args.order or [start.order], args.placement or [start.placement], args.backfill or [start.backfill])
    world, scores, seed = world_of(args), args.scores or "oracle", SEED if args.seed is None else args.seed
    partitionings = [partitioning_of(args, name) for name in args.partition or ["none"]]
    for order, placement, backfill, partitioning, scaler in product(*names, partitionings, autoscalers_of(args)):
        try:
            policy = Policy(order, placement, backfill)
        except ValueError as error:
            raise Complaint(str(error), status=2) from error
        if partitioning is not None and policy.placing.moves == ALWAYS:
            sentence = f"--placement {placement} places running jobs anew, which a partition does not allow"
            raise Complaint(sentence, status=2)
        yield Planned(
            policy=policy, world=world, scores=scores, seed=seed, partitioning=partitioning, autoscaler=scaler
        )


def partitioning_of(args: argparse.Namespace, name: str) -> Partitioning | None:
    """The planner of that name, with its rules from the options. It is imported only if it is used."""
    from libs.planning.partition import Rules
    from libs.simulator import partitionings

    if name == "none":
        return None
    said = {rule: value for rule in ("theta1", "theta2") if (value := getattr(args, rule)) is not None}
    try:
        return partitionings.partitioning_of(name, Rules(**said))
    except ValueError as error:
        raise Complaint(f"--{error}, none", status=2) from error


def autoscalers_of(args: argparse.Namespace) -> Sequence[str | None]:
    """The names of the autoscalers to compare, where there are services."""
    if args.services is None:
        for name in ("autoscaler", "hours"):
            if getattr(args, name) is not None:
                raise Complaint(f"--{name} goes with --services only", status=2)
        return (None,)
    for name in args.autoscaler or ():
        if name not in OURS:
            raise Complaint(f"--autoscaler: no such autoscaler as {name!r}; there are {', '.join(OURS)}", status=2)
    return args.autoscaler or ("weft",)


def _in_rounds(args: argparse.Namespace) -> Iterator[Planned]:
    for name, rule in ARTIFACT_RULES.items():
        value = getattr(args, name)
        if value not in (None, False, rule):
            option = f"--{name.replace('_', '-')}"
            raise Complaint(f"{option}: --preset {ARTIFACT} has rules of its own, and {_rule(name)}", status=2)
    for placement in args.placement or ["pal"]:
        if placement not in PLACERS:
            known = ", ".join(PLACERS)
            raise Complaint(f"--placement: --preset {ARTIFACT} knows {known}, not {placement!r}", status=2)
        world = World(penalty=World().penalty if args.penalty is None else args.penalty, move_s=0.0)
        yield Planned(policy=Policy(placement=placement), world=world, in_rounds=True)


def _rule(name: str) -> str:
    match ARTIFACT_RULES[name]:
        case [str(only)]:
            return f"{only} is the only {name} there"
        case str(only):
            return f"{only} is the only one there"
        case float(only):
            return f"it is {only:g} there"
        case _:
            return "there is no such thing there"


def world_of(args: argparse.Namespace) -> World:
    """The world from the options, with its own defaults for the rest."""
    penalty = 1.0 if args.generate == "dorm" and args.penalty is None else args.penalty  # containers without GPUs
    said = {
        "penalty": penalty,
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
