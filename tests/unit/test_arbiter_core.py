"""Whatever processes send: one turn a GPU, no order to a process that is gone, and turns go on."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tier import examples
from weftd.arbiter.thinking.core import Arbiter
from weftd.arbiter.thinking.slot import Terms, TurnPace
from weftd.arbiter.thinking.turns import Grant, Revoke

SLOTS = ("a", "b", "c")
TERMS = st.builds(
    Terms,
    gpu=st.sampled_from(["g0", "g1"]),
    request=st.integers(0, 1000),
    limit=st.integers(0, 1000),
    latency=st.booleans(),
    hold=st.booleans(),
)
US = st.integers(-60_000_000, 60_000_000)
DEEDS = st.one_of(
    st.tuples(st.just("serve"), st.sampled_from(SLOTS), TERMS),
    st.tuples(st.just("drop"), st.sampled_from(SLOTS)),
    st.tuples(st.just("connect"), st.sampled_from(SLOTS)),
    st.tuples(st.sampled_from(["gone", "want"]), st.integers(1, 8)),
    st.tuples(st.just("return"), st.integers(1, 8), st.integers(0, 20), st.integers(0, 60_000_000)),
    st.tuples(st.just("honest return"), st.integers(0, 60_000_000)),
    st.tuples(st.just("charge"), st.integers(1, 8), US),
    st.tuples(st.just("wait"), st.integers(0, 3_000_000)),
)


class World:
    """The core, and what every process may expect of it."""

    def __init__(self) -> None:
        self.core, self.now, self.last = Arbiter(), 0, 0
        self.served: dict[str, Terms] = {}
        self.clients: dict[int, str] = {}
        self.turns: dict[int, int] = {}  # client: the turn it believes it has

    def do(self, deed: tuple[object, ...]) -> None:
        match deed:
            case ("serve", str(name), Terms() as terms):
                self.core.serve(name, terms, self.now)
                self.served[name] = terms
            case ("drop", str(name)):
                self.core.drop(name, self.now)
                self.served.pop(name, None)
                for client in [client for client, slot in self.clients.items() if slot == name]:
                    del self.clients[client]
                    self.turns.pop(client, None)
            case ("connect", str(name)) if name in self.served and self.last < 8:
                self.last += 1
                self.core.connected(self.last, name)
                self.clients[self.last] = name
            case ("gone", int(client)):
                self.core.gone(client, self.now)
                self.clients.pop(client, None)
                self.turns.pop(client, None)
            case ("want", int(client)):
                self.core.want(client, client * 150, self.now)  # short ones and others
            case ("return", int(client), int(turn), int(us)):
                self.core.returned(client, turn, us, 60_000_000 - us, self.now)
                if self.turns.get(client) == turn:
                    del self.turns[client]
            case ("honest return", int(us)) if self.turns:
                client, turn = self.turns.popitem()
                self.core.returned(client, turn, us, us // 2, self.now)
            case ("charge", int(client), int(us)):
                self.core.charge(client, us, self.now)
            case ("wait", int(us)):
                self.now += us
            case _:
                pass
        self.decide()

    def decide(self) -> None:
        for order in self.core.decide(self.now):
            assert order.client in self.clients
            if isinstance(order, Grant):
                assert 0 < order.quota <= TurnPace().alone
                assert 0 < order.in_flight <= TurnPace().in_flight
                assert not self.served[self.clients[order.client]].hold
                self.turns[order.client] = order.turn
            else:
                assert isinstance(order, Revoke)


@given(st.lists(DEEDS, max_size=60))
@settings(max_examples=examples(300), deadline=None)
def test_turns_go_on_whatever_is_sent(deeds: list[tuple[object, ...]]) -> None:
    world = World()
    for deed in deeds:
        world.do(deed)
    # Then every process wants a turn and behaves, and each that is not on hold has one.
    waiting = {client for client, name in world.clients.items() if not world.served[name].hold}
    for client in world.clients:
        world.do(("want", client))
    had: set[int] = set()
    for _ in range(400):
        had |= world.turns.keys()
        while world.turns:
            world.do(("honest return", 100))
            had |= world.turns.keys()
        world.do(("wait", 100_000))
    assert waiting <= had


@given(st.lists(DEEDS, max_size=60))
@settings(max_examples=examples(100), deadline=None)
def test_the_same_history_gives_the_same_orders(deeds: list[tuple[object, ...]]) -> None:
    worlds = World(), World()
    for deed in deeds:
        for world in worlds:
            world.do(deed)
        assert worlds[0].turns == worlds[1].turns
        assert worlds[0].core.next_at() == worlds[1].core.next_at()
