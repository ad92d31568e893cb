"""Dorm's optimiser, held against every partition that there is."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil
from random import Random

import pytest

from tests.bench.partition.published import dorm
from tests.support.partitions import elastic_job, held, server
from tests.support.tier import some
from weft.planning.partition import ElasticJob, Rules, Server
from weft.planning.partition.fair import fair_shares, unfairness, whole_of
from weft.planning.partition.outcome import utilisation

Counts = tuple[tuple[int, ...], ...]  # by job and server


def instance(dice: Random) -> tuple[list[ElasticJob], list[Server], Rules]:
    servers = [
        server(f"s{j}", gpus=dice.choice((0, 1, 2)), cpus=dice.choice((2, 3, 4)), memory=dice.choice((3, 4)))
        for j in range(dice.choice((1, 2, 2, 3)))
    ]
    jobs = []
    free = {it.id: list(it.amounts) for it in servers}
    for i in range(dice.choice((1, 2, 3))):
        each = (float(dice.choice((0, 0, 1))), float(dice.choice((1, 2))), float(dice.choice((0, 1, 2))))
        least = dice.choice((1, 1, 2))
        most = least + dice.choice((0, 1, 2))
        on = {} if dice.random() < 0.4 else held(each, least, most, free, dice)
        jobs.append(
            elastic_job(f"j{i}", each, least, most, on=on, weight=dice.choice((1.0, 2.0)), fixed=dice.random() < 0.1)
        )
    return jobs, servers, Rules(theta1=dice.choice((0.05, 0.1, 0.2, 1.0)), theta2=dice.choice((0.1, 0.4, 1.0)))


def every(jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> Iterator[Counts]:
    """All that is allowed."""
    whole = whole_of(servers)
    resources = sum(1 for k in range(3) if whole[k] and any(job.each[k] for job in jobs))
    running = [job for job in jobs if job.now]
    for counts in product(*(list(_rows(job, servers)) for job in jobs)):
        held = [
            [sum(row[j] * job.each[k] for row, job in zip(counts, jobs, strict=True)) for k in range(3)]
            for j in range(len(servers))
        ]
        if any(held[j][k] > servers[j].amounts[k] for j in range(len(servers)) for k in range(3)):
            continue
        sizes = {job.job_id: sum(row) for row, job in zip(counts, jobs, strict=True)}
        if unfairness(sizes, jobs, whole, fair_shares(jobs, whole)) > ceil(rules.theta1 * 2 * resources - 1e-9) + 1e-7:
            continue
        if _changed(counts, jobs, servers) <= ceil(rules.theta2 * len(running) - 1e-9):
            yield counts


def _rows(job: ElasticJob, servers: Sequence[Server]) -> Iterator[tuple[int, ...]]:
    if job.fixed:
        yield tuple(job.on.get(server.id, 0) for server in servers)
        return
    for row in product(range(job.most + 1), repeat=len(servers)):
        if job.least <= sum(row) <= job.most:
            yield row


def _changed(counts: Counts, jobs: Sequence[ElasticJob], servers: Sequence[Server]) -> int:
    return sum(
        1
        for row, job in zip(counts, jobs, strict=True)
        if job.now and any(job.on.get(server.id, 0) != count for server, count in zip(servers, row, strict=True))
    )


def sizes_of(counts: Counts, jobs: Sequence[ElasticJob]) -> dict[str, int]:
    return {job.job_id: sum(row) for row, job in zip(counts, jobs, strict=True)}


def counts_of(found: Mapping[str, Mapping[str, int]], jobs: Sequence[ElasticJob], servers: Sequence[Server]) -> Counts:
    return tuple(tuple(found.get(job.job_id, {}).get(server.id, 0) for server in servers) for job in jobs)


@pytest.mark.parametrize("block", some(2, range(10)))
def test_dorm_finds_what_trying_everything_finds(block: int) -> None:
    seen = {"best": 0, "kept": 0}
    for seed in range(block * 30, block * 30 + 30):
        jobs, servers, rules = instance(Random(seed))
        allowed = set(every(jobs, servers, rules))
        found = dorm(jobs, servers, rules)
        assert (found.kept != "") == (not allowed), (seed, found)
        if found.kept:
            assert found.sizes == {job.job_id: job.now for job in jobs}
            seen["kept"] += 1
            continue
        assert counts_of(found.on, jobs, servers) in allowed, (seed, found)
        whole = whole_of(servers)
        best = max(utilisation(sizes_of(counts, jobs), jobs, whole) for counts in allowed)
        assert found.utilisation == pytest.approx(best, abs=1e-3), (seed, found)
        seen["best"] += 1
    assert all(seen.values()), seen
