"""Dorm's optimiser, as published: containers per job and server, as much of the servers given away as the bounds allow.

    most   U = sum over the resources of what is given away, in parts of what there is
    with   what each server has, least and most containers of every job
           F = sum over the jobs of |share - fair share| <= ceil(theta1 x 2 x resources)
           changed jobs <= ceil(theta2 x jobs that run)

Every job runs, or nothing changes: where not all can have their least within the bounds, the current partition stays
until a job ends. A job counts as changed if its number on any server changes. It is the baseline; `weft` is the better
planner.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor

from msgspec import Struct

from weft.planning.partition import ElasticJob, Partition, Rules, Server
from weft.planning.partition.fair import FairShare, fair_shares, resources, whole_of
from weft.planning.partition.outcome import kept, partition_of
from weft.planning.partition.solving import Ended, LinearProgram, Numbers, SolverLimits
from weft.planning.shares import Amounts

GAP = 0.0001
BRANCHES = 20
ROUNDING = 1e-9  # 0.1 x 30 is 3 jobs, not 4


class _Variables(Struct, frozen=True):
    """`counts`: by job and server, how many containers. `changed`: by job, if it runs: 1 if a count changes."""

    counts: list[list[int]]
    changed: dict[str, int]


def dorm(jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> Partition:
    whole = whole_of(servers)
    if not jobs or not any(whole):
        return kept(jobs, servers, "" if not jobs else "there is no server")
    program = LinearProgram()
    variables = _variables(program, jobs, servers, whole)
    _servers_hold(program, variables, jobs, servers)
    fair = fair_shares(jobs, whole)
    _fair_enough(program, variables, jobs, whole, fair, rules)
    _few_changes(program, variables, jobs, servers, rules)
    found = program.maximise(SolverLimits(gap=GAP, branches=BRANCHES))
    if found.values is None:
        if found.ended is Ended.INFEASIBLE:
            return kept(jobs, servers, "no partition gives every job its least within theta1 and theta2")
        return kept(jobs, servers, "no partition was found in time")
    on = {
        job.job_id: _containers(counts, servers, found.values)
        for job, counts in zip(jobs, variables.counts, strict=True)
    }
    sizes = {job_id: sum(held.values()) for job_id, held in on.items()}
    return partition_of(sizes, on, jobs, servers, fair)


def _containers(counts: Sequence[int], servers: Sequence[Server], values: Numbers) -> dict[str, int]:
    numbers = ((server.id, round(values[count])) for count, server in zip(counts, servers, strict=True))
    return {server_id: number for server_id, number in numbers if number}


def _variables(
    program: LinearProgram, jobs: Sequence[ElasticJob], servers: Sequence[Server], whole: Amounts
) -> _Variables:
    counts = []
    for job in jobs:
        value = sum(each / there for each, there in zip(job.each, whole, strict=True) if there > 0)
        row = []
        for server in servers:
            fixed = job.on.get(server.id, 0)
            most = fixed if job.fixed else min(job.most, _fits(job.each, server.amounts))
            row.append(program.variable(value=value, lower=fixed if job.fixed else 0, upper=most))
        least, most = (job.now, job.now) if job.fixed else (job.least, job.most)
        program.row(row, [1.0] * len(row), least=least, most=most)
        counts.append(row)
    changed = {job.job_id: program.variable() for job in jobs if job.now}
    return _Variables(counts, changed)


def _fits(each: Amounts, amounts: Amounts) -> int:
    return min((floor(there / one + ROUNDING) for one, there in zip(each, amounts, strict=True) if one > 0), default=0)


def _servers_hold(
    program: LinearProgram, variables: _Variables, jobs: Sequence[ElasticJob], servers: Sequence[Server]
) -> None:
    """What a job's other roles hold may be divided over the servers in any parts."""
    parts = {job.job_id: [program.variable(whole=False) for _ in servers] for job in jobs if any(job.beside)}
    for row in parts.values():
        program.row(row, [1.0] * len(row), least=1.0, most=1.0)
    for k in range(3):
        unit = max((server.amounts[k] for server in servers), default=0.0) or 1.0
        for j, server in enumerate(servers):
            terms = [(counts[j], job.each[k] / unit) for job, counts in zip(jobs, variables.counts, strict=True)]
            terms += [(parts[job.job_id][j], job.beside[k] / unit) for job in jobs if job.job_id in parts]
            terms = [(index, factor) for index, factor in terms if factor > 0]
            program.row([index for index, _ in terms], [factor for _, factor in terms], most=server.amounts[k] / unit)


def _fair_enough(
    program: LinearProgram,
    variables: _Variables,
    jobs: Sequence[ElasticJob],
    whole: Amounts,
    fair: Mapping[str, FairShare],
    rules: Rules,
) -> None:
    distances = []
    for job, counts in zip(jobs, variables.counts, strict=True):
        each, beside = _dominant(job, whole)
        distance = program.variable(upper=float("inf"), whole=False)
        distances.append(distance)
        off = fair[job.job_id].share - beside
        # distance >= share - fair share, and distance >= fair share - share
        program.row([*counts, distance], [*[each] * len(counts), -1.0], most=off)
        program.row([*counts, distance], [*[each] * len(counts), 1.0], least=off)
    bound = ceil(rules.theta1 * 2 * resources(jobs, whole) - ROUNDING)
    program.row(distances, [1.0] * len(distances), most=bound)


def _dominant(job: ElasticJob, whole: Amounts) -> tuple[float, float]:
    """What each container, and what its other roles, hold of the resource that dominates at the job's largest size."""
    parts = [(job.each[k] / there, job.beside[k] / there) for k, there in enumerate(whole) if there > 0]
    return max(parts, key=lambda part: job.most * part[0] + part[1])


def _few_changes(
    program: LinearProgram, variables: _Variables, jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules
) -> None:
    for job, counts in zip(jobs, variables.counts, strict=True):
        changed = variables.changed.get(job.job_id)
        if changed is None:
            continue
        if not job.on.keys() <= {server.id for server in servers}:
            program.lower[changed] = 1.0  # it held containers on a server that is gone
        for count, server in zip(counts, servers, strict=True):
            was = job.on.get(server.id, 0)
            up, down = program.upper[count] - was, was - program.lower[count]
            if up > 0:
                program.row([count, changed], [1.0, -up], most=was)
            if down > 0:
                program.row([count, changed], [1.0, down], least=was)
    running = list(variables.changed.values())
    program.row(running, [1.0] * len(running), most=ceil(rules.theta2 * len(running) - ROUNDING))
