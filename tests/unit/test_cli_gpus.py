"""What a person sees of GPUs, of how fast they are, and of what was tuned."""

from typing import Any

from msgspec import structs

from tests.support.drawn import PIPE, TERMINAL, cells, line_with, seen
from tests.support.views import GIB, NOW, gpu_view, job_view, node_view
from weft.messages.http import GpuScoreView, GpuView, LimitsView, RunView
from weft.messages.nodes import Pace
from weft.messages.signals import CurvePoint, Finding, GpuSample, RankVerdict
from weftd.cli.cluster.nodes import drawn as nodes_page
from weftd.cli.rendering.gpus import known_text, scores_text, table_of_gpus, worries
from weftd.cli.rendering.jobs import description
from weftd.cli.rendering.tuned import pace_text, tuned_text


def score(value: float, job_class: str = "compute", **fields: Any) -> GpuScoreView:
    usual: dict[str, Any] = {"gpu_index": 3, "believed": value, "confidence": 1.0, "samples": 40, "source": "jobs"}
    return GpuScoreView(job_class=job_class, score=value, **(usual | fields))


def gpu(*scores: GpuScoreView, **use: Any) -> GpuView:
    sample = GpuSample(index=3, uuid="GPU-3", model="m", **use) if use else None
    return gpu_view(3, node_id="node-1", scores=scores, use=sample, held_by=job_view(), emulated=False)


def test_a_gpu_shows_what_it_does_who_holds_it_and_how_fast_it_is() -> None:
    busy = {
        "utilisation": 0.62,
        "memory_used": 3 * GIB,
        "temperature": 71.4,
        "power_watts": 320.6,
        "sm_clock_mhz": 1410,
    }
    scores = (score(1.21, age_seconds=120.0), score(1.0, "memory"))
    lines = seen(table_of_gpus((gpu(*scores, **busy),), PIPE), PIPE)
    assert cells(lines[0]) == [
        *("NODE", "GPU", "MODEL", "BUSY", "MEMORY", "TEMP", "POWER", "CLOCK", "SCORES", "KNOWN", "HELD BY"),
    ]
    assert cells(lines[1]) == [
        *("node-1", "3", "NVIDIA H200", "62%", "3GiB/16GiB", "71 °C", "321 W", "1410 MHz"),
        *("compute 1.21 · memory 1.00", "100% sure, 40 samples, 2m0s old, jobs", "train j-aaaaaaaaaa rank 0"),
    ]


def test_a_gpu_of_which_nothing_is_heard_or_known_shows_what_it_is() -> None:
    lines = seen(table_of_gpus((gpu_view(0, node_id="node-1"),), PIPE), PIPE)
    assert cells(lines[1]) == ["node-1", "0", "Emulated GPU", "-", "16GiB", "-", "-", "free"]


def test_what_is_slow_is_in_colour_and_what_placement_goes_by_is_shown() -> None:
    text = scores_text(gpu(score(1.5, believed=1.04, confidence=0.08), score(1.2, "mixed")))
    assert text.plain == "compute 1.04 · mixed 1.20"
    assert [span.style for span in text.spans if span.style == "yellow"] == ["yellow"]


def test_what_is_told_of_a_score_is_of_the_one_that_is_furthest_from_typical() -> None:
    found = gpu(score(1.0, samples=7), score(1.5, "memory", confidence=0.5, samples=1, quarantined_until=NOW + 300))
    assert known_text(found, TERMINAL) == "50% sure, 1 sample, jobs, not forgiven for 5m0s"
    forgiven = structs.replace(found, scores=(structs.replace(found.scores[1], quarantined_until=NOW - 1),))
    assert known_text(forgiven, TERMINAL) == "50% sure, 1 sample, jobs"


def test_what_is_wrong_with_a_gpu_is_told_and_what_is_ordinary_is_not() -> None:
    hot = gpu(utilisation=0.5, clock_events=("idle", "hw-thermal-slowdown"), problem="XID 79")
    assert worries(hot).plain == "XID 79, hw-thermal-slowdown"
    assert worries(gpu(utilisation=0.5, clock_events=("idle",))).plain == ""
    unused = structs.replace(gpu(utilisation=0.0), unused_seconds=4800.0)
    assert worries(unused).plain == "held, but idle for 1h20m"
    assert worries(structs.replace(unused, unused_seconds=60.0)).plain == ""
    assert "WORRIES" in seen(table_of_gpus((hot,), PIPE), PIPE)[0]


def test_what_is_no_hardware_is_never_passed_off_as_such() -> None:
    emulated = gpu_view(0, node_id="node-1", model="H200", emulated=True)
    fake = gpu(provider="fake", utilisation=0.1)
    lines = seen(table_of_gpus((emulated, fake), PIPE), PIPE)
    assert "emulated H200" in lines[1]
    assert "NVIDIA H200 (fake)" in lines[2]


def test_a_node_shows_its_slowest_gpu_where_any_is_known() -> None:
    nodes = (node_view("node-1", slowest=score(1.21)), node_view("node-2"))
    lines = seen(nodes_page(nodes, PIPE, gpus=False), PIPE)
    assert cells(lines[0])[-1] == "SLOWEST"
    assert cells(lines[1])[-1] == "1.21 gpu-3 compute"
    assert cells(lines[2])[-1] == "-"
    assert "SLOWEST" not in seen(nodes_page(nodes[1:], PIPE, gpus=False), PIPE)[0]


def pace(steps_rate: float, **fields: Any) -> Pace:
    return Pace(window_seconds=30.0, steps=60, steps_rate=steps_rate, step_seconds=1 / steps_rate, **fields)


def test_the_pace_of_a_job_is_that_of_its_slowest_rank_and_the_samples_of_all() -> None:
    told = pace_text([pace(4.0, samples_rate=32.0), pace(2.0, samples_rate=16.0, phases={"t_data": 0.1})])
    assert told == "2 steps/s, 48 samples/s, 0.5 s a step, t_data 0.1 s"


def test_what_was_tuned_is_told_against_what_was_asked_for() -> None:
    run = RunView(
        rank=1,
        role="worker",
        node_id="node-1",
        cpus=2.5,
        memory=GIB,
        egress=2_500_000,
        asked=LimitsView(cpus=1.0, memory=2 * GIB),
    )
    assert tuned_text(run) == (
        "rank 1 has 2.5 CPUs instead of 1, 1GiB of memory instead of 2GiB, 2.4MiB/s to send instead of no limit"
    )


def test_a_job_of_which_too_little_is_known_is_not_called_held_back() -> None:
    unknown = RankVerdict(job_id="j", epoch=0, rank=-1, code="unknown", sentence="too few measurements of its ranks")
    lines = seen(description(job_view(verdicts=(unknown,)), [], PIPE, emulated={}), PIPE)
    assert line_with("tuner says", lines).endswith("unknown: too few measurements of its ranks")


def test_a_verdict_on_a_job_that_quotes_its_rank_is_shown_once() -> None:
    verdicts = (
        RankVerdict(
            job_id="j",
            epoch=0,
            rank=-1,
            code="over-provisioned",
            sentence="1 of 2 ranks leave CPU unused: rank 0 uses 0.1",
        ),
        RankVerdict(job_id="j", epoch=0, rank=0, code="over-provisioned", sentence="uses 0.1"),
        RankVerdict(job_id="j", epoch=0, rank=1, code="over-provisioned", sentence="uses 0.2"),
    )
    lines = seen(description(job_view(verdicts=verdicts), [], PIPE, emulated={}), PIPE)
    told = [line for line in lines if "over-provisioned" in line]
    assert ["uses 0.1" in line for line in told] == [True], "the verdict on the whole job stands for those on its ranks"


def test_a_job_is_described_with_what_is_proposed_for_it() -> None:
    findings = (
        Finding(code="more-cpu", job_id="j", sentence="train: each worker 1.00 → 2.00 cores"),
        Finding(code="idle-gpu", job_id="j", sentence="rank 0 of train leaves its 2 GPUs idle"),
    )
    lines = seen(description(job_view(findings=findings), [], PIPE, emulated={}), PIPE)
    told = [line.split(maxsplit=2)[2] for line in lines if "to improve" in line]
    assert told == ["each worker 1.00 → 2.00 cores", "rank 0 of train leaves its 2 GPUs idle"]


def test_a_job_is_described_with_its_pace_its_verdicts_its_limits_and_its_curve() -> None:
    asked = LimitsView(cpus=1.0, memory=GIB)
    run = RunView(rank=0, role="worker", node_id="node-1", cpus=2.0, memory=GIB, pace=pace(2.0), asked=asked)
    verdicts = (
        RankVerdict(job_id="j", epoch=0, rank=-1, code="cpu-quota-bound", sentence="by rank 0", since=NOW - 60),
        RankVerdict(job_id="j", epoch=0, rank=1, code="healthy", sentence=""),
    )
    curve = (CurvePoint(replicas=2, cpus=4.0, speed=120.0, windows=3), CurvePoint(replicas=1, cpus=2.0, speed=64.0))
    job = job_view(runs=(structs.replace(run, disbelieved=3),), verdicts=verdicts, curve=curve)
    lines = seen(description(job, [], PIPE, emulated={}), PIPE)
    assert line_with("pace", lines).endswith("2 steps/s, 0.5 s a step")
    assert "it told 3 values that make no sense" in line_with("not believed", lines)
    assert line_with("held back by", lines).endswith("cpu-quota-bound: by rank 0 for 1m0s")
    assert "rank 1 healthy" in "\n".join(lines)
    assert line_with("tuned", lines).endswith("rank 0 has 2 CPUs instead of 1")
    at = lines.index("speed at each size")
    assert [cells(line.strip())[:3] for line in lines[at + 2 : at + 4]] == [["1", "2", "64/s"], ["2", "4", "120/s"]]
