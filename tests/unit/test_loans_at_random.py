"""Services and training whose sizes, nodes and runs change at random: no GPU is kept for nobody, nothing stays owed."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.support.builders import capacity
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World
from tests.support.tier import some
from tests.unit.test_loans import elastic, restarting, service

STEPS = 100
QUIET_ROUNDS, QUIET_SECONDS = 60, 10.0


def cluster(thrown: random.Random) -> World:
    w = World(
        *(ScriptedNode(f"node-{n}", capacity(gpus=thrown.choice([1, 2, 4]))) for n in range(thrown.randint(1, 3)))
    )
    for node_id in w.nodes:
        w.sync(node_id)
    for number in range(thrown.randint(3, 9)):
        share = {"share": {"request": thrown.choice([0.1, 0.25, 0.5]), "memory": "1GiB"}, "gpus": 0}
        part = share if thrown.random() < 0.4 else {}
        w.submit(f"j-{number}", gpus=0 if part else thrown.choice([1, 1, 2]), spec=spec(thrown, part))
        w.round()
    return w


def spec(thrown: random.Random, part: dict[str, Any]) -> dict[str, Any]:
    priority = thrown.choice([0, 0, 0, 5, -5])
    made = thrown.choice(
        [
            service(want=thrown.randint(0, 2), most=thrown.randint(2, 6), least=0, priority=priority),
            elastic(want=thrown.randint(1, 4), priority=priority),
            restarting(want=thrown.randint(1, 4), priority=priority),
            {"priority": priority, "grace": "5s"},
        ]
    )
    return {**made, "role": {**made.get("role", {}), **part}}


def disturb(w: World, thrown: random.Random, silent: set[str]) -> None:
    job_id, node = thrown.choice(list(w.stored)), thrown.choice(list(w.nodes.values()))
    job = w.stored[job_id]
    match thrown.choices(["scale", "end", "stuck", "leader", "silent", "heal", ""], [35, 10, 5, 3, 3, 7, 37])[0]:
        case "scale" if not job.state.final:
            replicas = job.spec.roles["worker"].replicas
            w.scale(job_id, worker=thrown.randint(replicas.least, replicas.most))
        case "end" if node.live:
            node.end(thrown.choice(node.live), thrown.choice([0, 1, 143]))
        case "stuck":
            node.unkillable.update(key for key in node.live if thrown.random() < 0.3)
        case "leader":
            w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
        case "silent" if len(w.nodes) > 1:
            silent.add(node.node_id)
        case "heal":
            heal(w, silent)
        case _:
            pass


def heal(w: World, silent: set[str]) -> None:
    silent.clear()
    for node in w.nodes.values():
        node.unkillable.clear()


def check(w: World) -> None:
    """The GPUs that are kept for loans are those for which replicas wait. (`tick` and `sync` check the picture.)"""
    loans, kept = w.core._loans._loans, w.core.cluster_state.pool.kept
    waits = Counter(
        (one.place.node_id, gpu) for all_ in loans._awaited.values() for one in all_ for gpu in one.place.gpus
    )
    assert waits == Counter(loans._kept)
    assert len([name for name in kept if name.startswith("a loan")]) == len(waits)


@pytest.mark.parametrize("seed", some(3, range(16)))
def test_whatever_happens_no_gpu_is_kept_for_nobody_and_without_load_nothing_is_owed(seed: int) -> None:
    thrown = random.Random(seed)
    w, silent = cluster(thrown), set[str]()
    for _ in range(STEPS):
        disturb(w, thrown, silent)
        w.tick(thrown.choice([0.1, 0.5, 1.0, 1.0, 5.0, 20.0, 70.0]))
        for node_id in sorted(w.nodes.keys() - silent):
            if thrown.random() < 0.8:
                w.sync(node_id)
        check(w)
    heal(w, silent)
    services = [job_id for job_id, job in w.stored.items() if job.spec.is_service]
    for job_id in services:
        if not w.stored[job_id].state.final:
            w.scale(job_id, worker=0)
    for _ in range(QUIET_ROUNDS):
        w.now += QUIET_SECONDS
        w.round()
    check(w)
    assert not w.core._loans._loans._awaited
    assert [w.stored[job_id].loans for job_id in services] == [()] * len(services)
