"""Quotas in a look ahead say at every moment what a ledger of that moment says."""

import random

import pytest

from tests.support.builders import job, node
from tests.support.tier import some
from weft.domain.job import Allocation
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE
from weft.planning.quota.ahead import QuotasAhead
from weft.planning.quota.amounts import amounts_in, lendable, wanted_by
from weft.planning.quota.ledger import Ledger, TenantHolds
from weft.planning.quota.ranks import may_start, rank_of
from weft.planning.shape import shape_of_job

NODES = [node(f"node-{number}", gpus=8) for number in range(4)]
TENANTS = ("a", "b", "c")
QUOTAS = [
    Quota(name="lab", is_group=True, guaranteed={ALL: 9 * WHOLE}, limit={ALL: 20 * WHOLE}),
    Quota(name="a", group="lab", guaranteed={ALL: 3 * WHOLE}, weight=2),
    Quota(name="b", group="lab", guaranteed={ALL: 4 * WHOLE}, limit={ALL: 6 * WHOLE}),
]
SHAPES = [shape_of_job(job("j", gpus=gpus)) for gpus in (1, 2, 5)]


def place(drawn: random.Random) -> tuple[Allocation, ...]:
    gpus = tuple(range(drawn.randint(1, 4)))
    where = drawn.choice(NODES).id
    return (Allocation(rank=0, role="worker", node_id=where, gpus=gpus, cpus=1.0, memory=1 << 30),)


@pytest.mark.parametrize("seed", some(4, range(20)))
def test_what_is_remembered_of_a_rank_or_fit_is_forgotten_as_soon_as_it_may_have_changed(seed: int) -> None:
    drawn = random.Random(seed)
    ahead, ledger = QuotasAhead(QUOTAS, NODES), Ledger(QUOTAS)
    by_id = {one.id: one for one in NODES}
    for step in range(60):
        if step == 30:
            ahead = ahead.again()
        tenant, job_id = drawn.choice(TENANTS), f"j-{drawn.randrange(8)}"
        if job_id in ledger.jobs and drawn.random() < 0.5:
            ahead.let_go(job_id)
            ledger.let_go(job_id)
        elif job_id not in ledger.jobs:
            held = place(drawn)
            ahead.hold(job_id, tenant, held)
            ledger.hold(job_id, TenantHolds(tenant, amounts_in(held, by_id), 0.0, True))
        for each in TENANTS:
            for shape in SHAPES:
                wanted = wanted_by(shape)
                assert ahead.rank(each, shape, 1.0) == rank_of(ledger, lendable(NODES), each, wanted, tier=1.0)
                for preemptible in (True, False):
                    fits = may_start(ledger.fit(each, wanted), preemptible=preemptible)
                    assert ahead.may_start(each, shape, preemptible=preemptible) == fits


def test_another_course_of_things_changes_nothing_in_the_first() -> None:
    first = QuotasAhead(QUOTAS, NODES)
    before = first.rank("b", SHAPES[2])
    other = first.again()
    other.hold_somewhere("j-1", "b", SHAPES[2])
    assert not other.may_start("b", SHAPES[1])
    assert first.may_start("b", SHAPES[1])
    assert first.rank("b", SHAPES[2]) == before != other.rank("b", SHAPES[2])
