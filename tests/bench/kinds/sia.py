"""Sia's rule as a planner (Jayaram Subramanya et al., SOSP '23, section 3.4), for comparison.

    most   sum over the jobs of (lost x speed / least speed on one GPU) ** p, by sign, less 1.1 for a job without GPUs
    with   one configuration or none for each job, and of each model no more GPUs than there are

p is -0.5. `lost` is the part of a job's age that a restart would have left: 1 where the job stays as it is. A
configuration is a model and 1, 2, 4, … GPUs in one node, or whole nodes. Placement follows: large jobs first, and moves
between nodes of one model cost nothing.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from weft.planning.partition import ElasticJob, Partition, Rules, Server
from weft.planning.partition.fair import fair_shares, whole_of
from weft.planning.partition.outcome import kept, partition_of
from weft.planning.partition.solving import LinearProgram, SolverLimits

POWER = -0.5
WAITING = 1.1
LIMITS = SolverLimits(gap=0.001, branches=2000)


class _Column(Struct, frozen=True):
    job: int
    model: str
    size: int
    value: float


def sia(jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> Partition:
    """`rules` have nothing that Sia has."""
    del rules
    if not jobs or not servers:
        return kept(jobs, servers, "there is nothing to divide")
    gpus: dict[str, float] = {}
    for server in servers:
        gpus[server.model] = gpus.get(server.model, 0.0) + server.amounts[0]
    columns = [column for number, job in enumerate(jobs) for column in _columns(number, job, gpus)]
    program = LinearProgram()
    for column in columns:
        program.variable(value=column.value)
    for number in range(len(jobs)):
        of_job = [at for at, column in enumerate(columns) if column.job == number]
        program.row(of_job, [1.0] * len(of_job), most=1.0)
    for model, there in gpus.items():
        on = [at for at, column in enumerate(columns) if column.model == model]
        program.row(on, [float(columns[at].size) for at in on], most=there)
    found = program.maximise(LIMITS)
    if found.values is None:
        return kept(jobs, servers, "no partition was found in time")
    chosen = {columns[at].job: columns[at] for at in range(len(columns)) if found.values[at] > 0.5}
    return _placed(jobs, servers, chosen)


def _columns(number: int, job: ElasticJob, gpus: Mapping[str, float]) -> list[_Column]:
    least = min(job.speeds[model][0] for model in job.speeds)
    found = []
    for model, speeds in job.speeds.items():
        fastest = 0.0
        for size, speed in enumerate(speeds, job.least):
            if speed <= fastest or size > gpus.get(model, 0.0):
                continue
            fastest = speed
            stays = size == job.now and model == job.model
            part = 1.0 if stays or not job.now else job.left_s / (job.left_s + job.restart_s)
            value = WAITING - (speed * part / least) ** POWER
            found.append(_Column(number, model, size, value))
    return found


def _placed(jobs: Sequence[ElasticJob], servers: Sequence[Server], chosen: Mapping[int, _Column]) -> Partition:
    """Those that stay as they are keep their places as far as all others of the model still fit in as few nodes."""
    on: dict[str, dict[str, int]] = {}
    for model in sorted({server.model for server in servers}):
        of_model = {number: column for number, column in chosen.items() if column.model == model}
        stay = {number for number, column in of_model.items() if _stays(jobs[number], column)}
        place = _pack(jobs, servers, of_model, stay)
        if place is None:
            place = _pack(jobs, servers, of_model, set())
        assert place is not None, "sizes of powers of two and whole nodes always fit"
        on |= place
    sizes = {job.job_id: chosen[number].size if number in chosen else 0 for number, job in enumerate(jobs)}
    return partition_of(sizes, on, jobs, servers, fair_shares(jobs, whole_of(servers)))


def _stays(job: ElasticJob, column: _Column) -> bool:
    return job.now == column.size and job.model == column.model


def _pack(
    jobs: Sequence[ElasticJob], servers: Sequence[Server], columns: Mapping[int, _Column], stay: set[int]
) -> dict[str, dict[str, int]] | None:
    model = next(iter(columns.values())).model if columns else ""
    free = {server.id: int(server.amounts[0]) for server in servers if server.model == model}
    whole = max(free.values(), default=0)
    on: dict[str, dict[str, int]] = {}
    for number in sorted(stay):
        on[jobs[number].job_id] = dict(jobs[number].on)
        for server_id, held in jobs[number].on.items():
            free[server_id] -= held
    for number in sorted(columns.keys() - stay, key=lambda number: (-columns[number].size, number)):
        left, here = columns[number].size, {}
        while left > 0:
            take = min(left, whole)
            fits = [server_id for server_id, there in free.items() if there >= take]
            if not fits:
                return None
            best = min(fits, key=lambda server_id: (free[server_id], server_id))
            free[best] -= take
            here[best] = take
            left -= take
        on[jobs[number].job_id] = here
    return on
