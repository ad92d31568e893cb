"""By what the last leader holds its nodes while the store is away, and how long a new leader waits for that."""

from hypothesis import given
from hypothesis import strategies as st

from weft.domain.lease import Lease, Pledge
from weft.messages import Connection
from weftd.scheduler.thinking.peers import CLOCKS_PART, LAPSE_SECONDS, Peers

HOLDS = 100.0
HERE = Connection(server="nats-1", number=1)


class World:
    """Schedulers that hear each other over one server, in a time that the test moves."""

    def __init__(self, *names: str) -> None:
        self.now = 1000.0
        self.peers = {name: Peers(pool="default", name=name, holds_seconds=HOLDS) for name in names}
        self.connections = {name: Connection(server="nats-1", number=number) for number, name in enumerate(names)}
        self.leads: set[str] = set()
        self.epoch = dict.fromkeys(names, 1)
        self.deaf: set[str] = set()

    def speak(self, *names: str) -> None:
        """Each tells once, and all that are not cut off hear it, itself too."""
        for name in names or self.peers:
            told = self.peers[name].tell(self.now, leads=name in self.leads, epoch=self.epoch[name])
            if name in self.deaf:
                continue
            for other, peers in self.peers.items():
                if other not in self.deaf:
                    peers.hear(told, self.now, self.connections[other])

    def talk(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.speak()

    def renew(self, name: str) -> Pledge:
        pledge = self.peers[name].pledge(self.now, self.connections[name])
        self.peers[name].renews(pledge, self.now)
        self.peers[name].renewed(pledge, epoch=self.epoch[name], at=self.now, connection=self.connections[name])
        return pledge

    def why_not(self, name: str = "leader") -> str:
        peers = self.peers[name]
        return peers.why_not_hold(self.now, epoch=self.epoch[name], connection=self.connections[name])


def led(*others: str) -> World:
    """One leads, has heard the others deny it, and has renewed its lease."""
    world = World("leader", *others)
    world.leads.add("leader")
    world.talk(3)
    world.renew("leader")
    return world


def test_a_leader_that_hears_all_others_deny_holds_until_its_time_is_over() -> None:
    world = led("standby", "third")
    world.talk(HOLDS - 1)
    assert world.why_not() == ""
    world.talk(3)
    assert "renewed more than 100 s ago" in world.why_not()


def test_it_names_those_whom_it_hears_in_its_pledge() -> None:
    world = led("standby")
    assert world.renew("leader") == Pledge(seconds=HOLDS, members=("leader", "standby"), nats="nats-1")


def test_a_member_that_is_not_heard_ends_the_hold_and_one_that_is_heard_again_begins_it_again() -> None:
    world = led("standby")
    world.deaf.add("standby")
    world.talk(LAPSE_SECONDS - 1)
    assert world.why_not() == ""
    world.talk(3)
    assert world.why_not() == "standby does not say that it does not lead"
    world.deaf.clear()
    world.talk(2)
    assert world.why_not() == ""


def test_a_member_that_died_long_before_the_outage_is_not_waited_for() -> None:
    world = led("standby")
    world.deaf.add("standby")
    for _ in range(40):
        world.talk(1)
        world.renew("leader")
    assert world.why_not() == ""


def test_one_that_led_meanwhile_ends_the_hold_for_good_also_after_it_has_stopped_leading() -> None:
    world = led("standby")
    world.leads.add("standby")
    world.epoch["standby"] = 2
    world.talk(1)
    world.leads.discard("standby")
    world.talk(10)
    assert world.why_not() == "another scheduler led meanwhile"


def test_a_scheduler_that_no_pledge_names_ends_the_hold_where_it_is_heard_to_lead() -> None:
    world = led()
    world.peers["new"] = Peers(pool="default", name="new", holds_seconds=HOLDS)
    world.connections["new"], world.epoch["new"] = Connection(server="nats-1", number=9), 2
    world.leads.add("new")
    world.talk(1)
    assert world.why_not() == "another scheduler led meanwhile"


def test_a_word_that_comes_late_counts_from_when_it_was_asked_for() -> None:
    world = led("standby")
    standby, leader = world.peers["standby"], world.peers["leader"]
    late = standby.tell(world.now, leads=False, epoch=1)
    world.deaf.add("standby")
    world.talk(LAPSE_SECONDS + 2)
    leader.hear(late, world.now, HERE)
    assert world.why_not() == "standby does not say that it does not lead"


def test_another_connection_to_nats_ends_the_hold() -> None:
    world = led()
    world.connections["leader"] = Connection(server="nats-1", number=77)
    world.talk(3)
    assert world.why_not() == "the connection to NATS is not that of the latest renewal"
    world.renew("leader")
    assert world.why_not() == ""


def test_a_nats_that_brings_nothing_back_ends_the_hold() -> None:
    world = led()
    world.deaf.add("leader")
    world.talk(LAPSE_SECONDS + 1)
    assert world.why_not() == "NATS does not return published messages"


def test_whom_a_renewal_named_that_was_not_answered_must_be_heard_too() -> None:
    world = led()
    world.peers["late"] = Peers(pool="default", name="late", holds_seconds=HOLDS)
    world.connections["late"], world.epoch["late"] = Connection(server="nats-1", number=9), 1
    world.talk(3)
    leader = world.peers["leader"]
    leader.renews(leader.pledge(world.now, world.connections["leader"]), world.now)  # and the store went away
    world.deaf.add("late")
    world.talk(LAPSE_SECONDS + 1)
    assert world.why_not() == "late does not say that it does not lead"


def test_who_restarted_has_no_pledge_and_holds_nothing() -> None:
    world = World("leader")
    world.talk(3)
    assert world.why_not() == "the store has no pledge of this leader"


# how long a new leader waits


def taken(pledge: Pledge, *, epoch: int = 2, went_back: bool = False) -> Lease:
    return Lease(name="default", holder="new", epoch=epoch, seq=0, went_back=went_back, pledge=pledge)


PLEDGE = Pledge(seconds=HOLDS, members=("old",), nats="nats-1")
LONG = HOLDS * (1 + CLOCKS_PART) + LAPSE_SECONDS


def test_a_new_leader_waits_as_long_as_the_one_before_it_may_hold() -> None:
    new = Peers(pool="default", name="new", holds_seconds=HOLDS)
    assert new.held_until(taken(Pledge()), 50.0) == 50.0
    assert new.held_until(taken(PLEDGE), 50.0) == 50.0 + LONG
    assert new.held_until(taken(Pledge(seconds=HOLDS, members=("new", "old"), nats="nats-1")), 50.0) == 55.0
    assert new.held_until(taken(Pledge(), went_back=True), 50.0) == 50.0 + LONG


def test_one_whose_claim_came_back_from_the_server_of_the_one_before_it_waits_a_lapse() -> None:
    for server, until in (("nats-1", 57.0), ("nats-2", 50.0 + LONG)):
        new = Peers(pool="default", name="new", holds_seconds=HOLDS)
        new.hear(new.tell(51.0, leads=False, epoch=1), 51.0, Connection(server=server, number=3))
        assert new.held_until(taken(PLEDGE), 50.0) == 50.0 + LONG
        new.hear(new.tell(52.0, leads=True, epoch=2), 52.0, Connection(server=server, number=3))
        assert new.held_until(taken(PLEDGE), 50.0) == until


@given(
    steps=st.lists(
        st.tuples(st.floats(0.1, 4.0), st.booleans(), st.booleans(), st.booleans()), min_size=5, max_size=60
    ),
    takes_at=st.integers(2, 50),
    acknowledged=st.booleans(),
)
def test_nobody_is_held_any_more_when_the_new_leader_begins_to_count_a_lease(
    steps: list[tuple[float, bool, bool, bool]], takes_at: int, acknowledged: bool
) -> None:
    """Whatever is lost between them, and however irregularly they speak."""
    world = World("leader", "standby")
    world.leads.add("leader")
    if acknowledged:
        world.talk(3)
    else:
        world.deaf.add("standby")
        world.talk(3)
        world.deaf.clear()
        world.connections["standby"] = Connection(server="nats-2", number=8)
    pledge = world.renew("leader")
    until: float | None = None
    for number, (seconds, leader_speaks, standby_speaks, is_cut) in enumerate(steps):
        world.now += seconds
        world.deaf = {"standby"} if is_cut else set()
        if number == takes_at:
            world.leads.add("standby")
            world.epoch["standby"] = 2
            lease = Lease(name="default", holder="standby", epoch=2, seq=0, pledge=pledge)
            until = world.peers["standby"].held_until(lease, world.now)
        world.speak(*(["leader"] if leader_speaks else []), *(["standby"] if standby_speaks else []), *["leader"])
        if until is not None and world.now >= until:
            assert world.why_not() != ""
