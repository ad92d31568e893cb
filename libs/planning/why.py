"""Why a gang goes where it goes: how fast it is there, and what that is against packing it, in the same room."""

from collections.abc import Sequence

from msgspec import Struct

from libs.domain.job import Allocation
from libs.planning.pins import is_pinned
from libs.planning.placement.packed import packed
from libs.planning.room import Asked, Room, Shape

ALIKE = 0.005  # times nearer to each other than this are told as equal
NODES_NAMED = 3


class Why(Struct, frozen=True):
    """`numbers`: `slowdown` is `slowest`, the score of its slowest GPU, times `locality`."""

    sentence: str
    numbers: dict[str, float]


def why_there(room: Room, shape: Shape, asked: Asked, allocations: Sequence[Allocation], *, placement: str) -> Why:
    """Asked before the room knows of it. `placement` is the name of what chose them."""
    gpus = sum(len(allocation.gpus) for allocation in allocations)
    nodes = list(dict.fromkeys(allocation.node_id for allocation in allocations))
    if not gpus:
        together = " together" if len(allocations) > 1 else ""
        if is_pinned(shape):
            return Why(f"pinned to {nodes[0]}, where its CPUs and memory are free", {})
        sentence = f"its CPUs and memory are free{together} on {_named(nodes)}; without GPUs, the fullest that fits"
        return Why(sentence, {})
    if is_pinned(shape):
        placement = "pinned"
    slowdown = room.slowdown(allocations, asked.job_class)
    slowest = max(room.slowdown([allocation], asked.job_class) for allocation in allocations if allocation.gpus)
    locality = slowdown / slowest
    numbers = {"slowdown": slowdown, "slowest": slowest, "locality": locality}
    where = f"{nodes[0]}{' together' if gpus > 1 else ''}" if len(nodes) == 1 else _named(nodes)
    speed = f"slowest {slowest:.2f}" if gpus > 1 else f"score {slowest:.2f}"
    if locality != 1.0:
        speed += f" × locality {locality:.2f}"
    sentence = f"{placement}: {gpus} GPU{'' if gpus == 1 else 's'} of {where}, {speed}"
    if placement in ("packed", "pinned"):
        return Why(sentence, numbers)
    otherwise = slowdown_packed(room, shape, asked)
    if otherwise is None:
        return Why(sentence, numbers)
    return Why(sentence + _against(otherwise, slowdown), {**numbers, "slowdown_packed": otherwise})


def slowdown_packed(room: Room, shape: Shape, asked: Asked) -> float | None:
    """How fast it would be where packing puts it, if it finds a place at all."""
    placer, room.placer = room.placer, packed
    found = room.find(shape, asked)
    room.placer = placer
    return None if found is None else room.slowdown(found, asked.job_class)


def _against(otherwise: float, slowdown: float) -> str:
    if abs(otherwise - slowdown) < ALIKE:
        return "; packed is as fast"
    if otherwise > slowdown:
        return f"; packed would have given {otherwise:.2f}: {100 * (1 - slowdown / otherwise):.0f} % faster"
    return f"; packed would have given {otherwise:.2f}: faster GPUs are left to whom they help more"


def _named(nodes: Sequence[str]) -> str:
    if len(nodes) <= NODES_NAMED:
        return " and ".join([", ".join(nodes[:-1]), nodes[-1]] if len(nodes) > 1 else nodes)
    return f"{len(nodes)} nodes"
