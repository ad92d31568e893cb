"""The words for what only some nodes can start: jobs with volumes, with an image or without one, or with `where`."""

from collections.abc import Iterable, Sequence

from weft.domain.cluster import NeededVolume, Node, Request
from weft.domain.labels import tolerates, word_of, words_of
from weft.domain.text import listed, plural

NAMED_MAX = 3
NAMES_MAX = 8
EXPRESSION_SHOWN_MAX = 120  # characters


def unoffered(nodes: Sequence[Node], request: Request) -> str:
    """Why none of `nodes` can start such a replica (its runtime, labels, taints or volumes); empty if one can."""
    if nodes and not any(node.runs(image=request.image) for node in nodes):
        return (
            "every node of its pool runs jobs as processes, and it names an image"
            if request.image
            else "every node of its pool runs jobs in containers, and it names no image"
        )
    if why := unmarked(nodes, request)[1]:
        return why
    if any(node.starts(request) for node in nodes):
        return ""
    if not request.volumes or any(all(map(node.offers, request.volumes)) for node in nodes):
        return f"no node of its pool has all that it asks for: {offered_text(nodes, request)}" if nodes else ""
    for volume in request.volumes:
        if any(node.offers(volume) for node in nodes):
            continue
        if reads := _that_offer(nodes, _read_only(volume)):
            names = listed(reads, NAMED_MAX)
            return f"the volume {volume.name} is offered read-only, by {names}: add `read_only: true`"
        return f"no node of its pool offers the volume {volume.name}; {_what_there_is(nodes, volume.tenant)}"
    each = ", ".join(
        f"{volume.name} is on {listed(_that_offer(nodes, volume), NAMED_MAX)}" for volume in request.volumes
    )
    return f"no node of its pool offers all its volumes: {each}"


def unmarked(nodes: Sequence[Node], request: Request) -> tuple[str, str]:
    """The field of a job for which the labels or taints of all `nodes` keep it from each, and why; both are empty if
    they do not."""
    matching = [node for node in nodes if node.matches(request)]
    if nodes and not matching:
        return "where", f"no node of its pool matches `{_shown(request.where)}`; {_labels_there(nodes)}"
    if matching and not any(node.is_tolerated(request) for node in matching):
        which = "each node of its pool that matches its `where` has" if request.where else "each node of its pool has"
        return "tolerate", f"{which} a taint that it does not tolerate: {_taints_text(matching, request)}"
    return "", ""


def missing_on(node: Node, request: Request) -> str:
    """The reason why a node cannot start the request, such as `does not offer the volume sets`; empty: nothing."""
    if not node.runs(image=request.image):
        return "runs jobs as processes, without images" if request.image else "runs jobs in containers, from an image"
    if not node.matches(request):
        return f"does not match `{_shown(request.where)}`"
    if not node.is_tolerated(request):
        return f"has a taint that it does not tolerate: {_taints_text([node], request)}"
    for volume in request.volumes:
        if not node.offers(volume):
            reads = node.offers(_read_only(volume))
            return (
                f"offers the volume {volume.name} read-only" if reads else (f"does not offer the volume {volume.name}")
            )
    return ""


def offered_text(nodes: Sequence[Node], request: Request) -> str:
    """Such as `only node-1 and node-2 offer the volume sets`, or `2 of 4 nodes match its where: node-1 and node-3`.
    Empty where all nodes can start it, or none."""
    runs = [node.id for node in nodes if node.runs(image=request.image)]
    parts = [_offered([node for node in nodes if node.id in runs] or nodes, request), _marked(nodes, request)]
    if 0 < len(runs) < len(nodes):
        verb, kind = "runs" if len(runs) == 1 else "run", "from an image" if request.image else "without an image"
        parts.insert(0, f"only {listed(sorted(runs), NAMED_MAX)} {verb} jobs {kind}")
    return ", and ".join(part for part in parts if part)


def _marked(nodes: Sequence[Node], request: Request) -> str:
    matching = [node for node in nodes if node.matches(request)]
    kept_off = [node for node in matching if not node.is_tolerated(request)]
    parts = []
    if 0 < len(matching) < len(nodes):
        names = listed(sorted(node.id for node in matching), NAMED_MAX)
        parts.append(f"{len(matching)} of {plural(len(nodes), 'node')} match its `where`: {names}")
    if 0 < len(kept_off) < len(matching):
        names = listed(sorted(node.id for node in kept_off), NAMED_MAX)
        parts.append(f"it does not tolerate {_taints_text(kept_off, request)} on {names}")
    return ", and ".join(parts)


def _offered(nodes: Sequence[Node], request: Request) -> str:
    found = [node.id for node in nodes if all(map(node.offers, request.volumes))]
    if not request.volumes or len(found) in (0, len(nodes)):
        return ""
    names = listed([volume.name for volume in request.volumes])
    volumes = "volume" if len(request.volumes) == 1 else "volumes"
    return f"only {listed(sorted(found), NAMED_MAX)} {'offers' if len(found) == 1 else 'offer'} the {volumes} {names}"


def _taints_text(nodes: Iterable[Node], request: Request) -> str:
    found = {
        word_of(*taint) for node in nodes for taint in node.taints.items() if not tolerates(request.tolerates, *taint)
    }
    return _some(sorted(found))


def _labels_there(nodes: Iterable[Node]) -> str:
    found = sorted({word for node in nodes for word in words_of(node.labels)})
    return f"there is {_some(found)}" if found else "no node has a label"


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:NAMES_MAX]) + (", …" if len(words) > NAMES_MAX else "")


def _shown(expression: str) -> str:
    return expression if len(expression) <= EXPRESSION_SHOWN_MAX else f"{expression[:EXPRESSION_SHOWN_MAX]}…"


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
