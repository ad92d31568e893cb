"""Volumes by name: what a specification may say of them, what a node offers, and the path that a run gets."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.builders import node, spec
from tests.support.scheduler import world
from tests.support.service_lives import rounds
from tests.support.volumes import offering
from weft.domain.cluster import Capacity, NeededVolume, OfferedVolume
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.spec import Volume
from weft.planning.capacity import free_capacity_of
from weft.planning.reasons.offering import offered_text, unoffered
from weft.planning.reasons.refusals import never_fits, why_not
from weft.planning.resource_request import resource_request_of
from weft.service import SettingsError, load
from weftd.executor.machine.volumes import OwnedVolume, VolumeRefusedError, check, offered, paths_for, resolved
from weftd.executor.settings import ExecutorSettings

SETS = {"name": "datasets", "read_only": True}


def refused(**fields: Any) -> tuple[str, str]:
    body = {"name": "j", "command": ["x"], **fields}
    with pytest.raises(SpecError) as caught:
        decode_spec(msgspec.json.encode(body))
    return caught.value.field, caught.value.reason


# the specification


def test_a_volume_by_name_has_a_place_in_containers_and_a_variable() -> None:
    made = spec(image="x", volumes=[SETS, {"name": "my-scratch", "target": "/scratch"}])
    assert [volume.inside for volume in made.named_volumes] == ["/volumes/datasets", "/scratch"]
    assert [volume.variable for volume in made.named_volumes] == ["WEFT_VOLUME_DATASETS", "WEFT_VOLUME_MY_SCRATCH"]
    assert made.folders == ()


def test_a_folder_by_its_path_is_read_as_ever() -> None:
    folder = {"source": "/srv/sets", "target": "/data", "read_only": True}
    made = spec(volumes=[folder])
    assert made.folders == made.volumes == (Volume(source="/srv/sets", target="/data", read_only=True),)
    assert msgspec.json.decode(msgspec.json.encode(made.volumes[0])) == folder


@pytest.mark.parametrize(
    ("volumes", "field", "says"),
    [
        ([{}], "volumes[0]", "expected `name`"),
        ([{"name": "a", "source": "/a", "target": "/b"}], "volumes[0]", "exclude each other"),
        ([{"source": "/a"}], "volumes[0]", "expected `target`"),
        ([{"name": "../etc"}], "volumes[0].name", "lower-case letters"),
        ([{"name": "a/b"}], "volumes[0].name", "lower-case letters"),
        ([{"name": "a" * 64}], "volumes[0].name", "lower-case letters"),
        ([{"name": "a", "target": "/x/../etc"}], "volumes[0]", "must not contain '..'"),
        ([{"name": "a", "target": "/weft/run"}], "volumes[0]", "is the container's own"),
        ([{"name": "a"}, {"name": "a", "target": "/b"}], "volumes[1].name", "is named twice"),
        ([{"name": "a", "target": "/b"}, {"name": "c", "target": "/b/"}], "volumes[1].target", "another volume"),
        ([{"name": "a", "target": "/b"}, {"source": "/c", "target": "/./b"}], "volumes[1].target", "another volume"),
        ([{"name": "a", "at": "/b"}], "volumes[0].at", "no such field"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(volumes: list[Any], field: str, says: str) -> None:
    found = refused(image="x", volumes=volumes)
    assert found[0] == field
    assert says in found[1]


def test_a_process_has_nothing_mounted_so_its_volume_has_no_target() -> None:
    field, why = refused(volumes=[{"name": "a", "target": "/b"}])
    assert field == "volumes[0].target"
    assert "WEFT_VOLUME_A" in why
    assert spec(volumes=[{"name": "a"}]).named_volumes[0].target == ""


def test_files_that_go_along_are_in_the_place_of_no_volume() -> None:
    field, _ = refused(image="x", context="a" * 64, workdir="/volumes/a", volumes=[{"name": "a"}])
    assert field == "workdir"


# what a node offers


def test_a_node_offers_a_volume_to_the_tenants_of_its_owner_alone_and_to_be_read_where_it_says_so() -> None:
    there = offering("node-1", {"name": "sets", "read_only": True, "tenants": ["ada"]}, {"name": "all"})

    def may(name: str, tenant: str, *, writes: bool) -> bool:
        return there.offers(NeededVolume(name, tenant, writes))

    assert may("sets", "ada", writes=False)
    assert not may("sets", "ada", writes=True)
    assert not may("sets", "bob", writes=False)
    assert may("all", "bob", writes=True)
    assert not may("other", "ada", writes=False)


def test_two_volumes_of_one_name_are_no_capacity() -> None:
    body = b'{"cpus":1,"memory":1,"volumes":[{"name":"a"},{"name":"a"}]}'
    with pytest.raises(msgspec.ValidationError, match="two volumes"):
        msgspec.json.decode(body, type=Capacity)


def test_a_report_of_an_earlier_version_offers_none() -> None:
    assert msgspec.json.decode(b'{"cpus":1,"memory":1}', type=Capacity).volumes == ()


# the words


def asked(tenant: str = "ada", **volume: Any) -> Any:
    return resource_request_of(spec(image="x", volumes=[{"name": "sets", "read_only": True, **volume}]), tenant)


def test_a_volume_that_no_node_offers_is_told_with_those_that_there_are() -> None:
    nodes = [
        offering("node-1", {"name": "scratch"}, {"name": "secret", "tenants": ["bob"]}),
        node("node-2", runtime="docker"),
    ]
    found = unoffered(nodes, asked()[0].request)
    assert found == "no node of its pool offers the volume sets; there is scratch"
    assert unoffered([node(runtime="docker")], asked()[0].request).endswith("they offer none")


def test_a_volume_to_be_read_alone_is_told_so() -> None:
    nodes = [offering("node-1", {"name": "sets", "read_only": True})]
    found = unoffered(nodes, asked(read_only=False)[0].request)
    assert found == "the volume sets is offered read-only, by node-1: add `read_only: true`"


def test_volumes_that_no_node_offers_together_are_told_with_where_each_is() -> None:
    nodes = [offering("node-1", {"name": "sets"}), offering("node-2", {"name": "more"})]
    resource_request = resource_request_of(spec(image="x", volumes=[{"name": "sets"}, {"name": "more"}]), "ada")
    found = unoffered(nodes, resource_request[0].request)
    assert found == "no node of its pool offers all its volumes: sets is on node-1, more is on node-2"


def test_who_waits_for_room_is_told_which_nodes_offer_the_volume() -> None:
    nodes = [offering(f"node-{at}", {"name": "sets"}, gpus=1) for at in range(1, 6)] + [
        node("node-9", gpus=8, runtime="docker")
    ]
    resource_request = resource_request_of(spec(gpus=2, image="x", volumes=[{"name": "sets"}]), "ada")
    cause = why_not(free_capacity_of(nodes, []), resource_request)
    assert cause is not None
    assert "the most free on one node that could start it is 1 (5 free in all)" in cause.sentence
    assert cause.sentence.endswith("only node-1, node-2, node-3 and 2 more offer the volume sets")
    assert cause.numbers["nodes_with_volumes"] == 5.0
    assert never_fits(spec(gpus=2, image="x", volumes=[{"name": "sets"}]), nodes, "ada") is not None
    assert offered_text(nodes[:5], resource_request[0].request) == ""


def test_a_job_pinned_to_a_node_without_its_volume_is_told_which_has_it() -> None:
    nodes = [offering("node-1", {"name": "sets"}), node("node-2", runtime="docker")]
    cause = never_fits(spec(image="x", volumes=[{"name": "sets"}], pin={"node": "node-2"}), nodes, "ada")
    assert cause is not None
    assert cause.sentence == (
        "is pinned to node-2, which does not offer the volume sets; only node-1 offers the volume sets"
    )


# on the wire


def test_an_order_names_the_volume_apart_from_folders_by_path() -> None:
    w = world(gpus=4)
    w.nodes["node-1"].capacity = msgspec.structs.replace(
        w.nodes["node-1"].capacity, volumes=(OfferedVolume(name="sets"),)
    )
    w.round()
    volumes = [{"name": "sets", "target": "/data"}, {"source": "/srv", "target": "/srv"}]
    w.submit("j-1", gpus=1, spec={"image": "x", "volumes": volumes})
    rounds(w)
    placed = w.stored["j-1"]
    [read] = w.runs_of("node-1")
    assert (read.named_volumes, read.volumes) == (placed.spec.named_volumes, placed.spec.folders)
    assert all(volume.source for volume in read.volumes)


# the executor


def settings(volumes: str, home: Path) -> ExecutorSettings:
    environ = {"EXECUTOR_NODE_ID": "n-1", "EXECUTOR_HOME": str(home), "EXECUTOR_VOLUMES": volumes}
    return load(ExecutorSettings, prefix="EXECUTOR_", environ=environ)


def test_an_owner_offers_volumes_by_a_setting_and_no_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    text = '{"sets": {"path": "%s/sets", "read_only": true, "tenants": ["ada"]}, "gone": {"path": "/no/such"}}'
    made = settings(text % tmp_path, tmp_path / "home")
    found = resolved(made.volumes, str(made.home))
    assert offered(found) == (OfferedVolume(name="sets", read_only=True, tenants=("ada",)),)
    assert str(tmp_path) not in repr(offered(found))


@pytest.mark.parametrize(
    ("volumes", "says"),
    [
        ("datasets=/srv", "malformed"),
        ('{"Sets": {"path": "/srv"}}', "EXECUTOR_VOLUMES"),
        ('{"sets": {"path": "srv"}}', "EXECUTOR_VOLUMES"),
        ('{"sets": {"path": "/srv", "readonly": true}}', "unknown field"),
        ('{"sets": {}}', "path"),
        ('{"sets": {"path": "/srv/../etc"}}', "must not contain '..'"),
        ('{"sets": {"path": "/"}}', "lies within the other"),
        ('{"sets": {"path": "%s/home/runs"}}', "lies within the other"),
        ('{"all": {"path": "/srv"}, "sets": {"path": "/srv/sets"}}', "lies in the volume all"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(volumes: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=says):
        settings(volumes.replace("%s", str(tmp_path)), tmp_path / "home")


def test_volumes_may_lie_in_one_that_is_read_alone() -> None:
    outer, inner = OwnedVolume(path="/srv", read_only=True), OwnedVolume(path="/srv/sets")
    check({"all": outer, "sets": inner}, "/var/lib/weft")
    with pytest.raises(ValueError, match="lies in the volume"):
        check({"all": OwnedVolume(path="/srv"), "sets": inner}, "/var/lib/weft")


def test_a_link_into_the_executors_home_or_another_volume_is_no_way_around(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "open" / "inner").mkdir(parents=True)
    (tmp_path / "to-home").symlink_to(tmp_path / "home")
    (tmp_path / "to-inner").symlink_to(tmp_path / "open" / "inner")
    with pytest.raises(ValueError, match="home"):
        resolved({"a": OwnedVolume(path=f"{tmp_path}/to-home")}, f"{tmp_path}/home")
    both = {"a": OwnedVolume(path=f"{tmp_path}/open"), "b": OwnedVolume(path=f"{tmp_path}/to-inner")}
    with pytest.raises(ValueError, match="lies in the volume a"):
        resolved(both, f"{tmp_path}/home")


def test_a_run_gets_the_volumes_of_its_tenant_as_they_are_offered_and_no_other(tmp_path: Path) -> None:
    for name in ("sets", "scratch"):
        (tmp_path / name).mkdir()
    volumes = {
        "sets": OwnedVolume(path=f"{tmp_path}/sets", read_only=True, tenants=("ada",)),
        "scratch": OwnedVolume(path=f"{tmp_path}/scratch"),
    }
    reads = Volume(name="sets", read_only=True)
    assert paths_for([reads, Volume(name="scratch")], "ada", volumes) == {
        "sets": f"{tmp_path}/sets",
        "scratch": f"{tmp_path}/scratch",
    }
    for volume, tenant, says in (
        (reads, "bob", "does not offer the volume sets to bob"),
        (Volume(name="sets"), "ada", "read-only"),
        (Volume(name="other"), "ada", "does not offer the volume other"),
    ):
        with pytest.raises(VolumeRefusedError, match=says):
            paths_for([volume], tenant, volumes)


def test_a_link_put_in_the_place_of_a_volume_gives_nothing_of_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    volumes = resolved({"sets": OwnedVolume(path=f"{tmp_path}/sets")}, f"{tmp_path}/home")
    os.rmdir(tmp_path / "sets")
    (tmp_path / "sets").symlink_to("/etc")
    with pytest.raises(VolumeRefusedError, match="has moved"):
        paths_for([Volume(name="sets")], "ada", volumes)
