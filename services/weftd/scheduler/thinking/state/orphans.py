"""Orphan runs: reported by a node, but no job has them there. A living orphan keeps its GPUs, and its job unplaced."""

from collections.abc import Mapping

from weft.domain.cluster import Node
from weft.messages.nodes import RunSeen, RunState
from weftd.scheduler.thinking.state.openjobs import OpenJobs
from weftd.scheduler.thinking.state.runs import Runs


class Orphans:
    """`forgot_placements`: the store went back in time, so jobs may have been placed without a trace in it."""

    def __init__(self, jobs: OpenJobs, nodes: Mapping[str, Node], runs: Runs) -> None:
        self.forgot_placements = False
        self._jobs = jobs
        self._nodes = nodes
        self._runs = runs
        self._found: dict[str, tuple[RunSeen, ...]] = {}  # by node

    def look(self, node_id: str) -> bool:
        """Find the orphans of a node again; returns whether the GPUs that they hold have changed."""
        before = self.occupied(node_id)
        found = self._runs.orphans(node_id, self._jobs) if self._nodes[node_id].ready else ()
        if found:
            self._found[node_id] = found
        else:
            self._found.pop(node_id, None)
        return self.occupied(node_id) != before

    def forget(self, node_id: str) -> None:
        self._found.pop(node_id, None)

    def occupied(self, node_id: str) -> frozenset[int]:
        """The GPUs that orphans hold on a node; all its GPUs if an orphan does not name its own."""
        found: set[int] = set()
        for run in self._found.get(node_id, ()):
            if run.state is not RunState.EXITED:
                everything = (gpu.index for gpu in self._nodes[node_id].capacity.gpus)
                found.update(everything if run.gpus is None else run.gpus)
        return frozenset(found)

    @property
    def living(self) -> int:
        return sum(run.state is not RunState.EXITED for runs in self._found.values() for run in runs)

    def has_living(self, job_id: str, *, but_of: int = -1) -> bool:
        """`but_of`: an epoch of which orphans do not count."""
        return any(
            run.job_id == job_id
            and run.epoch != but_of
            and run.state is not RunState.EXITED
            and self._may_have(run, node_id)
            for node_id, runs in self._found.items()
            for run in runs
        )

    def highest_rank(self, job_id: str, epoch: int) -> int:
        """The highest rank of an orphan of this job in this epoch; -1 if there is none."""
        orphans = (run for runs in self._found.values() for run in runs)
        return max((run.rank for run in orphans if (run.job_id, run.epoch) == (job_id, epoch)), default=-1)

    def by_job(self) -> dict[str, tuple[str, RunSeen]]:
        """For each job with orphans, one of them and its node: a living orphan rather than an ended one."""
        found: dict[str, tuple[str, RunSeen]] = {}
        for node_id, runs in sorted(self._found.items()):
            for run in runs:
                if not self._may_have(run, node_id):
                    continue
                known = found.get(run.job_id)
                if known is None or (known[1].state is RunState.EXITED and run.state is not RunState.EXITED):
                    found[run.job_id] = (node_id, run)
        return found

    def _may_have(self, run: RunSeen, node_id: str) -> bool:
        """Return True if the run can be the job's. A node that never had the job counts only for its own GPUs."""
        job = self._jobs.get(run.job_id)
        return self.forgot_placements or job is None or job.may_have_run_on(node_id)
