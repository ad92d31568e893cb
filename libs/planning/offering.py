"""The words for volumes: which nodes offer what a job names, and that none does."""

from collections.abc import Iterable, Sequence

from libs.domain.cluster import NeededVolume, Node, Request

NAMED_MAX = 3
NAMES_MAX = 8


def unoffered(nodes: Sequence[Node], request: Request) -> str:
    """Why none of `nodes` offers all the volumes of the request; empty if one does, or if it names none."""
    if not request.volumes or any(all(map(node.offers, request.volumes)) for node in nodes):
        return ""
    for volume in request.volumes:
        if any(node.offers(volume) for node in nodes):
            continue
        if reads := _that_offer(nodes, _read_only(volume)):
            return f"the volume {volume.name} is offered to be read alone, by {_listed(reads)}: add `read_only: true`"
        return f"no node of its pool offers the volume {volume.name}; {_what_there_is(nodes, volume.tenant)}"
    each = ", ".join(f"{volume.name} is on {_listed(_that_offer(nodes, volume))}" for volume in request.volumes)
    return f"no node of its pool offers all its volumes: {each}"


def missing_on(node: Node, request: Request) -> str:
    """What the node lacks of the request's volumes, such as `does not offer the volume sets`; empty: nothing."""
    for volume in request.volumes:
        if not node.offers(volume):
            reads = node.offers(_read_only(volume))
            return (
                f"offers the volume {volume.name} to be read alone"
                if reads
                else (f"does not offer the volume {volume.name}")
            )
    return ""


def offered_text(nodes: Sequence[Node], request: Request) -> str:
    """Such as `only node-1 and node-2 offer the volume sets`; empty if it names none, or where all nodes do or none."""
    found = [node.id for node in nodes if all(map(node.offers, request.volumes))]
    if not request.volumes or len(found) in (0, len(nodes)):
        return ""
    names = " and ".join(volume.name for volume in request.volumes)
    volumes = "volume" if len(request.volumes) == 1 else "volumes"
    return f"only {_listed(sorted(found))} {'offers' if len(found) == 1 else 'offer'} the {volumes} {names}"


def _read_only(volume: NeededVolume) -> NeededVolume:
    return NeededVolume(volume.name, volume.tenant, writes=False)


def _that_offer(nodes: Iterable[Node], volume: NeededVolume) -> list[str]:
    return sorted(node.id for node in nodes if node.offers(volume))


def _what_there_is(nodes: Iterable[Node], tenant: str) -> str:
    names = sorted({each.name for node in nodes for each in node.capacity.volumes if each.is_for(tenant)})
    if not names:
        return "they offer none"
    more = ", …" if len(names) > NAMES_MAX else ""
    return f"there is {', '.join(names[:NAMES_MAX])}{more}"


def _listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b, c and 4 more`."""
    if len(names) <= NAMED_MAX:
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{', '.join(names[:NAMED_MAX])} and {len(names) - NAMED_MAX} more"
