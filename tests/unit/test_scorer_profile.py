"""A profile says how slow each GPU is; the scorer says it to the scheduler, of the GPUs that are there."""

from pathlib import Path

import msgspec
import pytest

from tests.support.builders import node
from weft.domain.classes import JOB_CLASSES
from weft.domain.cluster import Node
from weft.messages.signals import GpuSample, GpuScore, HostSample, NodeSampled
from weft.profiles import ProfileError
from weft.service.config import SettingsError
from weftd.scorer.__main__ import _profile, read
from weftd.scorer.thinking.core import Scorer
from weftd.scorer.thinking.scores import ASSUMED, PROFILED, MeasuredGpus


def written(folder: Path, *lines: str) -> str:
    path = folder / "gpus.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


NOW = 100.0


def owning(measured: MeasuredGpus, *nodes: Node) -> Scorer:
    scorer = Scorer(measured)
    scorer.learn(nodes=nodes, jobs=(), now=0.0)
    scorer.own([one.id for one in nodes], (), 0.0)
    return scorer


def due(scorer: Scorer) -> list[GpuScore]:
    return [score for scores in scorer.decide(NOW).scores.values() for score in scores]


def by_gpu(scores: list[GpuScore]) -> dict[tuple[str, int], dict[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for score in scores:
        found.setdefault((score.node_id, score.gpu_index), {})[score.job_class] = score.score
    return found


@pytest.mark.parametrize("header", ["compute,mixed,memory", "A,B,C"])
def test_gpus_are_found_by_their_place_with_classes_by_either_name(tmp_path: Path, header: str) -> None:
    measured = read(written(tmp_path, f"node_id,gpu_index,{header}", "node-1,1,1.2,1.1,1.0", "node-9,0,2,2,2"))
    scores = due(owning(measured, node("node-1", gpus=2)))
    assert by_gpu(scores) == {
        ("node-1", 0): dict.fromkeys(JOB_CLASSES, 1.0),
        ("node-1", 1): {"compute": 1.2, "mixed": 1.1, "memory": 1.0},
    }
    assert {(score.gpu_index, score.source, score.confidence) for score in scores} == {
        (0, "assumed", ASSUMED),
        (1, "profile", PROFILED),
    }
    assert all((score.measured_at is None) == (score.gpu_index == 0) for score in scores)


def test_a_gpu_is_found_by_its_uuid_wherever_it_sits(tmp_path: Path) -> None:
    uuid = node("node-3", gpus=1).capacity.gpus[0].uuid
    measured = read(written(tmp_path, "gpu_uuid,model,compute,mixed,memory", f"{uuid},x,1.5,1.25,1"))
    scores = due(owning(measured, node("node-7", gpus=1)))
    assert by_gpu(scores) == {("node-7", 0): {"compute": 1.5, "mixed": 1.25, "memory": 1.0}}


def test_another_gpu_in_the_same_place_is_scored_anew(tmp_path: Path) -> None:
    one = node("node-1", gpus=1)
    scorer = owning(read(written(tmp_path, "gpu_uuid,A,B,C", "GPU-a,2,2,2")), one)
    scorer.observe(sampled("node-1", "GPU-a"), 0.0)
    scores = due(scorer)
    assert {score.score for score in scores} == {2.0}
    scorer.stored(scores)
    assert due(scorer) == []
    scorer.learn(nodes=[one], jobs=(), now=1.0)
    assert due(scorer) == [], "what the node said when it joined is older than what telemetry sees"
    scorer.observe(sampled("node-1", "GPU-b", seq=2), 1.0)
    assert [score.score for score in due(scorer)] == [1.0, 1.0, 1.0]


def test_what_is_stored_already_is_not_stored_again(tmp_path: Path) -> None:
    one = node("node-1", gpus=2)
    profile = read(written(tmp_path, "node_id,gpu_index,A,B,C", "node-1,1,1.2,1.1,1.0"))
    stored = due(owning(profile, one))
    again = Scorer(profile)
    again.learn(nodes=[one], jobs=(), now=0.0)
    again.own(["node-1"], stored, 0.0)
    assert due(again) == []


def sampled(node_id: str, uuid: str, seq: int = 1) -> NodeSampled:
    host = HostSample(cpus=1.0, memory_total=1, memory_used=0)
    return NodeSampled(
        node_id=node_id,
        pool="default",
        at=0.0,
        host=host,
        gpus=(GpuSample(index=0, uuid=uuid, model="m"),),
        boot="b",
        seq=seq,
    )


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([""], ": the file is empty"),
        (["node_id,gpu_index,A,B,C"], ": there are no rows in it"),
        (["node_id,gpu_index,A,B", "n,0,1,1"], ":1: missing column memory or C; it has node_id, gpu_index, A, B"),
        (["gpu,A,B,C", "n,1,1,1"], ":1: missing column gpu_uuid or node_id; it has gpu, A, B, C"),
        (["node_id,A,B,C", "n,1,1,1"], ":1: missing column gpu_index; it has node_id, A, B, C"),
        (["node_id,gpu_index,A,B,C", "n,x,1,1,1"], ":2: gpu_index is no whole number: 'x'"),
        (["node_id,gpu_index,A,B,C", "n,0,1,1,1", "n,1,1,-2,1"], ":3: B is no time above 0: '-2'"),
        (["node_id,gpu_index,A,B,C", "n,0,1,1,1", "n,0,1,1,1"], ":3: this GPU is also in line 2"),
        (["node_id,gpu_index,A,B,C", "n,0,1,1"], ":2: 4 fields where the header has 5"),
    ],
)
def test_a_bad_file_is_one_error_with_its_line_and_names_the_setting(
    tmp_path: Path, lines: list[str], told: str
) -> None:
    path = written(tmp_path, *lines) if lines != [""] else str(tmp_path / "empty.csv")
    Path(path).touch()
    with pytest.raises(ProfileError) as caught:
        read(path)
    assert str(caught.value) == path + told
    with pytest.raises(SettingsError) as refused:
        _profile(path)
    assert str(refused.value) == f"SCORER_PROFILE: {path}{told}"


def test_a_file_that_is_not_there_is_said_and_no_file_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.csv: cannot be read: No such file"):
        _profile(str(tmp_path / "none.csv"))
    assert _profile("") == MeasuredGpus()


def test_a_score_of_an_earlier_version_is_read_and_one_with_nothing_new_is_written_as_ever() -> None:
    earlier = b'{"node_id":"node-1","gpu_index":0,"job_class":"mixed","score":1.0}'
    read_now = msgspec.json.decode(earlier, type=GpuScore)
    assert (read_now.confidence, read_now.source, read_now.measured_at) == (1.0, "", None)
    assert msgspec.json.encode(read_now) == earlier
