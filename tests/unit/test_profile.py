"""Profiles from tables and from runs, and that the artifact's draw is what its table says."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.support.data import measured
from tests.support.measured_runs import MeasuredRuns, Seat, artifact_profile, cluster_profile, read_runs
from weft.profiles import Profile, ProfiledGpu, ProfileError, read_profile, scores_for

RUNS = "cabinet,node,device,perf\n"


def written(folder: Path, text: str | bytes, name: str = "some.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def runs(nodes: int, *, gpus: int = 2, file: str = "runs.csv", time: float = 1.0) -> MeasuredRuns:
    by_gpu = {Seat("c1", node, gpu): (time + node,) for node in range(nodes) for gpu in range(gpus)}
    return MeasuredRuns(file, tuple(run for (run,) in by_gpu.values()), by_gpu)


def longhorn() -> dict[str, MeasuredRuns]:
    files = json.loads(measured("variability/profiles.json").read_text())
    folder = measured("variability/longhorn-v100")
    return {name.removeprefix("class"): read_runs(folder / Path(file).name) for name, file in files.items()}


# tables


def test_both_kinds_of_table_are_read(tmp_path: Path) -> None:
    expected = ((ProfiledGpu("0", {"A": 0.9, "B": 1.0}), ProfiledGpu("1", {"A": 1.1, "B": 1.0})),)
    drawn = written(tmp_path, "gpu_id,node_id,classA,classB\n0,0,0.9,1\n1,0,1.1,1\n", "drawn.csv")
    assert read_profile(drawn) == Profile("drawn", expected)
    live = ",GPU_ID,Local_GPU_ID,Node_ID,PerfVar_classA,PerfVar_classB\n0,0,0,7,0.9,1\n1,1,1,7,1.1,1\n"
    assert read_profile(written(tmp_path, live)).nodes == expected


def test_only_the_classes_that_are_asked_for_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "gpu_id,node_id,classA,classB\n0,0,0.9,broken\n")
    assert read_profile(path, classes=["A"]).classes == ("A",)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 0, "the file is empty"),
        ("gpu_id,node_id,classA\n", 0, "there are no rows in it"),
        ("gpu_id,classA\n0,1\n", 1, "missing column node_id or Node_ID; it has gpu_id, classA"),
        ("gpu_id,node_id\n0,1\n", 1, "no column for any class; it has gpu_id, node_id"),
        ("gpu_id,node_id,classB\n0,1,1\n", 1, "no column for class A; it has gpu_id, node_id, classB"),
        ("gpu_id,node_id,classA\n0,0,1\n1,0\n", 3, "2 fields where the header has 3"),
        ("gpu_id,node_id,classA\n0,0,nan\n", 2, "classA is no time above 0: 'nan'"),
        ("gpu_id,node_id,classA\n0,0,-1\n", 2, "classA is no time above 0: '-1'"),
        ("gpu_id,node_id,classA\n0,0,fast\n", 2, "classA is no time above 0: 'fast'"),
        ("gpu_id,node_id,classA\n0,0,1\n0,1,1\n", 3, "GPU 0 is in line 2, too"),
        ('gpu_id,node_id,classA\n0,"0,1\n', 2, "this is no CSV: unexpected end of data"),
        (b"gpu_id,node_id,classA\n\xff,0,1\n", 2, "this is not UTF-8 text"),
    ],
)
def test_what_is_wrong_with_a_table_is_named_with_its_line(
    tmp_path: Path, text: str | bytes, line: int, reason: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ProfileError) as refused:
        read_profile(path, classes=["A"] if b"classB" in path.read_bytes() else None)
    assert (refused.value.file, refused.value.line, refused.value.reason) == (str(path), line, reason)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ProfileError, match=why):
            read_profile(path)


# runs


def test_runs_are_parts_of_the_median_of_all_and_a_gpus_score_is_the_median_of_its_own(tmp_path: Path) -> None:
    read = read_runs(written(tmp_path, RUNS + "c1,004,0,10\nc1,4,0,30\nc1,4,0,12\nc1,4,1,8\nc1,4,1,9\n"))
    assert read.normalised == (1.0, 3.0, 1.2, 0.8, 0.9)
    assert read.medians == {Seat("c1", 4, 0): 1.2, Seat("c1", 4, 1): pytest.approx(0.85)}
    assert read.nodes() == [(Seat("c1", 4, 0), Seat("c1", 4, 1))]


def test_gpus_without_a_device_are_told_apart_by_uuid_and_placed_where_any_run_says(tmp_path: Path) -> None:
    rows = "g1,-1,-1,0,8\ng2,c1,3,0,9\ng1,c1,3,0,10\ng3,-1,-1,0,11\n"
    read = read_runs(written(tmp_path, "uuid,cabinet,node,dev_id,perf\n" + rows))
    assert read.by_gpu.keys() == {Seat("c1", 3, 0), Seat("c1", 3, 1), Seat("-1", -1, 0)}
    assert len(read.by_gpu[Seat("c1", 3, 0)]) == 2
    assert read.nodes() == [(Seat("c1", 3, 0), Seat("c1", 3, 1))]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("cabinet,node,device\nc1,1,0\n", 1, "missing column perf"),
        ("cabinet,node,perf\nc1,1,5\n", 1, "missing column device or dev_id"),
        (RUNS + "c1,one,0,5\n", 2, "node is no whole number: 'one'"),
        (RUNS + "c1,1,0,0\n", 2, "perf is no time above 0: '0'"),
    ],
)
def test_what_is_wrong_with_runs_is_named_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(ProfileError) as refused:
        read_runs(written(tmp_path, text))
    assert refused.value.line == line
    assert refused.value.reason.startswith(reason)


# clusters


def test_a_cluster_takes_no_node_twice_while_there_are_others() -> None:
    def ids(nodes: int) -> list[str]:
        drawn = cluster_profile({"A": runs(4)}, nodes=nodes, gpus_per_node=2, dice=Random(1))
        return [node[0].id for node in drawn.nodes]

    assert sorted(ids(4)) == ["c1-0-0", "c1-1-0", "c1-2-0", "c1-3-0"]
    assert len(ids(9)) == 9
    assert len(set(ids(9))) == 4


def test_a_gpu_has_its_own_median_in_every_class_where_it_was_measured() -> None:
    by_class = {"A": runs(3), "B": runs(2, time=5.0)}
    made = cluster_profile(by_class, nodes=3, gpus_per_node=2, dice=Random(1))
    for gpu in made.gpus:
        node = int(gpu.id.split("-")[1])
        assert gpu.scores["A"] == 1.0 + node
        assert gpu.scores["B"] == 5.0 + node if node < 2 else gpu.scores["B"] in (5.0, 6.0)


def test_a_cluster_of_larger_nodes_than_were_measured_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"runs\.csv: no node in it has 8 GPUs"):
        cluster_profile({"A": runs(3)}, nodes=1, gpus_per_node=8, dice=Random(1))


def test_scores_are_those_of_the_first_gpus_in_their_order() -> None:
    made = artifact_profile({"A": runs(3), "B": runs(3)}, 10, Random(1))
    scores = scores_for(made, 4, 2)
    assert {name: len(scores[name]) for name in scores} == {"A": 8, "B": 8}
    assert scores["A"] == tuple(gpu.scores["A"] for gpu in made.gpus[:8])


def test_a_profile_that_is_too_small_or_lacks_a_class_says_so() -> None:
    small = artifact_profile({"A": runs(3)}, 10, Random(1))
    with pytest.raises(ProfileError, match="it has 10 GPUs, the cluster 16"):
        scores_for(small, 4, 4)
    lame = Profile("lame", ((ProfiledGpu("x", {"A": 1.0}), ProfiledGpu("y", {"B": 1.0, "A": 1.0})),))
    with pytest.raises(ProfileError, match="lame: GPU x has no score for class B"):
        scores_for(lame, 1, 2)


# what was published


@pytest.mark.data
def test_the_artifacts_dice_give_the_artifacts_cluster() -> None:
    published = read_profile(measured("variability/perfvar_256gpu_seed42.csv"))
    drawn = artifact_profile(longhorn(), 256, Random(42))
    assert [len(node) for node in drawn.nodes] == [len(node) for node in published.nodes]
    for mine, told in zip(drawn.gpus, published.gpus, strict=True):
        assert mine.id == told.id
        assert mine.scores == pytest.approx(told.scores, abs=1e-12)


@pytest.mark.data
@pytest.mark.parametrize(
    ("file", "gpus", "nodes", "rows", "slowest"),
    [
        ("longhorn-v100/resnet-longhorn-agg.csv", 336, 84, 1404, 1.123),
        ("longhorn-v100/bert-longhorn-agg.csv", 136, 34, 1096, 1.039),
        ("longhorn-v100/pagerank-longhorn-agg.csv", 172, 43, 880, 1.004),
        ("longhorn-v100/sgemm-longhorn-agg.csv", 392, 80, 11087, 1.201),
        ("frontera-rtx5000/frontera-resnet-agg.csv", 296, 74, 1480, 1.145),
        ("frontera-rtx5000/frontera-bert-agg.csv", 276, 69, 1656, 1.060),
        ("frontera-rtx5000/frontera-pagerank-agg.csv", 248, 62, 1240, 1.001),
    ],
)
def test_every_published_file_of_runs_is_read(file: str, gpus: int, nodes: int, rows: int, slowest: float) -> None:
    read = read_runs(measured(f"variability/{file}"))
    assert (len(read.by_gpu), len(read.nodes()), len(read.normalised)) == (gpus, nodes, rows)
    assert Counter(map(len, read.nodes())) == {4: nodes}
    assert max(read.medians.values()) == pytest.approx(slowest, abs=0.001)


@pytest.mark.data
def test_the_testbeds_table_is_eight_nodes_of_four() -> None:
    read = read_profile(measured("variability/frontera-rtx5000/32gpu-variability.csv"))
    assert [len(node) for node in read.nodes] == [4] * 8
    assert read.classes == ("A", "B", "C", "D")


@pytest.mark.data
def test_a_cluster_of_real_nodes_has_no_single_runs_outliers() -> None:
    made = cluster_profile(longhorn(), nodes=16, gpus_per_node=4, dice=Random(5))
    assert max(scores_for(made, 16, 4)["A"]) < 1.2
