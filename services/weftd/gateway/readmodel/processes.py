"""The newest report of each process of the cluster's services: in memory, bounded, lost at a restart."""

from collections import OrderedDict
from collections.abc import Callable

from weft.messages.http.status import ServiceView
from weft.messages.signals import ServiceReported

PROCESSES_MAX = 1000
KEPT_SECONDS = 600.0  # seconds for which an ended process is shown as silent


class Processes:
    """`clock` does not jump."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._told: OrderedDict[tuple[str, str], tuple[float, ServiceReported]] = OrderedDict()  # the newest last

    @property
    def heard_seconds(self) -> float:
        """Seconds since which reports have been received."""
        return self._clock() - self._began

    async def hear(self, report: ServiceReported) -> None:
        key = (report.service, report.instance)
        if report.ends:
            self._told.pop(key, None)
            return
        self._told[key] = (self._clock(), report)
        self._told.move_to_end(key)
        while len(self._told) > PROCESSES_MAX or self._silent(next(iter(self._told))) > KEPT_SECONDS:
            self._told.popitem(last=False)

    def _silent(self, key: tuple[str, str]) -> float:
        return self._clock() - self._told[key][0]

    def views(self) -> tuple[ServiceView, ...]:
        """Views by service and instance. A process that restarted in the same place is shown once."""
        return tuple(
            ServiceView(
                service=report.service,
                instance=report.instance,
                version=report.version,
                up_seconds=round(report.up_seconds, 1),
                silent_seconds=round(self._silent(key), 1),
                ready=report.ready,
                stuck=report.stuck,
                leads=report.leads,
            )
            for key, (_, report) in sorted(self._told.items())
            if self._silent(key) <= KEPT_SECONDS
        )
