"""One walk over the waiting jobs in order: which of them start, which wait, and which waiting jobs hold others back.

The scheduler, its replay and the simulator all use it. The walk decides and changes nothing: it yields each decision,
and the caller applies it to its queue and its room before it takes the next.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from weft.health.spares import SpareUse
from weft.planning.backfill import Backfill
from weft.planning.finding import Place
from weft.planning.preemption import VictimSelection
from weft.planning.queue import Served
from weft.planning.resource_request import ResourceRequest, gpus_in, gpus_of, smallest


class Demand(Struct, frozen=True):
    """Demand of a waiting job in a scheduling pass.

    `gpus`: how many start it; `lasts_s` None: unknown. `may_fit` is false where the caller knows, without looking for a
    place, that there is none. `shorter_behind`: jobs behind it in its group may last less than it does. `pinned`: it
    can use only the node that it is pinned to. `checkpoints`: it writes them, so it may move later. `held`: quotas hold
    it and all of its group back: it starts not now, whatever is free, and blocks no other.
    """

    resource_request: ResourceRequest
    gpus: float
    lasts_s: float | None
    may_fit: bool = True
    shorter_behind: bool = False
    pinned: bool = False
    held: bool = False
    tenant: str = ""
    preemptible: bool = True
    model: str | None = None
    spare_use: SpareUse = SpareUse.NEVER
    checkpoints: bool = False


class Starts(Struct, frozen=True):
    job_id: str
    place: Place


class Awaits(Struct, frozen=True):
    """The job could start now. It waits for GPUs of a faster model, which are expected at `at` and no later than
    `until`, and save it `saves_s`; it is in nobody's way meanwhile."""

    job_id: str
    model: str
    at: float
    until: float
    saves_s: float


class Held(Struct, frozen=True):
    """Quotas hold the job and its whole group back."""

    job_id: str


class Clears(Struct, frozen=True):
    """Running jobs, or ranks of them, give way to a waiting job that has no place. `reclaimed`: the jobs that hold what
    they borrowed of its guarantee; `revoked`: waiting jobs that counted on the same room and look for other; `guests`:
    the jobs that leave a spare."""

    job_id: str
    selection: VictimSelection
    reclaimed: frozenset[str] = frozenset()
    revoked: tuple[str, ...] = ()
    guests: frozenset[str] = frozenset()


class InVain(Struct, frozen=True):
    """There is no place for the job, and no holder that may give way now would make one."""

    job_id: str


class Waits(Struct, frozen=True):
    """A job that waits. `its_turn`: it may start once it fits; else it would delay `ahead`, the first job that blocks.

    `in_the_way` is false for a job that blocks no other, because it would not fit even if all nodes were empty.
    """

    job_id: str
    its_turn: bool
    ahead: str
    in_the_way: bool


class SchedulingPass:
    """Yields one decision per job; the caller applies it before it takes the next. The walk ends early, and is `over`,
    once no job behind may start. `ahead`: the first job that holds others back; `backfill`: the name of the rule.

    `wants(job_id)` is None for a job that is not to be placed now and blocks no other. `find(job_id, shape)` looks for
    a place; `fits_empty(shape)`: whether there would be one if all nodes were empty. `clear(job_id, wants)`: what gives
    way to a job whose turn it is and that has no place; it starts at once if that leaves room at once. `awaits(job_id,
    wants, place)`: the faster model for which a job should wait that could start there, while no job is ahead that
    waits for room. `filling()` makes the backfill, at the first job that does not start.
    """

    def __init__(
        self,
        served: Served,
        *,
        backfill: str,
        demand: Callable[[str], Demand | None],
        find: Callable[[str, ResourceRequest], Place | None],
        fits_empty: Callable[[ResourceRequest], bool],
        filling: Callable[[], Backfill],
        clear: Callable[[str, Demand], Clears | InVain | None] = lambda *_: None,
        awaits: Callable[[str, Demand, Place], Awaits | None] = lambda *_: None,
    ) -> None:
        self.ahead = ""
        self.over = False
        self.stopped = False
        self._served = served
        self._rule = backfill
        self._demand = demand
        self._find = find
        self._fits_empty = fits_empty
        self._filling = filling
        self._clear = clear
        self._awaits = awaits

    def stop(self) -> None:
        """End the walk after the decision yielded last."""
        self.stopped = True

    def __iter__(self) -> Iterator[Starts | Held | Clears | InVain | Waits | Awaits]:
        backfill: Backfill | None = None
        while not (self.over or self.stopped) and (job_id := self._served.next()) is not None:
            demand = self._demand(job_id)
            if demand is None:
                self._served.passed()
                continue
            if demand.held:
                yield Held(job_id)
                self._served.blocked()
                continue
            limits = backfill if self.ahead and demand.gpus and demand.may_fit else None
            its_turn = limits is None or limits.may_start(demand.gpus, demand.lasts_s)
            place: Place | None = None
            if its_turn and demand.may_fit:
                place = self._find(job_id, _as_much_as_may_start(demand, limits))
            if place and not self.ahead and (waits := self._awaits(job_id, demand, place)) is not None:
                yield waits
                self._served.passed()
                continue
            in_the_way = bool(place) or self._fits_empty(demand.resource_request)
            if not place and its_turn and in_the_way and (clears := self._clear(job_id, demand)) is not None:
                yield clears
                if isinstance(clears, Clears):
                    place = self._find(job_id, _as_much_as_may_start(demand, limits))
            if place:
                yield Starts(job_id, place)
                self._served.taken()
                if backfill is not None and demand.gpus:
                    backfill.started(gpus_in(place), demand.lasts_s)
                continue
            backfill = backfill or self._filling()
            self._leave(demand, its_turn=its_turn)
            yield Waits(job_id, its_turn, self.ahead, in_the_way)
            if in_the_way:
                self._hold_back(job_id, demand, backfill)

    def _leave(self, demand: Demand, *, its_turn: bool) -> None:
        """Skip a job that does not start, and its group too, unless others of the group may still start."""
        each_has_a_reservation = self._rule == "conservative"
        if each_has_a_reservation or (demand.shorter_behind and not its_turn):
            self._served.passed()
        else:
            self._served.blocked()

    def _hold_back(self, job_id: str, demand: Demand, backfill: Backfill) -> None:
        if demand.pinned and self._rule != "none":
            return
        self.ahead = self.ahead or job_id
        if demand.gpus or self._rule == "none":
            self.over = not backfill.blocked(demand.gpus, demand.lasts_s)


def _as_much_as_may_start(demand: Demand, limits: Backfill | None) -> ResourceRequest:
    """All that the job wants, or the least that starts it, if all would delay a job ahead."""
    if (
        limits is None
        or (most := gpus_of(demand.resource_request)) == demand.gpus
        or limits.may_start(most, demand.lasts_s)
    ):
        return demand.resource_request
    return smallest(demand.resource_request)
