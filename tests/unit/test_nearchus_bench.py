"""The bench of the tuner: its jobs learn and tell their steps, its sides spend alike, its page tells what ran."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.bench.nearchus import jobs
from tests.bench.nearchus.jobs.ringed import Ring
from tests.bench.nearchus.measured import Measured, Traced, Waited
from tests.bench.nearchus.recipes import RECIPES
from tests.bench.nearchus.recording import TOGETHER_CPUS, batches
from tests.bench.nearchus.report import aims, compared, of_side, queues
from tests.bench.nearchus.scenarios import BUDGET, CAPPED_TOTAL, SCENARIOS
from weft.domain.quantity import size_bytes
from weft.domain.sizes import how_resized, is_elastic
from weft.domain.spec import ResizeHow
from weftd.executor.logs.progress import pairs

STEPS = 40
S1 = SCENARIOS["S1"]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def gang(
    folder: Path, module: str, roles: dict[str, int], *arguments: str
) -> dict[tuple[str, int], list[dict[str, float]]]:
    """Every rank as a process of this host, to its end: what each told, step by step."""
    ports = iter(free_ports(sum(roles.values())))
    cluster = {role: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for role, count in roles.items()}
    ranks = []
    for role, addresses in cluster.items():
        for number, address in enumerate(addresses):
            told = folder / f"{role}-{number}"
            env = {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(Path(jobs.__file__).parents[1]),
                "OPENBLAS_NUM_THREADS": "1",
                "WEFT_PROGRESS": str(told),
                "WEFT_ROLE": role,
                "WEFT_ROLE_RANK": str(number),
                "MASTER_PORT": address.rpartition(":")[2],
                "TF_CONFIG": json.dumps({"cluster": cluster}),
            }
            command = [sys.executable, "-P", "-m", module, "--steps", str(STEPS), "--width", "32", *arguments]
            ranks.append(((role, number), told, subprocess.Popen(command, env=env, stderr=subprocess.PIPE)))
    try:
        errors = [process.communicate(timeout=60)[1].decode() for _, _, process in ranks]
    finally:
        for _, _, process in ranks:
            process.kill()
            process.communicate()
    assert [process.returncode for _, _, process in ranks] == [0] * len(ranks), errors
    return {key: [pairs(line) for line in told.read_text().splitlines()] for key, told, _ in ranks}


def test_training_with_servers_learns_and_every_rank_tells_its_steps(tmp_path: Path) -> None:
    told = gang(tmp_path, "jobs.served", {"ps": 2, "worker": 2}, "--layers", "2", "--batch", "16", "--worker-work", "2")
    for lines in told.values():
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for number in range(2):
        worker = told["worker", number]
        assert worker[-1]["samples"] == STEPS * 16 * 2
        assert {"t_data", "t_compute", "t_push", "t_wait", "t_pull"} <= worker[-1].keys()
        assert "samples" not in told["ps", number][-1]
        assert {"t_wait", "t_pull", "t_compute", "t_push"} <= told["ps", number][-1].keys()
    losses = [line["loss"] for line in told["worker", 0]]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_a_server_that_makes_updates_orthogonal_learns_too(tmp_path: Path) -> None:
    told = gang(tmp_path, "jobs.served", {"ps": 1, "worker": 2}, "--batch", "16", "--server-work", "5")
    losses = [line["loss"] for line in told["worker", 0]]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_training_around_a_ring_learns(tmp_path: Path) -> None:
    told = gang(tmp_path, "jobs.ringed", {"worker": 3}, "--batch", "16", "--steps", "200")
    for number in range(3):
        losses = [line["loss"] for line in told["worker", number]]
        assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


class Live:
    """Ranks as processes of this host that are shown who the others are, as a node does."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder, self._arguments = folder, arguments
        self._file = folder / "members.json"
        self._ranks: dict[int, tuple[str, int, subprocess.Popen[bytes]]] = {}
        self._changes = 0
        self._gone: set[int] = set()

    def change(self, *, join: Sequence[str] = (), leave: Sequence[int] = ()) -> None:
        ports, first = free_ports(len(join)), max(self._ranks, default=-1) + 1
        self._gone |= set(leave)
        roles = {rank: (role, port) for rank, (role, port, _) in self._ranks.items() if rank not in self._gone}
        roles |= {first + number: (role, ports[number]) for number, role in enumerate(join)}
        told = [{"role": role, "rank": n, "address": "127.0.0.1", "port": port} for n, (role, port) in roles.items()]
        self._changes += 1
        new = self._folder / "members.new"
        new.write_text(json.dumps({"changes": self._changes, "ranks": told, "least": 2, "most": 9}))
        new.rename(self._file)
        for rank in leave:
            self._ranks[rank][2].terminate()
        for rank in range(first, first + len(join)):
            self._ranks[rank] = (*roles[rank], self._start(rank, roles[rank][0]))

    def _start(self, rank: int, role: str) -> subprocess.Popen[bytes]:
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(jobs.__file__).parents[1]),
            "OPENBLAS_NUM_THREADS": "1",
            "WEFT_PROGRESS": str(self._folder / f"told-{rank}"),
            "WEFT_MEMBERS": str(self._file),
            "WEFT_RANK": str(rank),
            "WEFT_ROLE": role,
            "WEFT_ROLE_RANK": "0",
        }
        command = [sys.executable, "-P", "-m", "jobs.served", "--width", "32", "--batch", "16", *self._arguments]
        return subprocess.Popen(command, env=env)

    def told(self, rank: int) -> list[dict[str, float]]:
        path = self._folder / f"told-{rank}"
        return [pairs(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until_steps(self, *ranks: int, more: int = 20) -> None:
        """Until each of them told so many more steps."""
        wanted = {rank: len(self.told(rank)) + more for rank in ranks}
        until = time.monotonic() + 60.0
        while any(len(self.told(rank)) < count for rank, count in wanted.items()):
            assert time.monotonic() < until, {rank: len(self.told(rank)) for rank in self._ranks}
            assert all(self._ranks[rank][2].poll() is None for rank in ranks)
            time.sleep(0.05)

    def end(self) -> None:
        for _, _, process in self._ranks.values():
            process.kill()
            process.communicate()


@pytest.mark.parametrize("arguments", [("--layers", "2"), ("--layers", "1"), ("--layers", "3", "--server-work", "3")])
def test_workers_and_servers_come_and_go_and_it_learns_on(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    live = Live(tmp_path, *arguments)
    try:
        live.change(join=["ps", "worker", "worker"])
        live.until_steps(0, 1, 2)
        live.change(join=["worker"])
        live.until_steps(0, 1, 2, 3)
        live.change(join=["ps"])
        live.until_steps(0, 1, 2, 3, 4)
        live.change(leave=[3])
        live.until_steps(0, 1, 2, 4)
        live.change(leave=[4], join=["worker"])
        live.until_steps(0, 1, 2, 5)
        told = live.told(1)
        losses = [line["loss"] for line in told]
        assert sum(losses[-5:]) < sum(losses[:5])
        assert told[-1]["step"] == len(told), "the core goes on counting"
    finally:
        live.end()


def test_a_ring_leaves_every_rank_with_the_sum_of_all() -> None:
    ports = free_ports(3)
    addresses = [("127.0.0.1", port) for port in ports]
    vectors = [np.arange(10, dtype=np.float32) * (rank + 1) for rank in range(3)]

    def one(rank: int) -> None:
        ring = Ring(addresses, rank, ports[rank], lambda _: None)
        ring.sum(vectors[rank])
        ring.close()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for vector in vectors:
        assert vector.tolist() == [6.0 * number for number in range(10)]


@pytest.mark.parametrize("name", ["S1", "S1-most", "S2", "S2-most"])
def test_every_split_of_a_scenario_spends_the_same(name: str) -> None:
    scenario = SCENARIOS[name]
    for share in (scenario.equal, scenario.asked, *scenario.grid):
        spent = sum(share.cpus[role] * count for role, count in scenario.replicas.items())
        assert spent == pytest.approx(BUDGET, abs=0.01)
    assert scenario.tuning.cpus == BUDGET


def test_every_side_of_s3_may_send_the_same_in_all() -> None:
    scenario = SCENARIOS["S3"]
    assert size_bytes(scenario.tuning.egress_total or "0B") == 1000 * CAPPED_TOTAL
    for share in (scenario.equal, scenario.asked, *scenario.grid):
        sent = sum(share.egress[role] * count for role, count in scenario.replicas.items())
        assert CAPPED_TOTAL - 4 <= sent <= CAPPED_TOTAL


@pytest.mark.parametrize("name", SCENARIOS)
def test_ours_begins_with_the_equal_split_and_may_have_no_more_than_the_oracle(name: str) -> None:
    scenario = SCENARIOS[name]
    spec = scenario.spec("image", scenario.equal, tuned=True)
    assert {role: part.cpus for role, part in spec.roles.items()} == dict(scenario.equal.cpus)
    if scenario.tuning.egress is not None:
        assert size_bytes(scenario.tuning.egress) == 1000 * max(share.egress["ps"] for share in scenario.grid)
    if scenario.tuning.memory is not None:
        assert size_bytes(scenario.tuning.memory) == max(size_bytes(share.memory) for share in scenario.grid)


@pytest.mark.parametrize("name", ["S1", "S2", "S3", "S3-slack"])
def test_who_may_outscale_begins_alike_and_may_have_no_more_cores(name: str) -> None:
    scenario = SCENARIOS[name]
    spec = scenario.spec("image", scenario.equal, tuned=True, outscales=True)
    fixed = scenario.spec("image", scenario.equal, tuned=True)
    assert spec.tuning == fixed.tuning
    assert {role: part.replicas.want for role, part in spec.roles.items()} == dict(scenario.replicas)
    assert {role: part.replicas.most for role, part in spec.roles.items()} == dict(scenario.most)
    assert how_resized(spec) is ResizeHow.LIVE
    assert not is_elastic(fixed)


def test_recipes_beside_each_other_leave_the_machine_room() -> None:
    made = batches(None)
    assert sum(len(batch) for batch in made) == len(RECIPES)
    for batch in made:
        if len(batch) > 1:
            assert sum(recipe.uses or 99.0 for recipe in batch.values()) <= TOGETHER_CPUS


# the page


def run(side: str, speed: float, *, elsewhere: float = 0.1, settled: float | None = None) -> Measured:
    return Measured(
        scenario="S1",
        side=side,
        rep=0,
        at=0.0,
        seconds=40.0,
        speed=speed,
        settled=settled or speed,
        elsewhere=elsewhere,
        cpus_used=1.0,
        cpus=S1.equal.cpus,
        memory=S1.equal.memory,
    )


RUNS = [run("equal", 100.0), run("proportional", 60.0), run("ours", 175.0, settled=200.0), run("oracle", 210.0)]


def every(**of: list[Measured]) -> dict[str, list[Measured]]:
    return {**{name: [] for name in (*SCENARIOS, "S6")}, **of}


def test_a_gain_is_told_against_the_better_baseline_and_with_the_search() -> None:
    assert "| ours | begins with 1 ps × 0.4, 3 worker × 0.4 | 175 (175–175) | +75.0 % |" in compared(S1, RUNS)


def test_an_aim_that_is_not_reached_is_said_to_be_not_reached() -> None:
    assert "| +71.4 % | S1 +75.0 % | yes |" in aims(every(S1=RUNS), {})
    slower = [*RUNS[:2], run("ours", 150.0, settled=180.0), RUNS[3]]
    told = aims(every(S1=slower), {})
    assert "| +71.4 % | S1 +50.0 % | **no** |" in told
    assert "| within 10% | S1 \N{MINUS SIGN}14.3 % | **no** |" in told
    assert "not run" in told


def test_more_replicas_are_compared_with_ours() -> None:
    assert "more replicas" not in aims(every(S1=RUNS), {})
    told = aims(every(S1=[*RUNS, run("outscaled", 168.0)], S2=[*RUNS, run("outscaled", 180.0)]), {})
    assert "| no less | S1 \N{MINUS SIGN}4.0 %, S2 +2.9 % | **no** |" in told
    assert "| S2 with them: speed to the best baseline | +71.4 % | +80.0 % | yes |" in told
    assert "| outscaled | begins with 1 ps × 0.4" in compared(S1, [*RUNS, run("outscaled", 168.0)])


def test_quiet_time_that_is_too_short_reaches_no_aim() -> None:
    short = aims(every(S6=[run("ours", 1.0)]), {})
    assert "| 0 in 30 minutes | 0 in 1 minutes | – |" in short


def test_a_disturbed_run_is_left_out_where_there_is_another() -> None:
    noisy, calm = run("ours", 1.0, elsewhere=0.9), run("ours", 2.0)
    assert of_side([noisy, calm], "ours") == [calm]
    assert of_side([noisy], "ours") == [noisy]


def test_queues_are_compared_by_their_means() -> None:
    def trace(side: str, queued: float, whole: float) -> Traced:
        jobs = (Waited(queued=0.0, whole=whole), Waited(queued=2 * queued, whole=whole))
        return Traced(scenario="S4", side=side, rep=0, at=0.0, seconds=9.0, elsewhere=0.1, jobs=jobs)

    traces = [trace("off", 30.0, 100.0), trace("reclaim", 9.0, 60.0), trace("reclaim", 12.0, 64.0)]
    told = queues("six jobs", traces)
    assert (
        "| reclaim | 10.5 (9.0–12.0), \N{MINUS SIGN}65.0 % | 62.0 (60.0–64.0), \N{MINUS SIGN}38.0 % | 9 s | 2 |" in told
    )
    reached = aims(every(), {"S4": traces})
    assert (
        "S4: mean queueing, 0.9 cores, for 60 s (3000 steps) | \N{MINUS SIGN}67.8 % | \N{MINUS SIGN}65.0 % | **no** |"
        in reached
    )
    assert (
        "S4: mean JCT, 0.9 cores, for 60 s (3000 steps) | \N{MINUS SIGN}35.6 % | \N{MINUS SIGN}38.0 % | yes |"
        in reached
    )
