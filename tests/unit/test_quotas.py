"""Quotas: what is inside a guarantee, what is borrowed, and how a lender gets its GPUs back."""

from fractions import Fraction
from math import inf
from random import Random

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.support.tier import of_tier
from weft.domain.quotas import ALL, DEPTH_MAX, Quota, fault_of
from weft.planning.preemption import Holder
from weft.planning.quota.ledger import Ledger, QuotaFit, TenantHolds
from weft.planning.quota.ranks import may_start
from weft.planning.quota.reclaim import Returnable, in_turn, may_reclaim, protected
from weft.planning.quota.tree import due_of

TREES = of_tier(500, 10_000)


def quota(name: str, guaranteed: int = 0, *, limit: int | None = None, group: str = "", weight: int = 1) -> Quota:
    """Of a tenant, in millis."""
    most = {} if limit is None else {ALL: limit}
    return Quota(name=name, guaranteed={ALL: guaranteed}, limit=most, group=group, weight=weight)


def group(name: str, guaranteed: int = 0, *, limit: int | None = None, within: str = "") -> Quota:
    most = {} if limit is None else {ALL: limit}
    return Quota(name=name, guaranteed={ALL: guaranteed}, limit=most, group=within, is_group=True)


def held(tenant: str, gpus: int, since: float = 0.0, *, preemptible: bool = True, model: str = "") -> TenantHolds:
    amounts = {ALL: gpus, model: gpus} if model else {ALL: gpus}
    return TenantHolds(tenant, amounts, since, preemptible)


def test_a_job_fits_inside_its_guarantee_then_inside_that_of_its_group_then_by_borrowing() -> None:
    ledger = Ledger([group("lab", 6), quota("vision", 2, group="lab"), quota("speech", 2, group="lab")])
    assert ledger.fit("vision", {ALL: 2}).level == 0
    assert ledger.fit("vision", {ALL: 3}).level == 1
    assert ledger.fit("vision", {ALL: 7}).level is None
    ledger.hold("j-1", held("speech", 4))
    assert ledger.fit("vision", {ALL: 2}).level == 0
    assert ledger.fit("vision", {ALL: 3}).level is None


def test_a_job_that_cannot_give_back_starts_inside_its_own_guarantee_only() -> None:
    own, of_group, borrows = QuotaFit(0), QuotaFit(1), QuotaFit(None)
    assert [may_start(fit, preemptible=False) for fit in (own, of_group, borrows)] == [True, False, False]
    assert [may_start(fit, preemptible=True) for fit in (own, of_group, borrows)] == [True, True, True]


def test_a_tenant_is_due_its_guarantee_and_its_part_of_what_no_guarantee_takes() -> None:
    tree = Ledger([quota("vision", 4), quota("speech", 0, weight=2)]).tree
    assert due_of(tree, ["vision", "speech"], 10.0) == {"vision": 6.0, "speech": 4.0}
    assert due_of(tree, ["vision", "speech"], 4.0) == {"vision": 4.0, "speech": 1.0}, "a weight is never nothing"


def test_a_limit_of_any_group_above_holds_a_job_back_and_says_which() -> None:
    ledger = Ledger([group("lab", 0, limit=4), quota("vision", 0, group="lab"), quota("speech", 0, group="lab")])
    ledger.hold("j-1", held("speech", 3))
    over = ledger.fit("vision", {ALL: 2}).over
    assert over is not None
    assert (over.branch.name, over.held, over.most) == ("lab", 3, 4)
    assert ledger.fit("vision", {ALL: 1}).over is None


def test_a_job_without_gpus_is_held_back_by_no_limit_even_one_that_is_exceeded_already() -> None:
    ledger = Ledger([quota("vision", 0, limit=2)])
    ledger.hold("j-1", held("vision", 5))
    assert ledger.fit("vision", {ALL: 0}).over is None


def test_a_guarantee_of_one_model_is_of_no_other() -> None:
    ledger = Ledger([Quota(name="vision", guaranteed={"H100": 4})])
    assert ledger.fit("vision", {ALL: 4, "H100": 4}).level == 0
    assert ledger.fit("vision", {ALL: 1, "A100": 1}).level is None
    some = Ledger([Quota(name="vision", guaranteed={ALL: 8, "H100": 4})])
    assert some.fit("vision", {ALL: 8, "A100": 8}).level == 0
    assert some.fit("vision", {ALL: 5, "H100": 5}).level is None


def test_a_tenant_without_a_quota_borrows_all_it_holds_and_has_no_limit() -> None:
    ledger = Ledger([quota("vision", 4)])
    ledger.hold("j-1", held("guest", 9))
    fit = ledger.fit("guest", {ALL: 100})
    assert fit.over is None
    assert fit.level is None
    assert ledger.owned(ledger.tree.path("guest")[0]) == frozenset()


def test_the_share_is_what_is_borrowed_by_weight_and_infinite_for_a_weight_of_nothing() -> None:
    ledger = Ledger([quota("vision", 2, weight=2), quota("speech", 0, weight=0)])
    ledger.hold("j-1", held("vision", 6))
    assert ledger.share("vision", {ALL: 16}) == Fraction(125)
    assert ledger.share("speech", {ALL: 16}) == 0
    assert ledger.share("speech", {ALL: 16}, {ALL: 1}) == inf


def test_a_gang_larger_than_the_guarantee_is_borrowed_as_a_whole_and_a_lender_gets_its_part_back() -> None:
    ledger = Ledger([quota("vision", 4), quota("speech", 1)])
    ledger.hold("j-1", held("speech", 8))
    assert may_reclaim(ledger, "vision", 0, "j-1", now=9.0, runtime_s=0.0)


def test_what_is_owned_is_taken_neither_by_reclaim_nor_by_a_more_important_job_of_another_tenant() -> None:
    ledger = Ledger([quota("vision", 4), quota("speech", 4)])
    ledger.hold("j-1", held("speech", 4))
    assert not may_reclaim(ledger, "vision", 0, "j-1", now=9.0, runtime_s=0.0)
    holder = Holder(job_id="j-1", worth=(), allocations=())
    assert protected(ledger, "vision", holder)
    assert not protected(ledger, "speech", holder)


def test_a_job_that_owns_what_it_cannot_do_without_is_not_stopped_but_gives_back_what_it_borrows() -> None:
    """Else it would start again at once in the place of the job that it was stopped for, and so on for ever."""
    ledger = Ledger([quota("vision", 4), quota("speech", 2)])
    ledger.hold("j-1", TenantHolds("speech", {ALL: 3}, 0.0, True, core={ALL: 2}))
    whole = Holder(job_id="j-1", worth=(), allocations=())
    assert protected(ledger, "guest", whole)
    assert not protected(ledger, "guest", replace(whole, extra=True))
    assert may_reclaim(ledger, "vision", 0, "j-1", now=9.0, runtime_s=0.0), "what it has beyond its core"
    ledger.hold("j-2", held("speech", 1, 1.0))
    assert not protected(ledger, "guest", whole), "it would not come first once it was stopped"


def test_what_a_member_owns_counts_before_what_others_of_its_group_borrow_of_each_other() -> None:
    ledger = Ledger([group("lab", 4), quota("vision", 2, group="lab"), quota("speech", 2, group="lab")])
    ledger.hold("j-1", held("speech", 4, 0.0))
    ledger.hold("j-2", TenantHolds("vision", {ALL: 3}, 1.0, True, core={ALL: 2}))
    lab = ledger.tree.path("vision")[1]
    assert ledger.owned(lab, core=True) == {"j-2"}, "the lab owns no more than it is guaranteed"


def test_a_borrower_keeps_its_gpus_for_the_guaranteed_time_and_for_ever_if_it_cannot_be_stopped() -> None:
    ledger = Ledger([quota("vision", 4)])
    ledger.hold("j-1", held("speech", 4, 100.0))
    ledger.hold("j-2", held("speech", 4, 100.0, preemptible=False))
    assert not may_reclaim(ledger, "vision", 0, "j-1", now=159.0, runtime_s=60.0)
    assert may_reclaim(ledger, "vision", 0, "j-1", now=160.0, runtime_s=60.0)
    assert not may_reclaim(ledger, "vision", 0, "j-2", now=160.0, runtime_s=60.0)


def test_first_goes_what_leaves_its_tenant_its_guarantee_then_a_gang_that_is_partly_its_own() -> None:
    ledger = Ledger([quota("vision", 4), quota("speech", 4)])
    ledger.hold("j-1", held("speech", 6, 1.0))
    ledger.hold("j-2", held("speech", 2, 2.0))
    assert ledger.owned(ledger.tree.path("speech")[0]) == {"j-2"}
    ledger.hold("j-3", held("guest", 2, 3.0))
    parts = [
        Returnable(Holder(job_id=job_id, worth=(float(at),), allocations=()), ledger.jobs[job_id].amounts)
        for at, job_id in enumerate(("j-1", "j-3"))
    ]
    assert [holder.worth[0] for holder in in_turn(ledger, "vision", parts)] == [1.0, 0.0]


def test_a_claim_counts_for_all_but_its_own_job() -> None:
    ledger = Ledger([quota("vision", 4)])
    ledger.claim("j-1", held("vision", 4))
    assert ledger.fit("vision", {ALL: 4}).level is None
    assert ledger.fit("vision", {ALL: 4}, job_id="j-1").level == 0
    ledger.hold("j-1", held("vision", 4))
    assert ledger.use(ledger.tree.path("vision")[0]) == 4


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (Quota(name="vision", guaranteed={ALL: 5}, limit={ALL: 4}), "limit"),
        (Quota(name="vision", group="nobody"), "group"),
        (Quota(name="vision", group="tenant"), "group"),
        (Quota(name="lab", group="lab", is_group=True), "group"),
        (Quota(name="lab", group="part", is_group=True), "group"),
        (Quota(name="lab"), "is_group"),
    ],
)
def test_a_quota_that_cannot_be_is_refused_with_its_field(wanted: Quota, field: str) -> None:
    others = {"lab": group("lab"), "part": group("part", within="lab"), "tenant": quota("tenant")}
    fault = fault_of(wanted, others)
    assert fault is not None
    assert fault[0] == field


def test_groups_are_nested_only_so_deep() -> None:
    others: dict[str, Quota] = {}
    for depth in range(DEPTH_MAX):
        one = group(f"g{depth}", within=f"g{depth - 1}" if depth else "")
        assert fault_of(one, others) is None
        others[one.name] = one
    assert fault_of(quota("vision", group=f"g{DEPTH_MAX - 1}"), others) is None
    deeper = fault_of(group("deeper", within=f"g{DEPTH_MAX - 1}"), others)
    assert deeper is None, "as deep as a tenant may be"
    others["deeper"] = group("deeper", within=f"g{DEPTH_MAX - 1}")
    assert fault_of(quota("vision", group="deeper"), others) is not None


def test_groups_in_a_circle_bound_nothing_and_end() -> None:
    circle = [group("a", 4, within="b"), group("b", 4, within="a"), quota("vision", 2, group="a")]
    assert [branch.name for branch in Ledger(circle).tree.path("vision")] == ["vision"]


# random trees


class Wish(Struct, frozen=True):
    id: str
    tenant: str
    gpus: int
    priority: int
    preemptible: bool


class World:
    """A pool of equal GPUs, in which a job that is told to stop is gone after one period of grace."""

    def __init__(self, rng: Random) -> None:
        quotas: list[Quota] = []
        groups = rng.randrange(3)
        for number in range(groups):
            within = f"g{rng.randrange(number)}" if number and rng.random() < 0.5 else ""
            quotas.append(group(f"g{number}", rng.randrange(5), within=within))
        tenants = rng.randrange(2, 5)
        for number in range(tenants):
            within = f"g{rng.randrange(groups)}" if groups and rng.random() < 0.7 else ""
            least = rng.randrange(5)
            limit = least + rng.randrange(6) if rng.random() < 0.3 else None
            if rng.random() < 0.85:
                quotas.append(quota(f"t{number}", least, limit=limit, group=within))
        self.ledger = Ledger(quotas)
        top = {self.ledger.tree.path(f"t{number}")[-1].key: number for number in range(tenants)}
        promised = sum(self.ledger.tree.path(f"t{number}")[-1].guarantee(ALL) for number in top.values())
        self.free = promised + rng.randrange(4)
        self.waiting = [
            Wish(f"j-{number}", f"t{rng.randrange(tenants)}", rng.randrange(1, 7), rng.randrange(3), rng.random() < 0.9)
            for number in range(rng.randrange(3, 10))
        ]
        self.later = self.waiting[len(self.waiting) // 2 :]  # they come when the others hold the GPUs
        del self.waiting[len(self.waiting) // 2 :]
        self.running: dict[str, Wish] = {}
        self.stopping: list[Wish] = []
        self.evictions = 0
        self.now = 0.0
        self.owed: set[str] = set()  # jobs inside their tenant's guarantee that waited at the end of the last step

    def inside(self, job: Wish) -> int | None:
        return self.ledger.fit(job.tenant, {ALL: job.gpus}, job_id=job.id).level

    def step(self) -> bool:
        """One period of grace: whether anything happened."""
        before = len(self.running), self.evictions, len(self.stopping)
        for gone in self.stopping:
            self.ledger.let_go(gone.id)
            self.free += gone.gpus
            self.waiting.append(gone)
        self.stopping = []
        self.now += 1.0
        owed: set[str] = set()
        coming = 0  # of what stops, minus what is claimed
        claims = self.ledger.claims
        levels = {job.id: self.inside(job) for job in self.waiting}
        order = sorted(
            self.waiting,
            key=lambda job: (
                DEPTH_MAX if levels[job.id] is None else levels[job.id],
                job.id not in claims,
                -job.priority,
                job.id,
            ),
        )
        for job in order:
            fit = self.ledger.fit(job.tenant, {ALL: job.gpus}, job_id=job.id)
            if fit.over is not None or (not job.preemptible and fit.level != 0):
                continue
            if job.gpus <= self.free + min(0, coming):
                self._start(job)
            elif fit.inside:
                assert job.id not in self.owed, f"{job} waits inside its guarantee for longer than one grace"
                if fit.level == 0:
                    owed.add(job.id)
                self.ledger.unclaim(job.id)
                missing = job.gpus - self.free - coming
                freed = self._reclaim(job, fit.level, missing) if missing > 0 else 0
                if freed >= missing:
                    coming += freed - job.gpus
                    self.ledger.claim(job.id, TenantHolds(job.tenant, {ALL: job.gpus}, self.now, job.preemptible))
        self.owed = owed
        return before != (len(self.running), self.evictions, len(self.stopping))

    def _start(self, job: Wish) -> None:
        self.waiting.remove(job)
        self.running[job.id] = job
        self.free -= job.gpus
        self.ledger.hold(job.id, TenantHolds(job.tenant, {ALL: job.gpus}, self.now, job.preemptible))

    def _reclaim(self, job: Wish, level: int | None, missing: int) -> int:
        parts = [
            Returnable(
                Holder(job_id=one.id, worth=(one.priority, -self.ledger.jobs[one.id].since), allocations=()), one_held
            )
            for one in self.running.values()
            if may_reclaim(self.ledger, job.tenant, level, one.id, now=self.now, runtime_s=0.0)
            and (one_held := self.ledger.jobs[one.id].amounts)
        ]
        willing = sorted(
            in_turn(self.ledger, job.tenant, parts, leaving=[one.id for one in self.stopping]),
            key=lambda holder: (holder.worth, holder.job_id),
        )
        victims: list[Wish] = []
        for holder in willing:
            if sum(one.gpus for one in victims) < missing:
                victims.append(self.running[holder.job_id])
        freed = sum(one.gpus for one in victims)
        if freed < missing:
            return 0
        for one in reversed(victims):
            if freed - one.gpus >= missing:
                victims.remove(one)
                freed -= one.gpus
        for one in victims:
            own = self.ledger.owned(self.ledger.tree.path(one.tenant)[0])
            assert one.id not in own, "what a tenant owns is never taken"
            del self.running[one.id]
            self.stopping.append(one)
            self.evictions += 1
        return freed


def test_no_evictions_go_in_circles_and_every_lender_is_whole_after_one_grace_in_10_000_random_trees() -> None:
    evictions = 0
    for seed in range(TREES):
        world = World(Random(seed))
        for _ in range(30):
            if not world.step():
                break
        else:
            raise AssertionError(f"seed {seed}: no end")
        world.waiting += world.later  # the lenders' jobs come
        for _ in range(60):
            if not world.step():
                break
        else:
            raise AssertionError(f"seed {seed}: evictions without an end")
        assert world.evictions <= 4 * (len(world.running) + len(world.waiting)), f"seed {seed}"
        evictions += world.evictions
    assert evictions > TREES / 10, "the trees are worth nothing if hardly anything is evicted in them"
