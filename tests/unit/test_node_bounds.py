"""What a node says is bounded where it is decoded: out of its bounds it is refused by field, and reaches no service."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import capacity
from tests.support.doubles.bus import MemoryBus
from tests.support.nodes import ScriptedNode
from tests.support.tier import examples
from weft.bus.wire import decode, encode, subject_of
from weft.messages.nodes import EndReason, NodeDesired, NodeReported, ProgressSeen, RunProgressed, RunSeen, RunState
from weft.messages.signals import GpuSample, GpuScore, GpusScored, HostSample, NodeSampled
from weftd.executor.runs import Run, RunKey
from weftd.executor.thinking.core import Reconciler, ReconcilerTimings

RUN = {"job_id": "j-1", "epoch": 0, "rank": 0, "state": "running"}
PROGRESSED = {"job_id": "j-1", "epoch": 0, "rank": 0, "progress": {}}


def plain(message: Any) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.json.decode(encode(message))
    return built


def changed(message: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The same message with one other value: `capacity.gpus.0.index`."""
    at: Any = message
    *parents, last = path.split(".")
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at[name]
    at[int(last) if isinstance(at, list) else last] = value
    return message


def report() -> dict[str, Any]:
    return {**plain(ScriptedNode("node-1", capacity(gpus=2)).report()), "runs": [{**RUN}]}


def sample() -> dict[str, Any]:
    made = NodeSampled(
        node_id="node-1",
        pool="default",
        at=1.0,
        host=HostSample(cpus=1.0, memory_total=1, memory_used=1),
        gpus=(GpuSample(index=0, uuid="u", model="m"),),
    )
    return plain(made)


def scores() -> dict[str, Any]:
    made = (GpuScore(node_id="node-1", gpu_index=0, job_class="compute", score=1.0),)
    return plain(GpusScored(pool="default", scores=made))


def progressed() -> dict[str, Any]:
    return {**plain(ProgressSeen(node_id="node-1", runs=())), "runs": [{**PROGRESSED}]}


HUGE = "x" * 1_000_000
OF_REPORTS = [
    *((path, value) for path in ("incarnation", "seq", "runs.0.epoch", "runs.0.rank") for value in (2**70, -1)),
    *((path, value) for path in ("capacity.memory", "capacity.gpus.0.memory") for value in (2**70, -1)),
    *(("capacity.gpus.0.index", value) for value in (2**70, 2**40, -1, 1)),  # there is a GPU 1 already
    *(("capacity.cpus", value) for value in (-1.0, 1e300)),
    *(("runs.0.exit_code", value) for value in (2**40, 2**70, -1, 256)),
    *(("runs.0.gpus", value) for value in ([-1], [2**70], list(range(2000)))),
    *((path, HUGE) for path in ("address", "boot_id", "runtime", "rack", "runs.0.job_id", "runs.0.detail")),
    *(("runs.0.job_id", value) for value in ("", "../x", "j-1\n", "a b", "\0")),
    *(("runs.0.started_at", value) for value in (-1.0, 1e300)),
    ("runs.0.progress", {f"n{number}": 1.0 for number in range(1000)}),
    ("runs.0.progress", {HUGE: 1.0}),
    ("runs", [RUN] * 100_000),
    ("not_enforced", ["x"] * 1000),
    *((name, value) for name in ("labels", "taints") for value in ({HUGE: ""}, {"zone": HUGE}, {" ": ""})),
    ("labels", {f"n{number}": "" for number in range(1000)}),
    ("node_id", "Node_1"),
    ("leader", {"pool": "default", "epoch": 2**70, "holder": "", "seq": 0}),
]
SHARED: dict[str, Any] = {"job_id": "j", "epoch": 0, "rank": 0, "source": "s"}
SHARED["share"] = {"gpu_uuid": "u", "request": 0.5, "limit": 1.0}
OF_SHARES = [
    *((name, value) for name in ("request", "limit", "used", "borrowed", "lent") for value in (-0.1, 1.1)),
    *((name, value) for name in ("memory_used", "refused", "overruns", "given_up") for value in (-1, 2**70)),
    ("wait_p99_seconds", -1.0),
    ("gpu_uuid", HUGE),
]
OF_SAMPLES = [
    *(("gpus.0.index", value) for value in (2**70, 2**31, -1)),
    *(("gpus.0.memory_used", value) for value in (2**70, -1)),
    *((path, value) for path in ("seq", "at") for value in (-1, 2**70)),
    *(("host.cpus", value) for value in (-1.0,)),
    ("gpus.0.uuid", HUGE),
    ("gpus", [{"index": 0, "uuid": "u", "model": "m"}] * 2000),
    ("runs", [{"job_id": "j", "epoch": 0, "rank": 0, "source": "s"}] * 100_000),
    ("runs", [{"job_id": "j", "epoch": 2**70, "rank": 0, "source": "s"}]),
    *(("runs", [{**SHARED, "share": {**SHARED["share"], name: value}}]) for name, value in OF_SHARES),
]
OF_PROGRESS = [
    *((path, value) for path in ("runs.0.epoch", "runs.0.rank") for value in (2**70, -1)),
    *(("runs.0.at", value) for value in (-1.0, 1e300)),
    ("runs.0.job_id", HUGE),
    ("runs", [PROGRESSED] * 100_000),
]
OF_SCORES = [
    *(("scores.0.gpu_index", value) for value in (2**70, 2**31, -1)),
    *(("scores.0.score", value) for value in (-1.0, 0.0, 1e300)),
    *(("scores.0.confidence", value) for value in (-1.0, 2.0)),
]
CASES = [
    *((NodeReported, report, *case) for case in OF_REPORTS),
    *((NodeSampled, sample, *case) for case in OF_SAMPLES),
    *((ProgressSeen, progressed, *case) for case in OF_PROGRESS),
    *((GpusScored, scores, *case) for case in OF_SCORES),
]


@pytest.mark.parametrize(
    ("kind", "built", "path", "value"),
    CASES,
    ids=[f"{case[0].__name__} {case[2]} {str(case[3])[:20]!r}" for case in CASES],
)
def test_a_value_out_of_its_bounds_is_refused_by_its_field(kind: Any, built: Any, path: str, value: Any) -> None:
    decode(kind, msgspec.json.encode(built()))
    with pytest.raises(msgspec.DecodeError) as refused:
        decode(kind, _json(changed(built(), path, value)))
    first = path.split(".")[0]
    assert f"$.{first}" in str(refused.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(("kind", "built", "path"), [(NodeReported, report, "capacity"), (NodeSampled, sample, "host")])
def test_a_number_that_is_none_is_refused(kind: Any, built: Any, path: str, value: str) -> None:
    body = _json(changed(built(), f"{path}.cpus", 12345.5)).replace(b"12345.5", value.encode())
    with pytest.raises(msgspec.DecodeError):
        decode(kind, body)


def _json(value: Any) -> bytes:
    """Also integers that msgspec writes for nobody."""

    return json.dumps(value).encode()


async def test_a_report_out_of_bounds_is_answered_with_the_field_and_reaches_no_handler() -> None:
    bus, reached = MemoryBus(), []

    async def answer(message: NodeReported) -> NodeDesired:
        reached.append(message)
        return NodeDesired(seq=message.seq)

    await bus.answer(NodeReported, answer)
    subject = subject_of(ScriptedNode("node-1", capacity()).report())
    for path, value in OF_REPORTS[:40]:
        body = _json(changed(report(), path, value))
        answered = decode(NodeDesired, await bus.request_raw(subject, body, seconds_max=1.0))
        assert answered.refused, path
        assert path.split(".")[0] in answered.refused
    assert reached == []
    assert bus.counts["undecodable"] == 40
    answered = decode(NodeDesired, await bus.request_raw(subject, _json(report()), seconds_max=1.0))
    assert (answered.refused, len(reached)) == ("", 1)
    await asyncio.sleep(0)


text = st.text(st.characters(), max_size=40) | st.just("x" * 9000) | st.just("j-1")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.builds(
            Run,
            key=st.builds(RunKey, text, st.integers(0, 2**80), st.integers(0, 2**80)),
            state=st.just(RunState.EXITED),
            exit_code=st.none() | st.integers(-(2**80), 2**80),
            reason=st.sampled_from(EndReason),
            detail=text,
        ),
        max_size=5,
    ),
    st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False), max_size=5),
)
def test_whatever_jobs_leave_behind_a_node_reports_what_is_read(runs: list[Run], progress: dict[str, float]) -> None:
    seen = Reconciler(ReconcilerTimings()).report(runs, {run.key: progress for run in runs})
    made = msgspec.structs.replace(ScriptedNode("node-1", capacity()).report(), runs=seen)
    assert decode(NodeReported, encode(made)).runs == seen


def test_an_exit_status_that_is_none_is_reported_as_255() -> None:
    run = Run(key=RunKey("j-1", 0, 0), state=RunState.EXITED, exit_code=99999999999999, reason=EndReason.EXIT)
    (seen,) = Reconciler(ReconcilerTimings()).report([run], {})
    assert seen.exit_code == 255


def test_what_is_reported_of_very_many_runs_fits_into_a_message() -> None:
    runs = [
        Run(key=RunKey("j-1", 0, rank), state=RunState.EXITED, reason=EndReason.START_FAILED, detail="é" * 5000)
        for rank in range(8192)
    ]
    progress = {run.key: {f"name-{number}": 1.0 for number in range(33)} for run in runs}
    seen = Reconciler(ReconcilerTimings()).report(runs, progress)
    assert len(seen) == 8192
    assert len(encode(msgspec.structs.replace(ScriptedNode("node-1", capacity()).report(), runs=seen))) < 8 << 20


def test_what_is_within_bounds_is_left_as_it_is() -> None:
    seen = RunSeen(job_id="j-1", epoch=1, rank=2, state=RunState.RUNNING, progress={"step": 1.0})
    assert decode(RunSeen, encode(seen)) == seen
    progress = RunProgressed(job_id="j-1", epoch=1, rank=2, progress={"step": 1.0}, at=1.0)
    assert decode(RunProgressed, encode(progress)) == progress
