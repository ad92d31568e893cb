"""Attributes the processes on a GPU to runs: by their control group, else by their session, else by their ancestors.

The driver reports the host's pids. The caller reads /proc: `look` returns a process, `groups` its control
groups. A process that is not visible here, or belongs to no run, stays without a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from weft.messages.signals import GpuProcess, GpuSample
from weftd.telemetry.thinking.readings import FoundRun, Process

ANCESTORS_MAX = 64
PROCESSES_MAX = 512  # looked up for one sample

Groups = Mapping[str, str]
"""The control groups of a process by controller, as in /proc/<pid>/cgroup."""

Look = Callable[[int], Process | None]
"""Returns the process of a pid; None if it cannot be seen."""


class Owners:
    """The runs of a node, and the group of each run's first process. A group that two runs share is not used."""

    def __init__(self, runs: Iterable[tuple[FoundRun, Groups]]) -> None:
        self._firsts: dict[int, FoundRun] = {}
        self._sessions: dict[int, FoundRun] = {}
        self._groups: dict[tuple[str, str], FoundRun | None] = {}
        for run, groups in runs:
            self._firsts[run.pid] = run
            if run.leads_session:
                self._sessions[run.pid] = run
            for controller, path in groups.items():
                if path != "/" and (run.cgroups is None or controller in run.cgroups):
                    self._groups[controller, path] = None if (controller, path) in self._groups else run

    def owner(self, process: Process, *, groups: Callable[[int], Groups], look: Look) -> FoundRun | None:
        """The run of a process. `groups` and `look` are called as needed for the process and its ancestors."""
        first = self._firsts.get(process.pid) or self._by_group(groups(process.pid))
        ancestor: Process | None = process
        for _ in range(ANCESTORS_MAX):
            if first is not None or ancestor is None:
                break
            first = self._firsts.get(ancestor.pid) or self._sessions.get(ancestor.session)
            ancestor = look(ancestor.parent) if ancestor.parent > 1 else None
        return first

    def _by_group(self, groups: Groups) -> FoundRun | None:
        for controller, path in groups.items():
            for above in _upwards(path):
                if (run := self._groups.get((controller, above))) is not None:
                    return run
        return None


def _upwards(path: str) -> Iterator[str]:
    for _ in range(ANCESTORS_MAX):
        if not path.strip("/"):
            return
        yield path
        path = path.rpartition("/")[0]


class Attribution:
    """Remembers the run of each process for as long as the process is on a GPU and the run is there."""

    def __init__(self, *, look: Look, groups: Callable[[int], Groups]) -> None:
        self._look = look
        self._groups = groups
        self._known: dict[tuple[int, int], FoundRun] = {}

    def attributed(self, gpus: tuple[GpuSample, ...], runs: Iterable[FoundRun]) -> tuple[GpuSample, ...]:
        """The same samples, with the run of each process that belongs to one."""
        pids = {process.pid for gpu in gpus for process in gpu.processes if not process.job_id}
        if not pids:
            return gpus
        owners = self._owners(sorted(pids)[:PROCESSES_MAX], list(runs))
        return tuple(
            replace(gpu, processes=tuple(_named(process, owners.get(process.pid)) for process in gpu.processes))
            for gpu in gpus
        )

    def _owners(self, pids: list[int], runs: list[FoundRun]) -> dict[int, FoundRun]:
        by_pid = {run.pid: run for run in runs}
        owners: Owners | None = None
        known: dict[tuple[int, int], FoundRun] = {}
        for pid in pids:
            process = self._look(pid)
            if process is None:
                continue
            name = (pid, process.started)
            run = self._known.get(name)
            if run is None or by_pid.get(run.pid) != run:
                owners = owners or Owners([(run, self._groups(run.pid)) for run in runs])
                run = owners.owner(process, groups=self._groups, look=self._look)
            if run is not None:
                known[name] = run
        self._known = known
        return {pid: run for (pid, _), run in known.items()}


def _named(process: GpuProcess, run: FoundRun | None) -> GpuProcess:
    if run is None or process.job_id:
        return process
    return replace(process, job_id=run.job_id, epoch=run.epoch, rank=run.rank)
