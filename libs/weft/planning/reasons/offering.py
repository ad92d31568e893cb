"""The words for what only some nodes can start: jobs with volumes, with an image, or without one."""

from collections.abc import Iterable, Sequence

from weft.domain.cluster import NeededVolume, Node, Request
from weft.domain.text import listed

NAMED_MAX = 3
NAMES_MAX = 8


def unoffered(nodes: Sequence[Node], request: Request) -> str:
    """Why none of `nodes` can start such a replica: by its runtime, or for the volumes; empty if one can."""
    if nodes and not any(node.runs(image=request.image) for node in nodes):
        return (
            "every node of its pool runs jobs as processes, and it names an image"
            if request.image
            else "every node of its pool runs jobs in containers, and it names no image"
        )
    if not request.volumes or any(all(map(node.offers, request.volumes)) for node in nodes):
        return ""
    for volume in request.volumes:
        if any(node.offers(volume) for node in nodes):
            continue
        if reads := _that_offer(nodes, _read_only(volume)):
            names = listed(reads, NAMED_MAX)
            return f"the volume {volume.name} is offered to be read alone, by {names}: add `read_only: true`"
        return f"no node of its pool offers the volume {volume.name}; {_what_there_is(nodes, volume.tenant)}"
    each = ", ".join(
        f"{volume.name} is on {listed(_that_offer(nodes, volume), NAMED_MAX)}" for volume in request.volumes
    )
    return f"no node of its pool offers all its volumes: {each}"


def missing_on(node: Node, request: Request) -> str:
    """The reason why a node cannot start the request, such as `does not offer the volume sets`; empty: nothing."""
    if not node.runs(image=request.image):
        return "runs jobs as processes, without images" if request.image else "runs jobs in containers, from an image"
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
    """Such as `only node-1 and node-2 offer the volume sets`, or `only node-1 runs jobs without an image`; empty where
    all nodes can start it, or none."""
    runs = [node.id for node in nodes if node.runs(image=request.image)]
    if 0 < len(runs) < len(nodes):
        verb, kind = "runs" if len(runs) == 1 else "run", "from an image" if request.image else "without an image"
        only = f"only {listed(sorted(runs), NAMED_MAX)} {verb} jobs {kind}"
        volumes = _offered([node for node in nodes if node.runs(image=request.image)], request)
        return f"{only}, and {volumes}" if volumes else only
    return _offered(nodes, request)


def _offered(nodes: Sequence[Node], request: Request) -> str:
    found = [node.id for node in nodes if all(map(node.offers, request.volumes))]
    if not request.volumes or len(found) in (0, len(nodes)):
        return ""
    names = listed([volume.name for volume in request.volumes])
    volumes = "volume" if len(request.volumes) == 1 else "volumes"
    return f"only {listed(sorted(found), NAMED_MAX)} {'offers' if len(found) == 1 else 'offer'} the {volumes} {names}"


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
