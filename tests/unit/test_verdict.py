"""Each verdict from the window that shows it, the order among them, and who is named when others wait."""

import pytest
from msgspec import structs

from tests.support.builders import GIB
from weft.tuning.cause import StandingVerdicts, judge
from weft.tuning.verdict import SAMPLES_MIN, Verdict, read
from weft.tuning.window import JobWindow, Window

V = Verdict
FINE: dict[str, object] = {
    "samples": 10,
    "cpus_used": 0.7,
    "cpus_p95": 0.8,
    "cpus_limit": 1.0,
    "cpu_throttled": 0.0,
    "memory_used": GIB // 2,
    "memory_limit": GIB,
}
GPU: dict[str, object] = {"gpus": 1, "gpu_utilisation": 0.4}


def window(rank: int = 0, role: str = "worker", **fields: object) -> Window:
    return Window(rank=rank, role=role, **{**FINE, **fields})  # type: ignore[arg-type]


def paced(**phases: float) -> dict[str, object]:
    return {"speed": 2.0, "steps_rate": 2.0, "step_seconds": 0.5, "phases": phases}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (V.HEALTHY, {}),
        (V.UNKNOWN, {"samples": SAMPLES_MIN - 1}),
        (V.UNKNOWN, {"cpus_used": None}),
        # memory
        (V.MEMORY_BOUND, {"memory_used": int(0.93 * GIB)}),
        (V.MEMORY_BOUND, {"memory_failures_rate": 5.0, "major_faults_rate": 100.0}),
        (V.MEMORY_BOUND, {"memory_failures_rate": 5.0, "memory_pressure": 0.2}),
        (V.MEMORY_BOUND, {"major_faults_rate": 100.0, "memory_pressure": 0.2}),  # of a kernel that counts no failures
        (V.HEALTHY, {"major_faults_rate": 100.0}),  # and it has room
        (V.MEMORY_BOUND, {"oom_kills": 1}),
        (V.HEALTHY, {"memory_failures_rate": 5.0}),  # page cache that nobody misses
        (V.HEALTHY, {"memory_limit": None, "memory_used": 10 * GIB}),
        # GPU
        (V.GPU_BOUND, {"gpus": 1, "gpu_utilisation": 0.95}),
        (V.GPU_BOUND, {"gpus": 1, "gpu_utilisation": 0.95, "cpu_throttled": 0.6}),
        (V.GPU_BOUND, {"gpus": 1, "gpu_utilisation": 0.95, "memory_used": int(0.93 * GIB)}),
        (V.GPU_BOUND, {"gpus": 1, "gpu_utilisation": 0.85, "dram_active": 0.8}),
        (V.MEMORY_BOUND, {"gpus": 1, "gpu_utilisation": 0.95, "memory_failures_rate": 5.0, "memory_pressure": 0.5}),
        (V.HEALTHY, {"gpus": 1, "gpu_utilisation": 0.95, **paced(t_wait=0.2)}),  # spins while it waits for others
        (V.HEALTHY, {"gpus": 1, "emulated": True}),  # nothing is known of its use
        # input of a GPU
        (V.INPUT_BOUND, {**GPU, **paced(t_data=0.2)}),
        (V.INPUT_BOUND, {**GPU, **paced(t_data=0.2), "cpu_throttled": 0.9, "cpus_used": 0.99}),
        (V.CPU_QUOTA_BOUND, {**GPU, "cpu_throttled": 0.9, "cpus_used": 0.99}),
        # CPU
        (V.CPU_QUOTA_BOUND, {"cpu_throttled": 0.3}),
        (V.CPU_QUOTA_BOUND, {"cpus_used": 0.9, "cpu_throttled": 0.1}),
        (V.CPU_QUOTA_BOUND, {"cpus_used": 0.9, "cpu_throttled": None}),
        (V.HEALTHY, {"cpus_used": 0.9, "cpu_throttled": 0.0}),  # a lone thread near a limit of one core
        (V.HEALTHY, {"cpu_throttled": 0.9, "cpus_used": 0.1, "cpus_limit": 0.35}),  # rare bursts
        (V.HEALTHY, {"cpus_limit": None, "cpu_throttled": None}),
        (V.CPU_QUOTA_BOUND, {"cpu_throttled": 0.3, "cpu_pressure": 0.9}),
        (V.CPU_CONTENDED, {"cpu_pressure": 0.3}),
        (V.CPU_CONTENDED, {"host_cpus": 2.0, "host_cpus_used": 2.0, "host_cpu_pressure": 0.5}),
        (V.HEALTHY, {"host_cpus": 2.0, "host_cpus_used": 1.0, "host_cpu_pressure": 0.5}),
        (V.HEALTHY, {"host_cpus": 2.0, "host_cpus_used": 2.0}),
        # disk
        (V.IO_BOUND, {"disk_pressure": 0.2}),
        (V.IO_BOUND, {"blocked": 0.5}),
        (V.IO_BOUND, {"host_disk_pressure": 0.3, "disk_read_rate": 50e6}),
        (V.HEALTHY, {"host_disk_pressure": 0.3}),  # somebody else's
        (V.IO_BOUND, {"disk_pressure": 0.2, **paced(t_data=0.3)}),
        # network
        (V.NETWORK_BOUND, {"network_send_rate": 2.2e6, "egress": 2_500_000}),
        (V.HEALTHY, {"network_send_rate": 2.2e6, "egress": 25_000_000}),
        (V.HEALTHY, {"network_send_rate": 1e9}),
        (V.NETWORK_BOUND, {"network_send_rate": 5e6, "network_resent_rate": 200.0}),
        # a lone thread, input, waste
        (V.LAUNCH_BOUND, {**GPU, "busiest_thread": 0.98, "cpus_limit": 4.0, "cpus_used": 1.2, "cpus_p95": 3.0}),
        (V.HEALTHY, {"busiest_thread": 0.98, "cpus_used": 0.98}),
        (V.INPUT_BOUND, paced(t_data=0.2)),
        (V.HEALTHY, paced(t_data=0.05)),
        (V.OVER_PROVISIONED, {"cpus_limit": 2.0, "cpus_used": 0.5, "cpus_p95": 0.6}),
        (V.HEALTHY, {"cpus_limit": 2.0, "cpus_used": 0.5, "cpus_p95": 1.9}),  # it has busy seconds
        (V.HEALTHY, {"cpus_limit": 0.3, "cpus_used": 0.1, "cpus_p95": 0.12}),  # not worth it
    ],
)
def test_one_rank(code: Verdict, fields: dict[str, object]) -> None:
    reading = read(window(**fields))
    assert reading.code is code
    assert reading.sentence
    if code not in (V.HEALTHY, V.UNKNOWN):
        assert reading.numbers


def test_a_straggler_is_one_that_nothing_else_explains() -> None:
    slow = window(step_seconds=0.65)
    assert read(slow, 0.5).code is V.STRAGGLER
    assert read(slow, 0.6).code is V.HEALTHY
    assert read(structs.replace(slow, cpu_throttled=0.9), 0.5).code is V.CPU_QUOTA_BOUND
    assert read(structs.replace(slow, gpus=1, gpu_utilisation=0.97), 0.5).code is V.STRAGGLER


def judged(*ranks: Window) -> object:
    return judge(JobWindow(job_id="j", epoch=1, began=0.0, ended=10.0, ranks=ranks))


def test_the_starved_server_is_named_and_not_those_who_wait_for_it() -> None:
    server = window(0, "ps", cpus_limit=0.4, cpus_used=0.39, cpus_p95=0.4, cpu_throttled=0.93)
    idle = {"cpus_limit": 2.0, "cpus_used": 0.2, "cpus_p95": 0.3, **paced(t_wait=0.4)}
    found = judge(
        JobWindow(job_id="j", epoch=1, began=0.0, ended=10.0, ranks=(server, window(1, **idle), window(2, **idle)))
    )
    assert (found.job.code, found.rank, found.role) == (V.CPU_QUOTA_BOUND, 0, "ps")
    assert "ps rank 0 holds it back" in found.job.sentence
    assert [found.ranks[rank].code for rank in (1, 2)] == [V.HEALTHY, V.HEALTHY]
    assert "waits for ps rank 0" in found.ranks[1].sentence


def test_of_two_held_back_the_one_that_loses_most_is_named() -> None:
    ranks = (window(0, "ps", cpu_throttled=0.4), window(1, cpu_throttled=0.9), window(2, cpu_throttled=0.9))
    found = judge(JobWindow(job_id="j", epoch=1, began=0.0, ended=10.0, ranks=ranks))
    assert (found.rank, found.role, found.job.numbers["alike"]) == (1, "worker", 2.0)


def test_a_cap_met_in_bursts_is_seen_by_how_long_the_exchange_takes() -> None:
    server = window(0, "ps", network_send_rate=1.6e6, egress=2_500_000, **paced(t_push=0.35))
    worker = window(1, **paced(t_pull=0.35))
    found = judge(JobWindow(job_id="j", epoch=1, began=0.0, ended=10.0, ranks=(server, worker)))
    assert (found.job.code, found.role) == (V.NETWORK_BOUND, "ps")
    starved = structs.replace(server, cpu_throttled=0.9)
    found = judge(JobWindow(job_id="j", epoch=1, began=0.0, ended=10.0, ranks=(starved, worker)))
    assert found.job.code is V.CPU_QUOTA_BOUND


def test_a_server_of_one_busy_thread_is_not_the_network() -> None:
    server = window(0, "ps", busiest_thread=0.97, cpus_used=1.0, cpus_limit=2.0)
    found = judge(JobWindow(job_id="j", epoch=1, began=0.0, ended=10.0, ranks=(server, window(1, **paced(t_pull=0.4)))))
    assert (found.job.code, found.role) == (V.LAUNCH_BOUND, "ps")


@pytest.mark.parametrize(
    ("code", "ranks"),
    [
        (V.HEALTHY, [{}, {}]),
        (V.HEALTHY, [{}, {"samples": 0}]),
        (V.UNKNOWN, [{"samples": 0}, {"samples": 0}]),
        (V.GPU_BOUND, [{"gpus": 1, "gpu_utilisation": 0.95}, {"gpus": 1, "gpu_utilisation": 0.97}]),
        (V.OVER_PROVISIONED, [{"cpus_limit": 4.0}, {"gpus": 1, "gpu_utilisation": 0.97}]),
    ],
)
def test_a_job_that_nothing_holds_back(code: Verdict, ranks: list[dict[str, object]]) -> None:
    windows = tuple(window(rank, **fields) for rank, fields in enumerate(ranks))
    found = judge(JobWindow(job_id="j", epoch=1, began=0.0, ended=10.0, ranks=windows))
    assert (found.job.code, found.rank) == (code, -1)


def test_a_verdict_stands_when_two_windows_in_a_row_agree() -> None:
    standing = StandingVerdicts()
    fine, starved = window(), window(cpu_throttled=0.9)
    said = []
    for number, seen in enumerate((starved, starved, fine, starved, fine, fine)):
        standing.take(judge(JobWindow(job_id="j", epoch=1, began=0.0, ended=1.0, ranks=(seen,))), at=10.0 * number)
        said.append(None if standing.job is None else standing.job.reading.code)
    starved_code = V.CPU_QUOTA_BOUND
    assert said == [None, starved_code, starved_code, starved_code, starved_code, V.HEALTHY]
    assert standing.job is not None
    assert (standing.job.since, standing.job.times) == (40.0, 2)
