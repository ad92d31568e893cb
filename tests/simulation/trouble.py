"""What goes wrong, and when: by seed. When it is over, everything is healed."""

import asyncio
import random
from collections.abc import Callable, Sequence

from tests.simulation.cluster import Cluster, Service
from tests.simulation.database import Quality as StoreQuality
from tests.simulation.machine import Machine
from tests.simulation.network import Quality as NetworkQuality

KINDS = {
    "kill": 5,
    "trap-kill": 8,
    "trap-hang": 5,
    "terminate": 2,
    "hang": 4,
    "cut-bus": 4,
    "cut-store": 3,
    "cut-both": 2,
    "nats-down": 2,
    "postgres-down": 2,
    "postgres-away": 2,
    "postgres-hangs": 1,
    "postgres-goes-back": 1,
    "nats-split": 2,
    "overtaken": 2,
    "bad-network": 3,
    "bad-postgres": 3,
    "stream-lost": 2,
    "engine-away": 2,
    "reboot": 2,
    "power-loss": 1,
    "disk-full": 1,
}
SCHEDULERS_MAX = 6
CALM = ("kill", "trap-kill", "terminate")


class Trouble:
    """`kinds`: nothing else goes wrong."""

    def __init__(self, cluster: Cluster, dice: random.Random, *, kinds: Sequence[str] = ()) -> None:
        self._cluster = cluster
        self._dice = dice
        self._pace = dice.uniform(1.5, 8.0)
        self._overtaken_until = 0.0
        self._healed = False
        chosen = [kind for kind in KINDS if dice.random() < 0.6] or list(CALM)
        self._weights = {kind: KINDS[kind] for kind in kinds or chosen}
        if dice.random() < 0.3:
            self._ordinary_network = NetworkQuality(slow=0.02, slow_seconds=(0.05, 4.0), lost=0.002, stream_slow=0.05)
        else:
            self._ordinary_network = NetworkQuality()
        if dice.random() < 0.3:
            self._ordinary_store = StoreQuality(slow=0.02, slow_seconds=(0.05, 8.0), fails_after=0.005)
        else:
            self._ordinary_store = StoreQuality()

    async def make(self, seconds: float) -> None:
        """Trouble for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        self._ordinary()
        kinds, weights = list(self._weights), list(self._weights.values())
        while (pause := self._dice.expovariate(1.0 / self._pace)) + loop.time() < until:
            await asyncio.sleep(pause)
            kind = self._dice.choices(kinds, weights)[0]
            self._cluster.history.counts[f"fault {kind}"] += 1
            getattr(self, "_" + kind.replace("-", "_"))()
        await asyncio.sleep(max(0.0, until - loop.time()))

    def heal(self) -> None:
        cluster = self._cluster
        cluster.history.note("trouble", "all is healed")
        self._healed = True
        cluster.network.quality = NetworkQuality()
        cluster.database.quality = StoreQuality()
        cluster.network.come_up()
        cluster.database.come_up()
        cluster.database.hangs = False
        self._unsplit()
        for machine in cluster.machines:
            machine.host.available = True
            machine.state_file.full = False
            if not machine.on:
                self._power_on(machine)
        for service in cluster.services:
            service.wanted = True
            service.begin()
            if service.life is not None:
                service.life.bus.link.heal()
                service.life.store.heal()
                service.life.place.trap(0, lambda _: None)
                service.life.place.process.go_on()

    # what may happen

    def _anyone(self) -> Service:
        """Those that matter most, most often."""
        services = self._cluster.services
        weights = [
            6 if one.name.startswith(("scheduler", "executor")) else 2 if "gateway" in one.name else 1
            for one in services
        ]
        return self._dice.choices(services, weights)[0]

    def _some(self, low: float, high: float) -> float:
        """Short ones often, long ones seldom."""
        return low * (high / low) ** self._dice.random()

    def _away(self) -> float:
        """How long somebody is out of reach: every fourth time for longer than a lease."""
        return self._dice.uniform(20.0, 90.0) if self._dice.random() < 0.25 else self._some(0.3, 20.0)

    def _kill(self) -> None:
        self._anyone().kill(down_seconds=self._some(0.3, 40.0))

    def _trap_kill(self) -> None:
        service = self._anyone()
        if service.life is not None:
            seconds = self._some(0.3, 20.0)
            service.life.place.trap(
                self._dice.randint(1, 40),
                lambda where: self._sprung(service, where, lambda: service.kill(down_seconds=seconds)),
            )

    def _trap_hang(self) -> None:
        service = self._anyone()
        if service.life is not None:
            seconds = self._away()
            service.life.place.trap(
                self._dice.randint(1, 40), lambda where: self._sprung(service, where, lambda: service.hang(seconds))
            )

    def _sprung(self, service: Service, where: str, what: Callable[[], None]) -> None:
        self._cluster.history.note(service.name, f"is caught at: {where}")
        what()

    def _terminate(self) -> None:
        self._anyone().terminate()

    def _hang(self) -> None:
        self._anyone().hang(self._away())

    def _cut_bus(self) -> None:
        self._cut(bus=True, store=False)

    def _cut_store(self) -> None:
        self._cut(bus=False, store=True)

    def _cut_both(self) -> None:
        self._cut(bus=True, store=True)

    def _cut(self, *, bus: bool, store: bool) -> None:
        service = self._anyone()
        life, seconds = service.life, self._away()
        if life is None:
            return
        what = " and ".join(name for name, is_cut in (("bus", bus), ("store", store)) if is_cut)
        self._cluster.history.note(life.place.name, f"is cut from {what} for {seconds:.3f} s")
        self._cluster.history.counts["partitions"] += 1
        if bus:
            life.bus.link.cut()
            self._cluster.later(seconds, life.bus.link.heal)
        if store:
            life.store.cut()
            self._cluster.later(seconds, life.store.heal)

    def _nats_down(self) -> None:
        self._cluster.history.note("nats", "goes down")
        self._cluster.network.go_down()
        self._cluster.later(self._some(0.2, 40.0), self._cluster.network.come_up)

    def _postgres_down(self) -> None:
        self._cluster.history.note("postgres", "goes down")
        self._cluster.database.go_down()
        self._cluster.later(self._some(0.2, 40.0), self._cluster.database.come_up)

    def _postgres_away(self) -> None:
        """For longer than a fence, or than a lease, or than nodes are held."""
        self._cluster.history.note("postgres", "goes away")
        self._cluster.database.go_down()
        self._cluster.later(self._dice.uniform(20.0, 120.0), self._cluster.database.come_up)

    def _postgres_hangs(self) -> None:
        """As SIGSTOP: nobody is refused, and nobody is answered."""
        self._cluster.history.note("postgres", "hangs")
        self._cluster.database.hangs = True

        def go_on() -> None:
            self._cluster.database.hangs = False

        self._cluster.later(self._some(1.0, 90.0), go_on)

    def _postgres_goes_back(self) -> None:
        """It is backed up now; a while later it fails, and comes back as it was."""
        cluster = self._cluster
        backup, memory = cluster.database.back_up(), cluster.witness.remember()
        cluster.history.note("postgres", "is backed up")
        away = self._some(0.2, 40.0)

        def fail() -> None:
            if not self._healed:
                cluster.history.note("postgres", "fails, and will come back as it was")
                cluster.history.counts["restores"] += 1
                forgotten = cluster.database.store._submitted.keys() - backup["_submitted"].keys()
                cluster.database.go_down()
                cluster.database.restore(backup)
                cluster.witness.went_back(memory, forgotten=forgotten)
                cluster.later(away, cluster.database.come_up)

        cluster.later(self._some(1.0, 60.0), fail)

    def _nats_split(self) -> None:
        """Its servers do not reach each other; who reconnects may come to the other one."""
        self._cluster.history.note("nats", "is split")
        self._cluster.network.split = True
        self._cluster.later(self._away(), self._unsplit)

    def _unsplit(self) -> None:
        self._cluster.network.split = False

    def _overtaken(self) -> None:
        """The store is away for all. Then some reach it again, and one that is new, and others do not."""
        cluster = self._cluster
        schedulers = [one for one in cluster.services if one.name.startswith("scheduler")]
        if len(schedulers) >= SCHEDULERS_MAX or cluster.loop.time() < self._overtaken_until:
            return
        cluster.history.note("postgres", "goes away, and is overtaken")
        away, more = self._dice.uniform(2.0, 40.0), self._dice.uniform(10.0, 130.0)
        self._overtaken_until = cluster.loop.time() + away + more + 20.0
        cluster.database.go_down()
        cluster.later(away, cluster.database.come_up)
        for life in [one.life for one in schedulers if one.life is not None]:
            if self._dice.random() < 0.7:
                life.store.cut()
                cluster.later(away + more, life.store.heal)
        if self._dice.random() < 0.7:
            cluster.later(away * self._dice.random(), cluster.add_scheduler)
        if self._dice.random() < 0.5:
            cluster.network.split = True
            cluster.later(away + more, self._unsplit)

    def _bad_network(self) -> None:
        self._cluster.network.quality = NetworkQuality(
            slow=self._dice.uniform(0.02, 0.3),
            slow_seconds=(0.05, self._dice.choice([1.0, 5.0, 10.0])),
            lost=self._dice.choice([0.0, 0.01, 0.1]),
            stream_slow=self._dice.choice([0.0, 0.3]),
        )
        self._cluster.later(self._some(1.0, 30.0), self._ordinary)

    def _bad_postgres(self) -> None:
        self._cluster.database.quality = StoreQuality(
            slow=self._dice.choice([0.0, 0.05, 0.3]),
            fails_before=self._dice.choice([0.0, 0.05, 0.2]),
            fails_after=self._dice.choice([0.02, 0.1, 0.3]),
        )
        self._cluster.later(self._some(1.0, 30.0), self._ordinary)

    def _ordinary(self) -> None:
        if self._healed:
            return
        self._cluster.network.quality = self._ordinary_network
        self._cluster.database.quality = self._ordinary_store

    def _stream_lost(self) -> None:
        self._cluster.history.note("nats", "the stream is lost")
        self._cluster.network.stream.lose()

    def _machine(self) -> Machine:
        return self._dice.choice(self._cluster.machines)

    def _engine_away(self) -> None:
        machine = self._machine()
        self._cluster.history.note(machine.node_id, "the engine is away")
        machine.host.available = False

        def back() -> None:
            machine.host.available = True

        self._cluster.later(self._some(0.5, 40.0), back)

    def _reboot(self) -> None:
        machine = self._machine()
        self._power_off(machine)
        self._cluster.later(self._some(3.0, 20.0), self._power_on, machine)

    def _power_loss(self) -> None:
        """It comes back when all is healed."""
        if sum(machine.on for machine in self._cluster.machines) > 1:
            self._power_off(self._machine())

    def _power_off(self, machine: Machine) -> None:
        if machine.on:
            self._cluster.history.note(machine.node_id, "goes off")
            for service in self._cluster.on_machine[machine.node_id]:
                service.wanted = False
                service.kill(down_seconds=0.0, unnoticed_seconds=self._some(0.002, 12.0))
            machine.power_off()

    def _power_on(self, machine: Machine) -> None:
        if not machine.on:
            self._cluster.history.note(machine.node_id, "boots")
            machine.power_on()
            for service in self._cluster.on_machine[machine.node_id]:
                service.wanted = True
                service.begin()

    def _disk_full(self) -> None:
        machine = self._machine()
        self._cluster.history.note(machine.node_id, "the disk is full")
        machine.state_file.full = True

        def freed() -> None:
            machine.state_file.full = False

        self._cluster.later(self._some(1.0, 40.0), freed)
