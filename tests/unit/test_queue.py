"""Waiting jobs in the order in which they are served, one group asked about once."""

from collections import Counter
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tier import examples
from weft.planning.order import DRF, FIFO, LAS, LAS_FIRST_GPU_SECONDS, PRIORITY, Order, Standing
from weft.planning.queue import Queue, place_of


def standing(name: str, seq: int = 1, *, tenant: str = "", priority: int = 0, attained_s: float = 0.0) -> Standing:
    return Standing(
        id=name, seq=seq, gpus=1, tenant=tenant, priority=priority, attained_s=attained_s, attained_gpu_s=attained_s
    )


def queue(order: Order, *jobs: tuple[Standing, str]) -> Queue:
    made = Queue(order)
    for job, group in jobs:
        made.add(job, group)
    return made


def passed(waiting: Queue, share_of: Callable[[str], float] | None = None) -> list[str]:
    """Everybody's id in the order of service, nobody being taken."""
    walk = waiting.served(share_of)
    found: list[str] = []
    while (job_id := walk.next()) is not None:
        found.append(job_id)
        walk.passed()
    return found


def test_jobs_of_all_groups_are_served_in_one_order() -> None:
    waiting = queue(FIFO, (standing("c", 3), "small"), (standing("a", 1), "small"), (standing("b", 2), "large"))
    assert passed(waiting) == ["a", "b", "c"]
    assert len(waiting) == 3


def test_of_one_number_the_id_decides() -> None:
    assert passed(queue(FIFO, (standing("b"), "x"), (standing("a"), "y"), (standing("c"), "x"))) == ["a", "b", "c"]


def test_a_job_that_waits_already_gets_its_new_place() -> None:
    waiting = queue(PRIORITY, (standing("a", 1), "x"), (standing("b", 2), "x"))
    waiting.add(standing("b", 2, priority=1), "y")
    assert passed(waiting) == ["b", "a"]
    assert (len(waiting), waiting.group("b")) == (2, "y")


def test_who_is_taken_out_waits_no_more_and_who_never_waited_changes_nothing() -> None:
    waiting = queue(FIFO, (standing("a", 1), "x"), (standing("b", 2), "x"))
    waiting.remove("a")
    waiting.remove("a")
    waiting.remove("nobody")
    assert "a" not in waiting
    assert "b" in waiting
    assert passed(waiting) == ["b"]


def test_a_group_that_does_not_fit_is_asked_about_once() -> None:
    jobs = ((standing("a", 1), "big"), (standing("b", 2), "small"), (standing("c", 3), "big"))
    walk = queue(FIFO, *jobs, (standing("d", 4), "small")).served()
    asked: list[str | None] = []
    while (job_id := walk.next()) is not None:
        asked.append(job_id)
        if job_id in ("a", "c"):
            walk.blocked()
        else:
            walk.passed()
    assert asked == ["a", "b", "d"]


def test_who_is_taken_makes_way_for_the_next_of_its_group() -> None:
    waiting = queue(FIFO, (standing("a", 1), "x"), (standing("b", 2), "y"), (standing("c", 3), "x"))
    walk = waiting.served()
    order: list[str] = []
    while (job_id := walk.next()) is not None:
        order.append(job_id)
        waiting.remove(job_id)
        walk.taken()
    assert order == ["a", "b", "c"]
    assert len(waiting) == 0


def test_jobs_of_several_groups_are_served_in_one_order() -> None:
    jobs = [standing("a", 1), standing("b", 2), standing("c", 3), standing("d", 4, attained_s=LAS_FIRST_GPU_SECONDS)]
    waiting = queue(LAS, *((job, str(number % 2)) for number, job in enumerate(jobs)))
    assert passed(waiting) == ["a", "b", "c", "d"]


def test_shares_of_tenants_decide_and_change_while_they_are_served() -> None:
    """Each job that is taken makes its tenant's share larger, so tenants take turns."""
    held: Counter[str] = Counter(alice=2)
    tenant_of = {"a1": "alice", "a2": "alice", "b1": "bob", "b2": "bob", "b3": "bob", "b4": "bob"}
    jobs = ((standing(name, seq, tenant=tenant), "x") for seq, (name, tenant) in enumerate(tenant_of.items()))
    waiting = queue(DRF, *jobs)
    assert waiting.group("a1") == "x"
    walk = waiting.served(lambda tenant: held[tenant] / 10)
    order: list[str] = []
    while (job_id := walk.next()) is not None:
        order.append(job_id)
        held[tenant_of[job_id]] += 1
        waiting.remove(job_id)
        walk.taken()
    # Two of bob's, until both hold two: then the oldest, and so on in turn.
    assert order == ["b1", "b2", "a1", "b3", "a2", "b4"]


def test_a_tenants_group_that_does_not_fit_says_nothing_of_anothers() -> None:
    waiting = queue(DRF, (standing("a", 1, tenant="alice"), "x"), (standing("b", 2, tenant="bob"), "x"))
    walk = waiting.served(lambda tenant: 0.0)
    assert walk.next() == "a"
    walk.blocked()
    assert walk.next() == "b"
    walk.blocked()
    assert walk.next() is None


def test_an_order_that_does_not_go_by_shares_does_not_ask_for_them() -> None:
    def never(tenant: str) -> float:
        raise AssertionError(tenant)

    assert passed(queue(FIFO, (standing("a"), "x")), never) == ["a"]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(-2, 2), st.sampled_from("xyz"), st.booleans()),
        max_size=25,
    )
)
def test_a_queue_serves_as_sorting_would(steps: Sequence[tuple[int, int, int, str, bool]]) -> None:
    """Whatever was added, added again under another group, and removed."""
    waiting = Queue(PRIORITY)
    there: dict[str, Standing] = {}
    for number, seq, priority, group, adds in steps:
        job = standing(str(number), seq, priority=priority)
        if adds:
            waiting.add(job, group)
            there[job.id] = job
        else:
            waiting.remove(job.id)
            there.pop(job.id, None)
    expected = sorted(there, key=lambda job_id: place_of(PRIORITY, there[job_id]))
    assert passed(waiting) == expected
    assert len(waiting) == len(expected)
