"""What the reallocator makes of the messages of routers and nodes: which asks for services, and when none."""

from itertools import pairwise
from random import Random

from msgspec import structs

from tests.support.served import bucket
from tests.support.service_loads import seen, served, service_job, told
from weft.domain.job import CauseCode, Job, JobState
from weft.messages.signals import GpuScore
from weftd.reallocator.thinking.routed import GONE_SECONDS, ROUTERS_MAX, SILENT_SECONDS, Routed
from weftd.reallocator.thinking.serving import PENDING_SECONDS, ServiceScaler, goal_of

NOW = 10_000.0


class World:
    """One service with one router; the scheduler does each ask at once, and its replicas are ready at once."""

    def __init__(self, job: Job, *, policy: str = "weft") -> None:
        self.job, self.now, self.seq = job, NOW, 0
        self.scaler = ServiceScaler(policy=policy)
        self.totals = served(job.id)
        self.services: dict[int, int] = {}
        self.asked: list[tuple[float, int]] = []
        self.shared: list[int | None] = []
        self.obeys = True
        self.scaler.learn([job], now=self.now)

    def second(
        self,
        arrived: int = 0,
        *,
        took: float = 0.1,
        heard: bool = True,
        queued: int = 0,
        late: int = 0,
        refused: int = 0,
    ) -> None:
        self.now += 1.0
        self.seq += 1
        if arrived:
            self.services[bucket(took)] = self.services.get(bucket(took), 0) + arrived
        self.totals = structs.replace(
            self.totals,
            arrived=self.totals.arrived + arrived,
            answered=self.totals.answered + arrived,
            late=self.totals.late + late,
            refused=self.totals.refused + refused,
            queued=queued,
            oldest_wait=0.5 if queued else 0.0,
            services=dict(self.services),
            totals=dict(self.services),
        )
        if heard:
            self.scaler.hear_served(told(self.totals, seq=self.seq, at=self.now), now=self.now)
        for one in seen(self.job, seq=self.seq, at=self.now):
            self.scaler.hear_endpoints(one, now=self.now)
        self.scaler.learn([self.job], now=self.now)
        decided = self.scaler.decide(self.now)
        if decided.sizes:
            (scale,) = decided.sizes.values()
            assert scale.instead_of == self.job.wanted
            assert scale.cause is not None
            assert scale.cause.code is CauseCode.LOAD
            (wanted,) = scale.size.values()
            self.asked.append((self.now, wanted))
            self.scaler.asked(decided.sizes, list(decided.sizes), now=self.now)
            if self.obeys:
                fresh = service_job(self.job.id, replicas=wanted)
                self.job = structs.replace(
                    self.job, version=self.job.version + 1, size=fresh.size, placement=fresh.placement
                )
        self.shared += [share.request for share in decided.shares.values()]


def test_the_goal_of_a_service_is_what_its_specification_says() -> None:
    goal = goal_of(service_job(least=1, most=5, share=(0.25, 0.75), service={"concurrency": 7}))
    assert (goal.least, goal.most, goal.concurrency) == (1, 5, 7)
    assert (goal.latency, goal.percentile, goal.rate) == (1.0, 99.0, 10.0)
    assert (goal.share, goal.share_most) == (250, 750)


def test_a_request_that_waits_for_a_service_at_zero_wakes_it_in_the_same_decision() -> None:
    job = service_job(replicas=0)
    scaler = ServiceScaler()
    scaler.learn([job], now=NOW)
    assert scaler.hear_served(told(served(arrived=1, queued=1), seq=1), now=NOW + 0.1)
    decided = scaler.decide(NOW + 0.1)
    assert {job_id: scale.size for job_id, scale in decided.sizes.items()} == {"j-1": {"worker": 1}}


def test_a_service_that_was_asked_for_does_not_wake_the_loop_with_every_message() -> None:
    job = service_job(replicas=0)
    scaler = ServiceScaler()
    scaler.learn([job], now=NOW)
    scaler.hear_served(told(served(arrived=1, queued=1), seq=1), now=NOW)
    decided = scaler.decide(NOW)
    scaler.asked(decided.sizes, ["j-1"], now=NOW)
    assert not scaler.hear_served(told(served(arrived=2, queued=2), seq=2), now=NOW + 0.5)
    assert scaler.decide(NOW + 0.5).sizes == {}, "one ask at a time"


def test_a_hundred_services_wake_in_one_decision() -> None:
    jobs = [service_job(f"j-{number}", replicas=0, seq=number) for number in range(100)]
    scaler = ServiceScaler()
    scaler.learn(jobs, now=NOW)
    scaler.hear_served(told(*(served(job.id, arrived=1, queued=1) for job in jobs), seq=1), now=NOW)
    assert set(scaler.decide(NOW).sizes) == {job.id for job in jobs}


def test_an_ask_is_made_again_only_when_it_was_not_done_in_time() -> None:
    world = World(service_job(replicas=0))
    world.obeys = False
    for _ in range(20):
        world.second(1, queued=1)
    times = [when for when, _ in world.asked]
    assert len(times) >= 3
    assert all(late - early >= PENDING_SECONDS for early, late in pairwise(times))


def test_a_silent_router_makes_nothing_shrink_and_nothing_does_until_a_window_after() -> None:
    world = World(service_job(replicas=4))
    for _ in range(30):
        world.second(5)
    for _ in range(200):
        world.second(5, heard=False)
    assert world.asked == []
    for _ in range(50):
        world.second(5)
    assert world.asked == []
    for _ in range(100):
        world.second(5)
    assert world.asked, "the control: with a router it shrinks"


def test_without_traffic_a_router_that_reports_is_enough_for_a_service_to_go_to_zero() -> None:
    world = World(service_job(replicas=2))
    for _ in range(60):
        world.second(2)
    for _ in range(700):
        world.second(0)
    assert world.job.wanted == {"worker": 0}
    assert world.asked[-1][0] - NOW >= 60 + 60


def test_a_reallocator_that_was_started_again_leaves_a_service_as_it_is_for_a_window() -> None:
    world = World(service_job(replicas=4))
    for _ in range(55):
        world.second(1)
    assert world.asked == []
    for _ in range(60):
        world.second(1)
    assert world.asked


def test_a_router_that_begins_again_and_lost_messages_lose_no_request() -> None:
    routed = Routed()
    routed.hear(told(served(arrived=10, services={3: 10}), seq=1), now=NOW)
    routed.hear(told(served(arrived=30, services={3: 30}), seq=7), now=NOW + 1)
    assert routed.of("j-1", now=NOW + 1).arrived == 30, "the messages between were lost"
    routed.hear(told(served(arrived=5, services={3: 2, 4: 3}), seq=1, boot="b"), now=NOW + 2)
    routed.hear(told(served(arrived=100, queued=2), seq=1, router="router-2"), now=NOW + 2)
    total = routed.of("j-1", now=NOW + 2)
    assert (total.arrived, total.services, total.queued) == (135, {3: 32, 4: 3}, 2)


def test_a_message_that_comes_late_changes_nothing() -> None:
    routed = Routed()
    routed.hear(told(served(arrived=30), seq=7), now=NOW)
    assert routed.hear(told(served(arrived=10, queued=1), seq=6), now=NOW) == ()
    assert routed.of("j-1", now=NOW).arrived == 30


def test_what_waits_at_a_router_that_is_silent_is_not_counted_and_its_totals_are_kept_when_it_is_gone() -> None:
    routed = Routed()
    routed.hear(told(served(arrived=30, queued=4), seq=7), now=NOW)
    assert not routed.silent(now=NOW + SILENT_SECONDS)
    later = NOW + SILENT_SECONDS + 0.1
    assert routed.silent(now=later)
    assert routed.of("j-1", now=later).queued == 0
    gone = NOW + GONE_SECONDS + 1
    routed.hear(told(served(arrived=1), seq=1, router="router-2"), now=gone)
    routed.keep_only(["j-1"], now=gone)
    assert not routed.silent(now=gone), "it is no longer waited for"
    assert routed.of("j-1", now=gone).arrived == 31


def test_totals_never_fall_whatever_routers_come_begin_again_and_go() -> None:
    random = Random(3)
    routed, now, last, true = Routed(), NOW, 0, 0
    routers = {f"router-{number}": ("a", 0, 0) for number in range(4)}
    for step in range(2000):
        now += random.random()
        name = random.choice(sorted(routers))
        boot, seq, count = routers[name]
        if random.random() < 0.05:
            boot, seq, count = f"boot-{step}", 0, 0
        more = random.randrange(5)
        routers[name], true = (boot, seq + 1, count + more), true + more
        routed.hear(told(served(arrived=count + more), seq=seq + 1, boot=boot, router=name), now=now)
        routed.keep_only(["j-1"], now=now)
        total = routed.of("j-1", now=now).arrived
        assert total >= last
        last = total
    assert last == true


def test_routers_and_services_that_do_not_exist_do_not_grow_what_is_kept() -> None:
    routed = Routed()
    for number in range(2 * ROUTERS_MAX):
        routed.hear(told(served(f"j-{number}", arrived=1), seq=1, router=f"router-{number}"), now=NOW + number / 1000)
        routed.keep_only([], now=NOW + 1)
    assert len(routed._routers) <= ROUTERS_MAX
    assert routed._past == {}


def test_the_size_that_a_user_gave_in_the_same_second_is_not_undone() -> None:
    job = service_job(replicas=0)
    scaler = ServiceScaler()
    scaler.learn([job], now=NOW)
    scaler.hear_served(told(served(arrived=1, queued=1), seq=1), now=NOW)
    (scale,) = scaler.decide(NOW).sizes.values()
    assert scale.instead_of == {"worker": 0}


def test_more_load_gets_a_larger_share_first_and_replicas_only_when_that_is_not_enough() -> None:
    job = service_job(replicas=1, least=1, share=(0.2, 1.0), objective={"latency": "1s", "percentile": 95, "rate": 5})
    scaler = ServiceScaler()
    shares: list[tuple[float, int]] = []
    services: dict[int, int] = {}
    arrived, request, now = 0, 200, NOW
    sizes = []
    for second in range(400):
        now += 1.0
        rate = 2 if second < 200 else 20
        arrived += rate
        place = bucket(0.02 / (request / 1000))
        services[place] = services.get(place, 0) + rate
        job = service_job(
            replicas=1,
            least=1,
            share=(0.2, 1.0),
            has_share=request,
            objective={"latency": "1s", "percentile": 95, "rate": 5},
        )
        scaler.hear_served(
            told(served(arrived=arrived, answered=arrived, services=dict(services), totals=dict(services)), seq=second),
            now=now,
        )
        for one in seen(job, seq=second, at=now):
            scaler.hear_endpoints(one, now=now)
        scaler.learn([job], now=now)
        decided = scaler.decide(now)
        sizes += list(decided.sizes.values())
        for share in decided.shares.values():
            assert share.request is not None
            assert (share.instead_of, share.role, share.epoch) == (request, "worker", 0)
            request = share.request
            shares.append((now, request))
    assert shares
    assert shares[0][0] - NOW <= 202
    assert request < 1000
    assert sizes == []


def test_replicas_that_only_start_are_told_as_not_ready_and_scores_are_those_of_their_gpus() -> None:
    job = service_job(replicas=2)
    scaler = ServiceScaler()
    scores = [GpuScore(node_id="node-2", gpu_index=0, job_class="compute", score=1.5)]
    scaler.learn([job], now=NOW, scores=scores)
    first, second = seen(job, seq=1, at=5.0)
    scaler.hear_endpoints(first, now=NOW)
    scaler.hear_endpoints(structs.replace(second, endpoints=()), now=NOW)
    (service,) = scaler._services.values()
    one, two = scaler._load(service, NOW, False).replicas
    assert (one.ready, one.score, one.started_at, one.ready_at) == (True, 1.0, NOW - 100, NOW - 80)
    assert (two.ready, two.score, two.started_at) == (False, 1.5, NOW)


def test_a_service_that_stops_or_that_is_no_service_gets_no_ask() -> None:
    scaler = ServiceScaler()
    stopping = structs.replace(service_job(replicas=0), state=JobState.STOPPING)
    scaler.learn([stopping], now=NOW)
    scaler.hear_served(told(served(arrived=1, queued=1), seq=1), now=NOW)
    assert scaler.decide(NOW).sizes == {}


def test_findings_say_what_cannot_be_kept_and_what_is_refused_with_numbers() -> None:
    world = World(service_job(replicas=2, most=2))
    for _ in range(30):
        world.second(40, took=0.2, queued=50, late=20, refused=10)
    codes = {one.code: one.sentence for one in world.scaler.findings(world.now)}
    assert codes["unattainable"].startswith("train cannot keep its objective: ")
    assert codes["unattainable"].endswith(" requests/s; its maximum of 2 replicas can serve 7.49/s")
    assert codes["shedding"].startswith("train refuses requests: 100 in the last 10 s")


def test_hostile_counts_change_nothing_but_their_own_service() -> None:
    world = World(service_job(replicas=1, most=4))
    huge = 2**53 - 1
    evil = served("j-1", arrived=huge, late=huge, refused=huge, queued=huge, oldest_wait=1e300, services={127: huge})
    world.scaler.hear_served(told(evil, seq=10), now=NOW)
    for second in range(5):
        decided = world.scaler.decide(NOW + second)
        assert all(scale.size["worker"] <= 4 for scale in decided.sizes.values())
    world.scaler.hear_served(told(served("j-1", arrived=0), seq=11), now=NOW + 6)
    assert world.scaler.decide(NOW + 6) is not None


def test_the_quick_rules_run_in_its_place() -> None:
    world = World(service_job(replicas=1, least=1), policy="weft-quick")
    for _ in range(90):
        world.second(3)
    assert world.job.wanted["worker"] >= 1
