"""Which faults come when. Pure: a seed gives the same faults.

Faults are dealt from a deck that holds each of them, so that a long run meets all, and a short one no kind too often.
No two faults that would hide each other are on at once: one at a time for each target.
"""

import random
from collections.abc import Iterator
from itertools import count

from msgspec import Struct

BETWEEN_SECONDS = 1.2
REST_SECONDS = 0.7  # of one target between two faults
FIRST_AT = 4.0
SHORT, LONG = (0.3, 2.5), (6.0, 14.0)  # beside a fence of 4 s and a lease of 9 s
CONTROL = ("gateway", "scheduler-1", "scheduler-2", "scorer", "reallocator")
BACKUP_AGE = (6.0, 15.0)
WHATS = ("kill", "freeze", "restart")
REPLICA = "replica"  # stands for any replica of a service that lives when the fault comes
OF_ROUTER = ("router", "gate", "caddy")  # the second and the third are its children
BUSIEST = "busiest"  # stands for the node on which most runs live when the fault comes
CUT_OFF_AT, CUT_OFF_SECONDS = 6.0, 13.0
HOSTS = ("host-1", "host-2", "host-3")
# These stand for the host on which, when the fault comes, the leader is, or Postgres' primary or its standby.
LEADER, PRIMARY, STANDBY = "host-leader", "host-primary", "host-standby"
LABORATORY = "hosts"  # what all faults of hosts and their servers touch: of three hosts two must be whole


GPU_FAULTS = ("xid 79", "xid 95", "ecc", "off bus", "throttle")
GPUS = "gpus"  # one GPU at a time: the bound of a pool leaves room for few


class Fault(Struct, frozen=True, kw_only=True):
    """`what` is done `at` that time to `target`, for so many `seconds`."""

    at: float
    what: str
    target: str
    seconds: float

    @property
    def until(self) -> float:
        return self.at + self.seconds


class Card(Struct, frozen=True):
    what: str
    target: str
    lasts: tuple[float, float] = SHORT


# `one` and `two` of three NATS servers; `fail over`: the primary is lost, and its standby promoted some seconds later.
FAILOVER = (
    *(Card(what, "nats") for what in ("kill one", "kill one", "freeze one", "lose one")),
    *(Card(what, "nats", (3.0, 8.0)) for what in ("kill two", "split", "split")),
    *(Card("fail over", "postgres", (0.5, 3.0)) for _ in range(3)),
    *(Card(what, "postgres") for what in ("kill", "freeze", "kill standby", "freeze standby")),
    Card("freeze standby", "postgres", (5.0, 9.0)),
)


OF_HOSTS = (
    *(Card("switch off", target, (3.0, 9.0)) for target in (LEADER, PRIMARY, STANDBY, *HOSTS)),
    *(Card(what, target, (3.0, 9.0)) for what in ("split off", "split off with users") for target in (LEADER, PRIMARY)),
    *(Card(what, target, (3.0, 9.0)) for what in ("deafen", "silence") for target in (LEADER, HOSTS[2])),
    *(Card("spoil", target, (5.0, 9.0)) for target in HOSTS),
    *(Card(f"clock {way}", target, (5.0, 9.0)) for way in ("ahead", "behind") for target in (LEADER, HOSTS[2])),
)


class Means(Struct, frozen=True, kw_only=True):
    """What can be done here."""

    nodes: tuple[str, ...]
    full_disk: str = ""  # the node whose log folder can be filled
    engine: bool = False
    guards: bool = False
    router: bool = False  # there are services, and requests to them
    restore: bool = True
    failover: bool = False  # three NATS servers, and Postgres with a standby
    hosts: bool = False  # they are on hosts, as is all else, whose links and power fail


def faults(seed: int, seconds: float, means: Means) -> list[Fault]:
    drawn = random.Random(f"faults {seed}")
    cards = _dealt(drawn, means)
    free_at: dict[str, float] = {}
    made: list[Fault] = []
    at = FIRST_AT
    while at < seconds:
        card = next(cards)
        lasts = drawn.uniform(*card.lasts)
        touched = touches(card.target, hosts=means.hosts)
        begin = max(at, free_at.get(touched, 0.0))
        if card.what == "restore":
            made.append(Fault(at=begin, what="back up", target=card.target, seconds=0.0))
            begin += drawn.uniform(*BACKUP_AGE)
        if begin + lasts < seconds:
            made.append(Fault(at=begin, what=card.what, target=card.target, seconds=lasts))
            free_at[touched] = begin + lasts + REST_SECONDS
        at += drawn.expovariate(1 / BETWEEN_SECONDS)
    return sorted(made, key=lambda fault: fault.at)


def cut_offs(seed: int, seconds: float, means: Means) -> list[Fault]:
    """Only what fences are for: a node that runs something is cut off, or hangs, for longer than the lease. One after
    the other: of many that fall silent together the scheduler does not believe that they are gone."""
    drawn = random.Random(f"cut-offs {seed}")
    made: list[Fault] = []
    at = CUT_OFF_AT
    while at + CUT_OFF_SECONDS < seconds:
        what, target = drawn.choice((("cut", f"link-{BUSIEST}"), ("freeze", f"executor-{BUSIEST}")))
        made.append(Fault(at=at, what=what, target=target, seconds=CUT_OFF_SECONDS))
        at += CUT_OFF_SECONDS + REST_SECONDS
    return made


def touches(target: str, *, hosts: bool = False) -> str:
    """An executor and its guard are what holds a node's fence: only one of them is troubled at a time. A router that is
    down has no children that could be. With hosts one of them or of their servers is troubled at a time."""
    kind, _, node = target.partition("-")
    if hosts and kind in ("host", "nats", "postgres"):
        return LABORATORY
    if kind == "gpu":
        return GPUS
    if target in OF_ROUTER:
        return OF_ROUTER[0]
    return node if kind in ("executor", "guard") else target


def _dealt(drawn: random.Random, means: Means) -> Iterator[Card]:
    """Each deck has one card of each minor service: after as many decks as there are `WHATS` each has met all."""
    minor = {name: drawn.sample(WHATS, len(WHATS)) for name in _minor(means)}
    for number in count():
        deck = _deck(drawn, means)
        deck += [Card(whats[number % len(whats)], name) for name, whats in minor.items()]
        drawn.shuffle(deck)
        yield from deck


def _of_servers(drawn: random.Random) -> list[Card]:
    cards = [Card(what, server) for server in ("nats", "postgres") for what in WHATS]
    return [*cards, Card("freeze", drawn.choice(("nats", "postgres")), (5.0, 9.0)), Card("lose stream", "nats")]


def _minor(means: Means) -> list[str]:
    return ["scorer", "reallocator", *(f"telemetry-{node}" for node in means.nodes)]


def _deck(drawn: random.Random, means: Means) -> list[Card]:
    if means.hosts:
        return _deck_of_hosts(drawn, means)
    executors = [f"executor-{node}" for node in means.nodes]
    minor = _minor(means)
    major = [name for name in CONTROL if name not in minor] + executors
    cards = [Card(what, name) for name in major for what in WHATS]
    cards += [Card(what, name, LONG) for what in ("kill", "freeze") for name in drawn.sample(executors, 2)]
    cards += FAILOVER if means.failover else _of_servers(drawn)
    for node in means.nodes:
        cards += [Card(drawn.choice(("cut", "break")), f"link-{node}", lasts) for lasts in (SHORT, (3.0, 6.0), LONG)]
    for name in ("gateway", "scheduler-1", "scheduler-2"):
        cards += [Card("break", f"store-{name}"), Card("cut", f"store-{name}", (2.0, 8.0))]
        cards.append(Card(drawn.choice(("cut", "break")), f"bus-{name}", (1.0, 6.0)))
    cards += [Card(what, f"gpu-{BUSIEST}", (2.0, 5.0)) for what in GPU_FAULTS]
    if means.full_disk:
        cards.append(Card("fill", f"disk-{means.full_disk}", (2.0, 6.0)))
    if means.engine:
        cards += [Card("kill", "engine", lasts) for lasts in (SHORT, (3.0, 8.0))]
    if means.guards:
        cards += [Card(what, f"guard-{node}") for node in means.nodes for what in ("kill", "freeze")]
    if means.router:
        cards += [Card("kill", name) for name in OF_ROUTER] + [Card("restart", "router"), Card("freeze", "gate")]
        cards += [Card("kill", REPLICA), Card("kill", REPLICA), Card("freeze", REPLICA)]
    if means.restore and not means.failover:
        cards.append(Card("restore", "postgres"))
    return cards


def _deck_of_hosts(drawn: random.Random, means: Means) -> list[Card]:
    """Links are those of hosts: no client has one of its own that could fail."""
    services = [f"{kind}-{number}" for kind in ("gateway", "scheduler") for number in range(1, len(HOSTS) + 1)]
    executors = [f"executor-{node}" for node in means.nodes]
    cards = [Card(drawn.choice(WHATS), name) for name in (*services, *executors)]
    servers = [card for card in dict.fromkeys(FAILOVER) if card.what != "split"]
    return [*OF_HOSTS, *servers, *cards]
