"""Nodes divided among scorers."""

import pytest

from weftd.scorer.thinking.core import BEGINS_AFTER_SECONDS, HEARD_WITHIN_SECONDS, ScorerPeers, owned, owner

NODES = [f"node-{number}" for number in range(1000)]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 20])
def test_every_node_has_one_owner_and_all_have_about_as_many(count: int) -> None:
    scorers = [f"scorer-{number}" for number in range(count)]
    parts = [owned(scorer, NODES, scorers) for scorer in scorers]
    assert sum(map(len, parts)) == len(frozenset().union(*parts)) == len(NODES)
    fair = len(NODES) / count
    assert all(abs(len(part) - fair) < 5 * fair**0.5 for part in parts)


def test_one_that_comes_takes_its_part_and_nothing_else_moves() -> None:
    before = ["a", "b", "c"]
    after = [*before, "d"]
    moved = [node for node in NODES if owner(node, before) != owner(node, after)]
    assert all(owner(node, after) == "d" for node in moved)
    assert len(moved) == pytest.approx(len(NODES) / 4, rel=0.25)


def test_the_nodes_of_one_that_goes_are_spread_and_nothing_else_moves() -> None:
    before, after = ["a", "b", "c", "d"], ["a", "b", "c"]
    moved = [node for node in NODES if owner(node, before) != owner(node, after)]
    assert {owner(node, before) for node in moved} == {"d"}
    assert {owner(node, after) for node in moved} == {"a", "b", "c"}


def test_it_is_no_matter_in_which_order_they_are_known() -> None:
    assert owned("b", NODES, ["a", "b", "c"]) == owned("b", NODES, ["c", "b", "a"])


def test_one_waits_for_the_others_before_it_begins_and_then_knows_who_was_heard_lately() -> None:
    peers = ScorerPeers("b")
    assert peers.present(100.0) == ()
    peers.heard("a", 100.5)
    peers.heard("b", 100.5)
    begun = 100.0 + BEGINS_AFTER_SECONDS
    assert peers.present(begun) == ("a", "b")
    assert peers.present(100.5 + HEARD_WITHIN_SECONDS) == ("a", "b")
    assert peers.present(100.6 + HEARD_WITHIN_SECONDS) == ("b",)
