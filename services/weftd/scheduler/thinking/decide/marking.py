"""Labels and taints that an operator gives a node. Runs there go on, whatever they were placed by."""

from msgspec import structs

from weft.domain.labels import changed
from weft.messages.asks import Ask
from weftd.scheduler.thinking.state.cluster_state import ClusterState


def mark(cluster_state: ClusterState, ask: Ask, now: float) -> None:
    """Change the labels and taints of a node, unless it would have more than it may."""
    node = cluster_state.pool.nodes.get(ask.subject_id)
    if node is None or ask.marking is None:
        return
    marking = node.marking.then(ask.marking)
    if marking == node.marking or not marking.is_bounded:
        return
    node = structs.replace(
        node,
        labels=changed(node.labels, ask.marking.labels),
        taints=changed(node.taints, ask.marking.taints),
        marking=marking,
        seen_at=cluster_state.pool.heard.get(node.id, node.seen_at),
    )
    sentence = f"has {ask.marking.text} by {ask.by}"
    cluster_state.change_node(node, "changed", sentence, at=now, ask=ask.id)
