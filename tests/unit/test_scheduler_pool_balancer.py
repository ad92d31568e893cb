"""Which pools a scheduler takes and gives up, in a time that the test moves."""

import pytest
from msgspec import Struct, field

from weft.messages.leaders import LeadershipTold
from weftd.scheduler.thinking.peers import LAPSE_SECONDS
from weftd.scheduler.thinking.pool_balancer import LISTEN_SECONDS, PoolBalancer

YIELD, EVEN = 3.0, 60.0
POOLS = [f"p{number}" for number in range(1, 7)]


class World(Struct):
    """Schedulers that hear each other every second. A lease goes to the first that takes it."""

    spreads: dict[str, PoolBalancer] = {}
    led_by: dict[str, str] = {}
    deaf: set[str] = set()  # they speak, and reach no store
    moves: list[tuple[float, str, str]] = field(default_factory=list)  # when a pool changed hands, and to which
    now: float = 0.0

    def add(self, *names: str, pools: list[str] = POOLS) -> None:
        for name in names:
            self.spreads[name] = PoolBalancer(
                name=name, pools=pools, began_at=self.now, yield_seconds=YIELD, even_seconds=EVEN
            )

    def led(self, name: str) -> list[str]:
        return [pool for pool, leader in self.led_by.items() if leader == name]

    @property
    def parts(self) -> list[int]:
        return sorted(len(self.led(name)) for name in self.spreads)

    def kill(self, name: str) -> None:
        del self.spreads[name]
        self.led_by = {pool: leader for pool, leader in self.led_by.items() if leader != name}

    def tick(self, seconds: float = 1.0) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            for name, balancer in self.spreads.items():
                for pool in balancer.in_turn:
                    told = LeadershipTold(
                        pool=pool, scheduler=name, number=1, leads=self.led_by.get(pool) == name, epoch=1, heard={}
                    )
                    for other in self.spreads.values():
                        other.hear(told, self.now)
            for name, balancer in self.spreads.items():
                if name not in self.deaf:
                    self._turn(name, balancer)

    def _turn(self, name: str, balancer: PoolBalancer) -> None:
        for pool in balancer.in_turn:
            leader = self.led_by.get(pool)
            if leader is not None:
                if leader != name:
                    balancer.went_over(pool)
            elif balancer.may_take(pool, self.now, led=self.led(name)):
                self.led_by[pool] = name
                self.moves.append((self.now, pool, name))
                balancer.taken(pool)
        if given := balancer.gives_up(self.now, led=self.led(name)):
            del self.led_by[given]


@pytest.fixture
def world() -> World:
    return World(spreads={}, led_by={}, deaf=set(), moves=[])


def test_one_pool_is_taken_at_once(world: World) -> None:
    world.add("a", pools=["p1"])
    world.tick()
    assert world.led("a") == ["p1"]


def test_a_scheduler_alone_takes_all_pools_once_it_has_listened(world: World) -> None:
    world.add("a")
    world.tick(LISTEN_SECONDS + 1)
    assert world.parts == [6]


def test_schedulers_that_begin_together_lead_as_many_each(world: World) -> None:
    world.add("a", "b", "c")
    world.tick(LISTEN_SECONDS + 2 * YIELD)
    assert world.parts == [2, 2, 2]


def test_the_pools_of_a_dead_scheduler_are_spread_over_the_others(world: World) -> None:
    world.add("a", "b", "c")
    world.tick(20)
    world.kill("a")
    world.tick(LAPSE_SECONDS + 2 * YIELD)
    assert world.parts == [3, 3]


def test_a_newcomer_is_given_its_part_one_pool_after_the_other_and_then_nothing_moves(world: World) -> None:
    world.add("a")
    world.tick(20)
    world.add("b")
    world.tick(EVEN / 2)
    assert world.parts == [0, 6]
    world.tick(5 * EVEN)
    assert world.parts == [3, 3]
    moved = len(world.moves)
    world.tick(10 * EVEN)
    assert len(world.moves) == moved, world.moves[moved:]


def test_a_difference_of_one_pool_moves_none(world: World) -> None:
    world.add("a", "b", pools=POOLS[:5])
    world.tick(20)
    moved = len(world.moves)
    world.tick(10 * EVEN)
    assert world.parts == [2, 3]
    assert len(world.moves) == moved


def test_a_pool_that_no_other_could_take_is_taken_back_and_given_up_ever_less_often(world: World) -> None:
    world.add("a", "b")
    world.deaf.add("b")
    world.tick(LISTEN_SECONDS + 2 * YIELD + len(POOLS))
    assert len(world.led("a")) == 6
    began = len(world.moves)
    world.tick(16 * EVEN)
    assert 2 <= len(world.moves) - began <= 5, "each time it waits twice as long as before"
    assert len(world.led("a")) == 6


def test_a_silent_scheduler_is_not_waited_for(world: World) -> None:
    world.add("a", "b")
    world.tick(20)
    assert world.parts == [3, 3]
    world.kill("b")
    world.now += LAPSE_SECONDS  # so long its leases last
    world.tick(1)
    assert world.parts == [6]


def test_many_names_do_not_fill_the_memory(world: World) -> None:
    balancer = PoolBalancer(name="a", pools=POOLS, began_at=0.0, yield_seconds=YIELD, even_seconds=EVEN)
    for number in range(1000):
        balancer.hear(LeadershipTold(pool="p1", scheduler=f"s{number}", number=1, leads=False, epoch=1, heard={}), 1.0)
        balancer.hear(LeadershipTold(pool=f"x{number}", scheduler="s", number=1, leads=False, epoch=1, heard={}), 1.0)
    assert len(balancer._heard) <= 64
