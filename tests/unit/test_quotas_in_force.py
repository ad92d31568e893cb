"""Quotas in force say at every moment what a ledger of that moment says, whatever they remember."""

import random

import pytest

from tests.support.builders import job, node
from tests.support.tier import some
from weft.domain.job import Allocation
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE
from weft.planning.quota.amounts import amounts_in, lendable, wanted_by
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.quota.ledger import Ledger, TenantHolds
from weft.planning.quota.ranks import may_start, rank_of
from weft.planning.resource_request import ResourceRequest, gpus_least, resource_request_of_job
from weft.planning.scheduling_pass import Demand

NODES = [node(f"node-{number}", gpus=8) for number in range(4)]
TENANTS = ("a", "b", "c")
QUOTAS = [
    Quota(name="lab", is_group=True, guaranteed={ALL: 9 * WHOLE}, limit={ALL: 20 * WHOLE}),
    Quota(name="a", group="lab", guaranteed={ALL: 3 * WHOLE}, weight=2),
    Quota(name="b", group="lab", guaranteed={ALL: 4 * WHOLE}, limit={ALL: 6 * WHOLE}),
]
BY_ID = {one.id: one for one in NODES}
SHAPES = [resource_request_of_job(job("j", gpus=gpus)) for gpus in (1, 2, 5)]


def place(drawn: random.Random) -> tuple[Allocation, ...]:
    gpus = tuple(range(drawn.randint(1, 4)))
    where = drawn.choice(NODES).id
    return (Allocation(rank=0, role="worker", node_id=where, gpus=gpus, cpus=1.0, memory=1 << 30),)


def demand(tenant: str, resource_request: ResourceRequest, *, preemptible: bool = True) -> Demand:
    return Demand(resource_request, gpus_least(resource_request), None, tenant=tenant, preemptible=preemptible)


@pytest.mark.parametrize("seed", some(4, range(20)))
def test_what_is_remembered_of_a_rank_or_fit_is_forgotten_as_soon_as_it_may_have_changed(seed: int) -> None:
    drawn = random.Random(seed)
    quotas, ledger = QuotasInForce(QUOTAS, BY_ID), Ledger(QUOTAS)
    for step in range(60):
        if step == 30:
            quotas = quotas.again()
        tenant, job_id = drawn.choice(TENANTS), f"j-{drawn.randrange(8)}"
        if job_id in ledger.claims:
            quotas.unclaim(job_id)
            ledger.unclaim(job_id)
        elif job_id in ledger.jobs and drawn.random() < 0.5:
            quotas.let_go(job_id)
            ledger.let_go(job_id)
        elif job_id not in ledger.jobs and drawn.random() < 0.3:
            resource_request = drawn.choice(SHAPES)
            quotas.claim(job_id, demand(tenant, resource_request), 0.0)
            ledger.claim(job_id, TenantHolds(tenant, wanted_by(resource_request), 0.0, True))
        elif job_id not in ledger.jobs:
            held = place(drawn)
            quotas.hold(job_id, tenant, held)
            ledger.hold(job_id, TenantHolds(tenant, amounts_in(held, BY_ID), 0.0, True))
        for each in TENANTS:
            for resource_request in SHAPES:
                for preemptible in (True, False):
                    one, wanted = demand(each, resource_request, preemptible=preemptible), wanted_by(resource_request)
                    rank = rank_of(ledger, lendable(NODES), each, wanted, tier=1.0, job_id=job_id)
                    assert quotas.rank(job_id, one, 1.0) == rank
                    fits = may_start(ledger.fit(each, wanted, job_id=job_id), preemptible=preemptible)
                    assert quotas.may_start(job_id, one) == fits


def test_another_course_of_things_changes_nothing_in_the_first() -> None:
    first = QuotasInForce(QUOTAS, BY_ID)
    many, few = demand("b", SHAPES[2]), demand("b", SHAPES[1])
    before = first.rank("j", many, 0.0)
    other = first.again()
    other.hold_somewhere("j-1", "b", SHAPES[2])
    assert not other.may_start("j", few)
    assert first.may_start("j", few)
    assert first.rank("j", many, 0.0) == before != other.rank("j", many, 0.0)
