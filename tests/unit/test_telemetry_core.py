"""Two readings make a sample, runs are found as their runtime left them, and gauges show the newest."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from weft.cgroups.counters import Traffic
from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.pipes import Inodes
from weftd.executor.runtime.process.records import RunRecord
from weftd.telemetry.metrics import NodeGauges
from weftd.telemetry.runs import DockerRuns, ProcessRuns
from weftd.telemetry.thinking.core import NodeCounters, Sampler
from weftd.telemetry.thinking.readings import FoundRun, HostReading, RunReading, ThreadUse


def host(at: float) -> HostReading:
    return HostReading(at=at, cpus=4, cpu_seconds=at, memory_total=8, memory_used=1, disk_total=0, disk_used=0)


def found(job_id: str = "job", *, pid: int = 7, rank: int = 0) -> FoundRun:
    return FoundRun(job_id=job_id, epoch=1, rank=rank, pid=pid, cgroups={})


def used(run: FoundRun, at: float, *, source: str = "cgroup2", **values: Any) -> RunReading:
    return RunReading(run=run, at=at, source=source, **values)


def samples(*readings: tuple[RunReading, ...]) -> list[tuple[RunSample, ...]]:
    sampler = Sampler(node_id="node-1", pool="default")
    return [
        sampler.sampled(NodeCounters(host=host(float(place)), runs=runs), (), at=100.0 + place).runs
        for place, runs in enumerate(readings)
    ]


def test_a_sample_says_whose_it_is_and_when_it_was() -> None:
    gpu = GpuSample(index=0, uuid="u", model="m")
    sampler = Sampler(node_id="node-1", pool="default", boot="b-1")
    sampled = sampler.sampled(NodeCounters(host=host(1.0)), (gpu,), at=99.0)
    expected = HostSample(cpus=4.0, memory_total=8, memory_used=1)
    assert sampled == NodeSampled(
        node_id="node-1", pool="default", at=99.0, host=expected, gpus=(gpu,), boot="b-1", seq=1
    )
    again = sampler.sampled(NodeCounters(host=host(2.0)), (gpu,), at=50.0)
    assert (again.boot, again.seq) == ("b-1", 2)


def test_a_runs_first_sample_has_no_rates_and_its_second_has() -> None:
    first, second = samples(
        (used(found(), 10.0, cpu_seconds=1.0, periods=(0, 0), disk=Traffic(0, 0), memory_used=5),),
        (used(found(), 12.0, cpu_seconds=4.0, periods=(5, 20), disk=Traffic(10, 20), memory_used=6),),
    )
    assert first == (RunSample(job_id="job", epoch=1, rank=0, source="cgroup2", memory_used=5),)
    assert second == (
        RunSample(
            job_id="job", epoch=1, rank=0, source="cgroup2", cpus_used=1.5, cpu_throttled=0.25, memory_used=6,
            disk_read_rate=5.0, disk_write_rate=10.0,
        ),
    )  # fmt: skip


def test_what_a_run_met_is_told_as_rates_and_what_is_in_force_as_it_is() -> None:
    before = used(found(), 10.0, memory_failures=5, major_faults=1, segments_resent=7, oom_kills=0)
    after = used(
        found(), 12.0, memory_failures=9, major_faults=1, segments_resent=10, oom_kills=1, cpus_limit=1.5,
        threads=ThreadUse(0.9, 0.25),
    )  # fmt: skip
    first, second = (runs[0] for runs in samples((before,), (after,)))
    assert (first.memory_failures_rate, first.major_faults_rate, first.network_resent_rate) == (None, None, None)
    assert (second.memory_failures_rate, second.major_faults_rate, second.network_resent_rate) == (2.0, 0.0, 1.5)
    assert (second.oom_kills, second.cpus_limit, second.busiest_thread, second.blocked) == (1, 1.5, 0.9, 0.25)


def test_measures_that_were_known_and_are_not_any_more_are_counted() -> None:
    sampler = Sampler(node_id="node-1", pool="default")
    for at, values in enumerate(({"oom_kills": 1, "periods": (0, 0)}, {"oom_kills": 1}, {}, {})):
        sampler.sampled(NodeCounters(host=host(float(at)), runs=(used(found(), float(at), **values),)), (), at=0.0)
    assert sampler.lost == 2


def test_a_run_that_changed_its_process_or_its_source_begins_anew() -> None:
    before = (used(found("a"), 1.0, cpu_seconds=1.0), used(found("b"), 1.0, cpu_seconds=1.0))
    after = (
        used(found("a", pid=8), 2.0, cpu_seconds=2.0),
        used(found("b"), 2.0, cpu_seconds=2.0, source="processes"),
    )
    assert [run.cpus_used for run in samples(before, after)[1]] == [None, None]


def test_the_runs_of_a_sample_are_in_order_and_those_that_have_gone_are_not_in_it() -> None:
    gone, *stay = (found("a"), found("b", rank=1), found("b", rank=0))
    _, second = samples(
        tuple(used(run, 1.0) for run in (gone, *stay)),
        tuple(used(run, 2.0) for run in stay),
    )
    assert [(run.job_id, run.rank) for run in second] == [("b", 0), ("b", 1)]


def leave(home: Path, name: str, record: object) -> None:
    folder = home / "runs" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json.new").write_text(record if isinstance(record, str) else json.dumps(record))
    (folder / "run.json.new").rename(folder / "run.json")


async def test_runs_of_the_process_runtime_are_found_by_their_files(tmp_path: Path) -> None:
    record = {"job_id": "a", "epoch": 2, "rank": 1, "pid": 5, "grace": 1.0, "cgroups": {"unified": "/g"}}
    leave(tmp_path, "a-2-1", record)
    leave(tmp_path, "not-begun-1-0", {"job_id": "n", "epoch": 1, "rank": 0})
    leave(tmp_path, "h-1-0", "{")
    (tmp_path / "runs/empty").mkdir()
    run = FoundRun(job_id="a", epoch=2, rank=1, pid=5, cgroups={"": "/g"}, leads_session=True)
    finder = ProcessRuns(tmp_path)
    assert await finder.find() == [run]

    leave(tmp_path, "h-1-0", {"job_id": "h", "epoch": 1, "rank": 0, "pid": 6})
    assert [(one.job_id, one.pid) for one in await finder.find()] == [("a", 5), ("h", 6)]
    (tmp_path / "runs/a-2-1/run.json").unlink()
    assert [one.job_id for one in await finder.find()] == ["h"]


async def test_a_run_is_found_once_its_intent_has_a_pid_however_soon_that_comes(tmp_path: Path) -> None:
    intent = RunRecord(job_id="a", epoch=1, rank=0, grace=5.0, memory=1, pipes=Inodes(output=1, ended=2, release=3))
    (tmp_path / "runs/a-1-0").mkdir(parents=True)
    finder = ProcessRuns(tmp_path)
    with os.fdopen(records.begin(str(tmp_path / "runs/a-1-0"), intent), "r+b") as file:
        written = os.fstat(file.fileno())
        assert await finder.find() == []
        records.add_pid(file.fileno(), replace(intent, pid=7))
        os.utime(file.fileno(), ns=(written.st_atime_ns, written.st_mtime_ns))
    assert [(run.job_id, run.pid) for run in await finder.find()] == [("a", 7)]


async def test_a_record_that_is_a_pipe_a_link_or_without_end_is_passed_over(tmp_path: Path) -> None:
    for name in ("pipe", "link", "long"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    os.mkfifo(tmp_path / "runs/pipe/run.json")
    (tmp_path / "runs/link/run.json").symlink_to("/dev/zero")
    (tmp_path / "runs/long/run.json").write_text("[" * 3_000_000)
    leave(tmp_path, "a-1-0", {"job_id": "a", "epoch": 1, "rank": 0, "pid": 5})
    assert [one.job_id for one in await ProcessRuns(tmp_path).find()] == ["a"]


@pytest.mark.parametrize(
    "fields", [{"epoch": 1 << 70}, {"rank": -1}, {"pid": 1 << 40}, {"pid": 1e300}, {"job_id": "another"}]
)
async def test_a_record_that_a_job_has_made_up_is_passed_over(tmp_path: Path, fields: dict[str, object]) -> None:
    record = {"job_id": "a", "epoch": 1, "rank": 0, "pid": 5, **fields}
    leave(tmp_path, "a-1-0", record)
    leave(tmp_path, f"a-{record['epoch']}-{record['rank']}", record)
    assert await ProcessRuns(tmp_path).find() == []


async def test_a_home_where_nothing_ran_has_no_runs(tmp_path: Path) -> None:
    assert await ProcessRuns(tmp_path / "nowhere").find() == []


class FakeEngine:
    """An engine with containers by id: labels and pid. `gone` makes it answer nothing."""

    def __init__(self, containers: dict[str, tuple[dict[str, str], int]]) -> None:
        self.running = containers
        self.gone = False
        self.inspected: list[str] = []
        self.filters: dict[str, Any] = {}

    def containers(self, *, filters: dict[str, Any]) -> list[dict[str, Any]]:
        if self.gone:
            raise ConnectionRefusedError
        self.filters = filters
        wanted = [label.partition("=") for label in filters["label"]]
        return [
            {"Id": name, "Labels": labels}
            for name, (labels, _) in self.running.items()
            if all(key in labels and (not equals or labels[key] == value) for key, equals, value in wanted)
        ]

    def inspect_container(self, container: str, /) -> dict[str, Any]:
        self.inspected.append(container)
        return {"State": {"Pid": self.running[container][1]}}


def labels(job_id: str) -> dict[str, str]:
    return {"weft.job": job_id, "weft.epoch": "3", "weft.rank": "0", "weft.node": "node-1"}


async def test_runs_of_the_docker_runtime_are_found_by_their_labels_and_inspected_once() -> None:
    engine = FakeEngine(
        {"c2": (labels("b"), 12), "c1": (labels("a"), 11), "c3": ({"weft.job": "stranger", "weft.node": "node-1"}, 13)}
    )
    finder = DockerRuns(lambda: engine, node_id="node-1")
    expected = [FoundRun(job_id=job_id, epoch=3, rank=0, pid=pid) for job_id, pid in (("a", 11), ("b", 12))]
    assert await finder.find() == expected
    assert await finder.find() == expected
    assert "weft.node=node-1" in engine.filters["label"]
    assert [engine.inspected.count(name) for name in ("c1", "c2")] == [1, 1]
    del engine.running["c1"]
    assert await finder.find() == expected[1:]


async def test_the_runs_of_another_cluster_on_the_same_engine_are_not_this_nodes() -> None:
    engine = FakeEngine(
        {
            "c1": (labels("a") | {"weft.cluster": "mine"}, 11),
            "c2": (labels("b") | {"weft.cluster": "theirs"}, 12),
        }
    )
    mine = DockerRuns(lambda: engine, node_id="node-1", cluster="mine")
    assert [run.job_id for run in await mine.find()] == ["a"]
    assert [run.job_id for run in await DockerRuns(lambda: engine, node_id="node-1").find()] == ["a", "b"]


async def test_an_engine_that_does_not_answer_leaves_the_runs_that_were_known() -> None:
    engine = FakeEngine({"c1": (labels("a"), 11)})
    finder = DockerRuns(lambda: engine, node_id="node-1")
    engine.gone = True
    assert await finder.find() == []
    engine.gone = False
    known = await finder.find()
    engine.gone = True
    assert await finder.find() == known != []


def test_gauges_show_the_newest_sample_in_base_units_and_leave_out_what_is_unknown() -> None:
    gauges = NodeGauges()
    assert list(gauges.collect()) == []
    gauges.show(
        NodeSampled(
            node_id="node-1",
            pool="default",
            at=9.0,
            host=HostSample(cpus=4.0, memory_total=8, memory_used=1),
            gpus=(
                GpuSample(index=0, uuid="E", model="Emulated GPU", emulated=True, memory_total=16),
                GpuSample(index=1, uuid="G", model="NVIDIA H200", sm_clock_mhz=1755.0, problem="GPU is lost"),
            ),
            runs=(RunSample(job_id="j", epoch=1, rank=0, source="cgroup2", cpus_used=0.5),),
        )
    )
    shown = {
        (sample.name, sample.labels.get("emulated", "")): sample.value
        for family in gauges.collect()
        for sample in family.samples
    }
    assert shown["weft_gpu_memory_total_bytes", "true"] == 16
    assert shown["weft_gpu_sm_clock_hertz", "false"] == 1.755e9
    assert [shown["weft_gpu_problem", emulated] for emulated in ("true", "false")] == [0, 1]
    assert shown["weft_run_cpus_used", ""] == 0.5
    assert shown["weft_node_memory_used_bytes", ""] == 1
    assert not any(name in ("weft_gpu_utilisation_ratio", "weft_node_cpus_used") for name, _ in shown)
