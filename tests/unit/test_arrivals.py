"""Which samples are news."""

from weft.messages.signals import HostSample, NodeSampled
from weft.samples.arrivals import NODES_MAX, Arrivals


def sampled(seq: int, *, node: str = "node-1", boot: str = "a", at: float | None = None) -> NodeSampled:
    return NodeSampled(
        node_id=node,
        pool="default",
        at=float(seq) if at is None else at,
        host=HostSample(cpus=2, memory_total=1, memory_used=0),
        boot=boot,
        seq=seq,
    )


def test_late_and_doubled_samples_are_refused_and_counted() -> None:
    arrivals = Arrivals()
    taken = [arrivals.take(sampled(seq), heard_at=float(n)) for n, seq in enumerate([1, 2, 2, 1, 4, 3, 5])]
    assert taken == [True, True, False, False, True, False, True]
    assert arrivals.refused == 3


def test_a_telemetry_that_begins_anew_is_believed() -> None:
    arrivals = Arrivals()
    assert arrivals.take(sampled(900), heard_at=0.0)
    assert arrivals.take(sampled(1, boot="b"), heard_at=1.0)
    assert not arrivals.take(sampled(1, boot="b"), heard_at=1.1)


def test_a_wrong_clock_is_no_reason_to_refuse_but_a_jump_is_counted() -> None:
    arrivals = Arrivals()
    assert arrivals.take(sampled(1, at=1e9), heard_at=0.0)
    assert arrivals.take(sampled(2, at=1e9 + 1), heard_at=1.0)
    assert arrivals.jumped == 0
    assert arrivals.take(sampled(3, at=2e9), heard_at=2.0)
    assert arrivals.jumped == 1


def test_so_many_nodes_are_remembered_and_no_more_for_ever() -> None:
    arrivals = Arrivals()
    for number in range(NODES_MAX):
        arrivals.take(sampled(1, node=f"node-{number}"), heard_at=0.0)
    arrivals.take(sampled(1, node="another"), heard_at=1000.0)
    assert arrivals.heard_at("node-0") is None
    assert arrivals.heard_at("another") == 1000.0
