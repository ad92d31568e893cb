"""What the turns of the arbiter come to: the core with modelled processes and a modelled GPU, in virtual time."""

import pytest

from tests.support.sharing import SECOND, Node, Process
from weftd.arbiter.thinking.core import Arbiter
from weftd.arbiter.thinking.slot import Terms
from weftd.arbiter.thinking.turns import Grant

TWO_POINTS = 0.02


@pytest.mark.parametrize("parts", [(100, 900), (300, 700), (500, 500), (200, 300, 500), (1, 999), (50,) * 16])
@pytest.mark.parametrize("kernel", [200, 1_000])
def test_saturated_slots_have_what_is_due_in_every_second(parts: tuple[int, ...], kernel: int) -> None:
    node = Node(seed=1)
    for number, part in enumerate(parts):
        node.serve(f"s{number}", part)
        Process(node, f"s{number}", kernel=kernel)
    node.run(6 * SECOND)
    for number, part in enumerate(parts):
        due = part / sum(parts)
        shares = list(node.shares(f"s{number}", SECOND, 6 * SECOND))
        assert all(abs(share - due) <= TWO_POINTS for share in shares), (number, min(shares), max(shares))
    total = sum(node.used(f"s{number}", SECOND, 6 * SECOND) for number in range(len(parts))) / (5 * SECOND)
    assert total >= 0.97


@pytest.mark.parametrize(("share", "limit"), [(300, 300), (100, 500), (50, 50), (700, 900)])
def test_a_limit_holds_in_every_second_and_nothing_stalls(share: int, limit: int) -> None:
    node = Node(seed=2)
    node.serve("a", share, limit=limit)
    Process(node, "a")
    node.run(5 * SECOND)
    shares = list(node.shares("a", SECOND, 5 * SECOND))
    assert max(shares) <= limit / 1000 + TWO_POINTS
    assert min(shares) >= limit / 1000 - 0.03
    assert node.longest_pause("a", SECOND, 5 * SECOND) <= 100_000


def test_a_slot_at_its_limit_is_owed_nothing_when_the_limit_is_raised() -> None:
    node = Node(seed=2)
    node.serve("a", 500, limit=500)
    node.serve("b", 500)
    node.serve("c", 900, limit=900)
    node.serve("low", 900, limit=100)
    for name in "abc":
        Process(node, name)
    Process(node, "low")
    node.run(4 * SECOND)
    node.serve("low", 900)
    node.run(6 * SECOND)
    assert node.used("low", 4 * SECOND, 4 * SECOND + SECOND // 10) <= 60_000


def test_what_an_idle_owner_leaves_is_used_and_back_within_one_quantum() -> None:
    node = Node(seed=3)
    node.serve("owner", 700)
    node.serve("other", 300)
    Process(node, "other")
    owner = Process(node, "owner", burst=40, every=250_000)
    node.run(5 * SECOND)
    left = 1 - node.used("owner", SECOND, 5 * SECOND) / (4 * SECOND)
    assert node.used("owner", SECOND, 5 * SECOND) >= 0.99 * 4 * 160_000
    assert node.used("other", SECOND, 5 * SECOND) >= 0.9 * left * 4 * SECOND
    assert max(owner.waits[4:]) <= 20_000


def test_a_latency_slot_waits_for_what_is_in_flight_only() -> None:
    node = Node(seed=4)
    node.serve("training", 700)
    node.serve("inference", 300, latency=True)
    Process(node, "training")
    inference = Process(node, "inference", kernel=5_000, burst=1, every=50_000)
    node.run(20 * SECOND)
    delays = sorted(inference.delays)
    assert len(delays) > 350
    assert delays[int(len(delays) * 0.99)] <= 1.6 * 5_000
    left = 1 - node.used("inference", 0, 20 * SECOND) / (20 * SECOND)
    assert node.used("training", 0, 20 * SECOND) >= 0.85 * left * 20 * SECOND


def test_a_latency_slot_that_never_ends_has_its_request_and_no_more() -> None:
    node = Node(seed=5)
    node.serve("training", 700)
    node.serve("greedy", 300, latency=True)
    Process(node, "training")
    Process(node, "greedy")
    node.run(6 * SECOND)
    assert all(abs(share - 0.3) <= TWO_POINTS for share in node.shares("greedy", SECOND, 6 * SECOND))


def test_a_turn_that_is_not_returned_is_taken_away_and_paid_for() -> None:
    node = Node(seed=6)
    node.serve("stuck", 500)
    node.serve("other", 500)
    stuck, _ = Process(node, "stuck"), Process(node, "other")
    node.run(2 * SECOND)
    stuck.deaf = True  # as a process that is stopped
    node.run(5 * SECOND)
    slot = node.core.slot("stuck")
    assert slot is not None
    assert slot.overruns == 1
    assert node.longest_pause("other", 2 * SECOND, 5 * SECOND) <= 1_100_000
    assert node.used("other", 3_300_000, 5 * SECOND) >= 0.97 * 1_700_000


def test_the_turn_of_a_killed_process_is_free_at_once() -> None:
    node = Node(seed=7)
    node.serve("killed", 500)
    node.serve("other", 500)
    Process(node, "other")
    for _ in range(100):
        victim = Process(node, "killed")
        node.run(node.now + 33_000)
        node.kill(victim)
    node.run(node.now + SECOND)
    assert node.longest_pause("other", 0, node.now) <= 50_000


def test_a_changed_request_takes_effect_within_one_quantum() -> None:
    node = Node(seed=8)
    node.serve("a", 700)
    node.serve("b", 300)
    Process(node, "a")
    Process(node, "b")
    node.run(2 * SECOND)
    node.serve("a", 200)
    node.serve("b", 800)
    node.run(4 * SECOND)
    assert abs(node.used("a", 2_050_000, 3_050_000) / SECOND - 0.2) <= TWO_POINTS


def test_a_hold_ends_the_turn_and_its_end_gives_it_back() -> None:
    node = Node(seed=9)
    node.serve("a", 1000)
    Process(node, "a")
    node.run(SECOND)
    node.serve("a", 1000, hold=True)
    node.run(2 * SECOND)
    assert node.used("a", SECOND + 10_000, 2 * SECOND) == 0
    node.serve("a", 1000)
    node.run(3 * SECOND)
    assert node.used("a", 2 * SECOND, 3 * SECOND) >= 980_000


def test_a_slot_is_owed_nothing_for_the_time_it_was_on_hold() -> None:
    node = Node(seed=9)
    node.serve("a", 500)
    node.serve("held", 500)
    a, _ = Process(node, "a"), Process(node, "held")
    node.run(SECOND)
    node.serve("held", 500, hold=True)
    node.run(3 * SECOND)
    node.serve("held", 500)
    node.run(4 * SECOND)
    assert abs(node.used("a", 3 * SECOND, 4 * SECOND) / SECOND - 0.5) <= TWO_POINTS
    assert max(a.waits) <= 50_000


def test_three_hundred_processes_of_a_gpu_all_have_turns() -> None:
    node = Node(seed=10)
    processes: list[Process] = []
    for number in range(6):
        node.serve(f"s{number}", 166)
        processes += [Process(node, f"s{number}", burst=1, every=2 * SECOND) for _ in range(50)]
    node.run(3 * SECOND)
    assert all(process.delays for process in processes)
    assert max(process.delays[0] for process in processes) <= SECOND


def test_the_first_short_launch_of_a_process_waits_for_no_other_process() -> None:
    node = Node(seed=10)
    processes: list[Process] = []
    for number in range(6):
        node.serve(f"s{number}", 166)
        processes += [Process(node, f"s{number}", kernel=100, burst=1, every=20 * SECOND) for _ in range(50)]
    node.run(3 * SECOND)
    assert max(process.delays[0] for process in processes) <= 300 * 100 + 5_000
    assert max(process.waits[0] for process in processes) <= 1_000


def test_a_slot_that_connects_again_and_again_has_few_first_turns() -> None:
    node = Node(seed=10)
    node.serve("sly", 100)
    node.serve("other", 900)
    Process(node, "other")
    for _ in range(1_000):
        sly = Process(node, "sly", kernel=400)
        node.run(node.now + 2_000)
        node.kill(sly)
    assert node.used("sly", 0, node.now) <= 0.2 * node.now


def test_requests_beyond_the_gpu_are_cut_alike() -> None:
    node = Node(seed=11)
    for name in ("a", "b", "c"):
        node.serve(name, 800)
        Process(node, name)
    node.run(4 * SECOND)
    for name in ("a", "b", "c"):
        assert all(abs(share - 1 / 3) <= TWO_POINTS for share in node.shares(name, SECOND, 4 * SECOND))


def test_a_tiny_request_among_long_kernels_is_never_starved() -> None:
    node = Node(seed=12)
    node.serve("tiny", 1)
    node.serve("long", 999)
    tiny, _ = Process(node, "tiny", kernel=100_000), Process(node, "long", kernel=80_000)
    node.run(20 * SECOND)
    assert len(tiny.waits) >= 10
    assert max(tiny.waits) <= 1_300_000


def test_a_process_that_says_it_used_nothing_has_no_more_than_two_parts_in_three() -> None:
    node = Node(seed=13)
    node.serve("liar", 500)
    node.serve("honest", 500)
    liar, _ = Process(node, "liar"), Process(node, "honest")
    returned = node.core.returned

    def lie(client: int, turn: int, us: int, in_flight: int, now: int) -> None:
        mine = client == liar.client
        returned(client, turn, 0 if mine else us, 60_000_000 if mine else in_flight, now)
        if mine:
            node.core.charge(client, -60_000_000, now)

    node.core.returned = lie  # type: ignore[method-assign]
    node.run(4 * SECOND)
    assert node.used("honest", SECOND, 4 * SECOND) >= 0.3 * 3 * SECOND


def test_what_is_borrowed_is_lent_by_another() -> None:
    node = Node(seed=14)
    node.serve("owner", 700)
    node.serve("other", 300)
    Process(node, "other")
    Process(node, "owner", burst=10, every=100_000)
    for second in range(1, 5):
        node.run(second * SECOND)
        node.core.account(node.now)
    owner, other = node.core.slot("owner"), node.core.slot("other")
    assert owner is not None
    assert other is not None
    assert other.borrowed_us == pytest.approx(0.59 * 4 * SECOND, rel=0.1)
    assert owner.lent_us == pytest.approx(other.borrowed_us, rel=0.05)
    assert owner.borrowed_us == other.lent_us == 0


def test_a_slot_that_was_idle_is_owed_nothing_for_that_time() -> None:
    node = Node(seed=21)
    node.serve("busy", 500)
    node.serve("late", 500)
    Process(node, "busy")
    node.run(3 * SECOND)
    Process(node, "late")
    node.run(4 * SECOND)
    for name in ("busy", "late"):
        assert abs(node.used(name, 3 * SECOND, 4 * SECOND) / SECOND - 0.5) <= TWO_POINTS


def test_a_slot_that_held_the_gpu_too_long_pays_for_no_more_than_half_a_second() -> None:
    node = Node(seed=22)
    node.serve("stuck", 500)
    node.serve("other", 500)
    stuck, _ = Process(node, "stuck"), Process(node, "other")
    node.run(2 * SECOND)
    stuck.deaf = True  # as a process that is stopped
    while not node.core.slot("stuck").overruns:  # type: ignore[union-attr]
        node.run(node.now + 10_000)
    node.kill(stuck)
    began = node.now
    Process(node, "stuck")
    node.run(began + SECOND)
    assert 0.2 * SECOND <= node.used("stuck", began, began + SECOND) <= 0.3 * SECOND


def test_a_slot_is_charged_for_no_more_time_than_passed_whatever_its_process_reports() -> None:
    core = Arbiter()
    core.serve("a", Terms(gpu="gpu", request=500), 0)
    core.connected(1, "a")
    core.want(1, 1_000, 0)
    (order,) = core.decide(0)
    assert isinstance(order, Grant)
    core.returned(1, order.turn, 400_000, 0, 2_000)
    slot = core.slot("a")
    assert slot is not None
    assert slot.device_us == 2_000
