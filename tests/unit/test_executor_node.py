"""What a node knows of itself and keeps: capacity, cgroups, its home, and how a container is made from an order."""

from pathlib import Path
from typing import Any

import docker
import pytest

from tests.support.runs import order
from weft.domain.cluster import Gpu
from weft.domain.spec import Volume
from weft.messages.nodes import Member, Members
from weftd.executor.__main__ import capacity, host_cpus, host_memory
from weftd.executor.files.home import Home
from weftd.executor.guard.files import FENCED_BYTES, Fenced, Slot
from weftd.executor.machine.node import NodeFacts, Refusal, volume_source
from weftd.executor.runs import Limits, RunKey
from weftd.executor.runtime.docker.container import (
    LOG_BY_FILE,
    Folders,
    Host,
    Joined,
    container_arguments,
    injection_for,
    members_inside,
)
from weftd.executor.runtime.docker.settings import ContainerSettings
from weftd.executor.runtime.limits.cgroup import CgroupsV1, CgroupsV2, NoCgroups, find_cgroups
from weftd.executor.state_file import DiskStateFile, HomeTakenError
from weftd.executor.thinking.core import Memory, Stop

GIB = 1 << 30


def files(folder: Path, **content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_a_declared_capacity_wins(tmp_path: Path) -> None:
    found = capacity(gpus=(), cpus=64.0, memory=512 * GIB, root=tmp_path)
    assert (found.cpus, found.memory) == (64.0, 512 * GIB)


def test_a_node_offers_no_more_than_its_own_cgroup_has(tmp_path: Path) -> None:
    files(tmp_path, cpu__max="50000 100000", memory__max=str(GIB))
    assert (host_cpus(tmp_path), host_memory(tmp_path)) == (0.5, GIB)
    files(tmp_path, cpu__max="max 100000", memory__max="max")
    assert host_cpus(tmp_path) >= 1
    assert host_memory(tmp_path) > GIB // 8


def test_version_1_limits_are_written_to_both_controllers(tmp_path: Path) -> None:
    for controller in ("cpu", "memory"):
        files(tmp_path / controller, cgroup__procs="")
    found = find_cgroups("node-1", root=tmp_path)
    assert isinstance(found, CgroupsV1)
    groups = {name: str(tmp_path / name / "weft" / "node-1" / "run") for name in ("cpu", "memory")}
    files(Path(groups["cpu"]), cpu__cfs_period_us="", cpu__cfs_quota_us="")
    files(Path(groups["memory"]), memory__limit_in_bytes="", memory__oom_control="oom_kill_disable 0\noom_kill 2\n")
    assert found.create("run", Limits(cpus=1.5, memory=GIB)) == groups
    assert (Path(groups["cpu"]) / "cpu.cfs_quota_us").read_text() == "150000"
    assert (Path(groups["memory"]) / "memory.limit_in_bytes").read_text() == str(GIB)
    assert found.oom_kills(groups) == 2
    assert found.names() == {"run": groups}


def test_the_processes_of_a_run_are_bounded_where_control_groups_allow_it(tmp_path: Path) -> None:
    for controller in ("cpu", "memory", "pids"):
        files(tmp_path / "v1" / controller, cgroup__procs="")
    run = "weft/node-1/run"
    files(tmp_path / "v1/cpu" / run, cpu__cfs_period_us="", cpu__cfs_quota_us="")
    files(tmp_path / "v1/memory" / run, memory__limit_in_bytes="")
    files(tmp_path / "v1/pids" / run, pids__max="max")
    groups = find_cgroups("node-1", root=tmp_path / "v1", pids_max=77).create("run", Limits(cpus=1.0, memory=GIB))
    assert groups.keys() == {"cpu", "memory", "pids"}
    assert (tmp_path / "v1/pids" / run / "pids.max").read_text() == "77"
    (tmp_path / "v2").mkdir()
    found = v2(tmp_path / "v2")
    files(tmp_path / "v2/service" / run, cpu__max="", memory__max="", pids__max="max")
    found.create("run", Limits(cpus=1.0, memory=GIB))
    assert (tmp_path / "v2/service" / run / "pids.max").read_text() == "8192"


def v2(tmp_path: Path, *, controllers: str = "cpu memory pids", own: str = "/service") -> Any:
    files(tmp_path, cgroup__controllers="cpu memory pids")
    for folder in ("service", "service/weft-executor", "service/weft", "service/weft/node-1"):
        files(tmp_path / folder, cgroup__controllers=controllers, cgroup__subtree_control="", cgroup__procs="")
    return find_cgroups("node-1", root=tmp_path, own=f"0::{own}\n")


def test_version_2_is_used_where_it_was_delegated(tmp_path: Path) -> None:
    found = v2(tmp_path)
    assert isinstance(found, CgroupsV2)
    assert (tmp_path / "service/weft-executor/cgroup.procs").read_text() == "0"
    assert (tmp_path / "service/weft/node-1/cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    group = tmp_path / "service/weft/node-1/run"
    files(group, cpu__max="", memory__max="", memory__events="low 0\noom_kill 1\n", memory__current=str(GIB))
    groups = found.create("run", Limits(cpus=0.5, memory=2 * GIB))
    assert groups == {"unified": str(group)}
    assert (group / "cpu.max").read_text() == "50000 100000"
    assert found.oom_kills(groups) == 1
    assert found.limits(groups) == Limits(cpus=0.5, memory=2 * GIB)
    assert found.limit(groups, Limits(cpus=2.0, memory=GIB)).startswith(f"memory {GIB}: it uses {GIB} bytes now")
    assert found.limits(groups) == Limits(cpus=2.0, memory=2 * GIB)
    assert found.limit(groups, Limits(memory=3 * GIB)) == ""
    assert found.limits(groups) == Limits(cpus=2.0, memory=3 * GIB)


def test_version_2_without_its_controllers_is_not_used(tmp_path: Path) -> None:
    assert isinstance(v2(tmp_path, controllers="pids"), NoCgroups)
    assert v2(tmp_path, controllers="pids").not_enforced == ("cpus", "memory")


def test_incarnations_grow_and_a_boot_leaves_only_which_runs_were_told_to_stop(tmp_path: Path) -> None:
    home = Home(tmp_path)
    memory = Memory(synced_at=5.0, stops=(Stop(key=RunKey("job-1", 1, 0), kill_at=9.0),))
    first = DiskStateFile(home, boot_id="a", now=100.0)
    first.save(memory)
    first.close()
    second = DiskStateFile(home, boot_id="a", now=50.0)
    assert (second.incarnation, second.memory) == (first.incarnation + 1, memory)
    second.close()
    third = DiskStateFile(home, boot_id="b", now=50.0)
    assert (third.incarnation, third.memory) == (first.incarnation + 2, memory.after_boot())
    third.close()


def test_an_executor_knows_after_a_boot_of_its_host_which_runs_the_guard_had_ended(tmp_path: Path) -> None:
    home, key = Home(tmp_path), RunKey("job-1", 1, 0)
    first = DiskStateFile(home, boot_id="a", now=100.0)
    slot = Slot(home.root / "fenced", FENCED_BYTES)
    slot.write(Fenced(boot_id="a", runs=(key,)))
    slot.close()
    assert first.fenced() == {key}
    first.close()
    second = DiskStateFile(home, boot_id="b", now=100.0)
    assert (second.fenced(), second.memory) == (frozenset(), Memory(stops=(Stop(key=key, kill_at=0.0, fenced=True),)))
    second.save(Memory())
    second.close()
    third = DiskStateFile(home, boot_id="b", now=100.0)
    assert third.memory == Memory(), "a note of an earlier boot is taken once"
    third.close()


def test_incarnations_grow_also_where_the_home_was_lost(tmp_path: Path) -> None:
    first = DiskStateFile(Home(tmp_path / "a"), boot_id="a", now=100.0)
    second = DiskStateFile(Home(tmp_path / "b"), boot_id="a", now=200.0)
    assert second.incarnation > first.incarnation
    first.close()
    second.close()


def test_a_home_has_one_executor_at_a_time(tmp_path: Path) -> None:
    first = DiskStateFile(Home(tmp_path), boot_id="a", now=1.0)
    with pytest.raises(HomeTakenError):
        DiskStateFile(Home(tmp_path), boot_id="a", now=1.0)
    first.close()
    DiskStateFile(Home(tmp_path), boot_id="a", now=1.0).close()


@pytest.mark.parametrize("boot_id", ["a", "b"])
def test_the_last_sync_and_the_stops_outlive_an_executor_also_where_the_rest_of_its_memory_cannot_be_kept(
    boot_id: str, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    stop = Stop(key=RunKey("job-1", 1, 0), kill_at=9.0)
    state_file = DiskStateFile(home, boot_id="a", now=1.0)
    (tmp_path / "state.json.new").mkdir()
    state_file.save(Memory(synced_at=5.0, stops=(stop,)))
    assert state_file.memory == Memory(synced_at=5.0, stops=(stop,))
    state_file.close()
    (tmp_path / "state.json.new").rmdir()
    later = DiskStateFile(home, boot_id=boot_id, now=2.0)
    kept = Memory(synced_at=5.0, stops=(stop,))
    assert later.memory == (kept if boot_id == "a" else kept.after_boot())
    later.save(Memory())
    later.close()
    last = DiskStateFile(home, boot_id=boot_id, now=3.0)
    assert last.memory.stops == ()
    last.close()


@pytest.mark.parametrize("text", ["job-1-2-0", "a-b-c-10-3"])
def test_a_run_is_known_by_the_name_of_its_folder(text: str) -> None:
    assert str(RunKey.parse(text)) == text


@pytest.mark.parametrize("text", ["", "job", "job-1", "-1-2", "job-x-1", "job-1-", "1-2"])
def test_other_folders_are_no_runs(text: str) -> None:
    assert RunKey.parse(text) is None


def test_no_path_comes_out_of_a_jobs_id(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert Path(home.log(RunKey("../../etc/passwd", 1, 0))).parent == home.logs


def test_a_volume_lies_within_an_allowed_folder_once_its_links_are_followed(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "allowed-not"
    for folder in (allowed, other):
        folder.mkdir()
    (allowed / "out").symlink_to(other)
    (tmp_path / "in").symlink_to(allowed)

    def source(path: Path) -> str:
        return volume_source(Volume(source=str(path), target="/data"), [str(allowed), ""])

    assert source(allowed) == source(tmp_path / "in") == str(allowed.resolve())
    for path in (allowed / "out", other, tmp_path, allowed / "missing"):
        with pytest.raises(Refusal):
            source(path)


NODE = NodeFacts(
    node_id="node-1",
    address="10.0.0.1",
    checkpoints="/checkpoints",
    results="/results",
    gpus=(
        Gpu(index=0, uuid="GPU-a", model="H200", memory=1),
        Gpu(index=1, uuid="EMULATED-1", model="Emulated GPU", memory=1, emulated=True),
    ),
)


def container(
    *,
    network: str = "weft-job-1-1",
    named: bool = True,
    published: bool = False,
    injection: str = "cdi",
    **fields: Any,
) -> dict[str, Any]:
    client = docker.APIClient(base_url="tcp://127.0.0.1:1", version="1.41")  # never called
    try:
        return container_arguments(
            client,
            order(**{"image": "img", **fields}),
            Host(node=NODE, settings=ContainerSettings(), injection=injection, log=LOG_BY_FILE),
            Folders(
                run="/home/runs/job-1-1-0",
                files="/home/contexts/job-1-1",
                secrets="/home/secrets/job-1-1-0",
                slowdowns="/home/emulated",
            ),
            Joined(network=network, named=named, published=published),
        )
    finally:
        client.close()


def test_secrets_as_files_are_mounted_for_reading_alone_and_only_where_there_are_some() -> None:
    given = container(secret_files={"TOKEN_FILE": "hf-token"})
    mounts = {mount["Target"]: mount for mount in given["host_config"]["Mounts"]}
    assert (mounts["/weft/secrets"]["Source"], mounts["/weft/secrets"]["ReadOnly"]) == ("/home/secrets/job-1-1-0", True)
    assert given["environment"]["TOKEN_FILE"] == "/weft/secrets/TOKEN_FILE"
    assert "/weft/secrets" not in [mount["Target"] for mount in container()["host_config"]["Mounts"]]


def test_a_container_can_do_little_and_use_only_its_share() -> None:
    config = container(cpus=1.5, memory=GIB, read_only=True)["host_config"]
    assert (config["CpuPeriod"], config["CpuQuota"]) == (100_000, 150_000)
    assert (config["Memory"], config["MemorySwap"]) == (GIB, GIB)
    assert (config["CapDrop"], config["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true"])
    assert (config["ReadonlyRootfs"], config["Init"]) == (True, True)
    assert "/tmp" in config["Tmpfs"]
    assert "NanoCpus" not in config
    assert not config.get("Privileged")


def test_locked_memory_has_no_bound_in_a_container_with_gpus_unless_its_job_sets_one() -> None:
    assert not container()["host_config"].get("Ulimits")
    for ulimits, locked in (({}, -1), ({"nofile": 1000}, -1), ({"memlock": GIB}, GIB)):
        found = container(gpus=(0,), ulimits=ulimits)["host_config"]["Ulimits"]
        assert {one["Name"]: (one["Soft"], one["Hard"]) for one in found} == {
            name: (limit, limit) for name, limit in {**ulimits, "memlock": locked}.items()
        }


def test_the_files_that_went_along_are_mounted_where_the_container_works() -> None:
    for workdir, where in ((None, "/workspace"), ("/code", "/code")):
        made = container(context="0" * 64, workdir=workdir)
        assert made["working_dir"] == where
        assert {"Target": where, "Source": "/home/contexts/job-1-1", "Type": "bind", "ReadOnly": False} in [
            dict(mount) for mount in made["host_config"]["Mounts"]
        ]
    assert all(mount["Source"] != "/home/contexts/job-1-1" for mount in container()["host_config"]["Mounts"])


def test_a_real_gpu_is_injected_as_the_engine_can() -> None:
    cdi = container(gpus=(0,))["host_config"]["DeviceRequests"][0]
    assert (cdi["Driver"], cdi["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=GPU-a"])
    hook = container(gpus=(0,), injection="nvidia")["host_config"]["DeviceRequests"][0]
    assert (hook["Driver"], hook["DeviceIDs"], hook["Capabilities"]) == ("nvidia", ["GPU-a"], [["gpu"]])
    nodes = container(gpus=(0,), injection="devices")["host_config"]["Devices"]
    assert [node["PathOnHost"] for node in nodes][:2] == ["/dev/nvidia0", "/dev/nvidiactl"]


def test_an_emulated_gpu_injects_nothing() -> None:
    made = container(gpus=(1,))
    assert "DeviceRequests" not in made["host_config"]
    assert "Devices" not in made["host_config"]
    assert (made["environment"]["NVIDIA_VISIBLE_DEVICES"], made["environment"]["WEFT_GPUS_EMULATED"]) == ("void", "1")


def test_a_container_has_its_jobs_own_checkpoints_and_results_and_no_others() -> None:
    given = container()
    mounts = {mount["Target"]: mount["Source"] for mount in given["host_config"]["Mounts"]}
    assert mounts["/weft/checkpoints"] == "/checkpoints/job-1"
    assert (mounts["/weft/results"], given["environment"]["WEFT_RESULTS"]) == ("/results/job-1", "/weft/results")


def test_a_container_on_emulated_gpus_reads_how_slow_they_are_and_cannot_say_so() -> None:
    made = container(gpus=(1,))
    assert made["environment"]["WEFT_EMULATED_SLOWDOWNS"] == "/weft/emulated"
    (mount,) = [mount for mount in made["host_config"]["Mounts"] if mount["Target"] == "/weft/emulated"]
    assert (mount["Source"], mount["ReadOnly"]) == ("/home/emulated", True)
    real = container(gpus=(0,))
    assert "WEFT_EMULATED_SLOWDOWNS" not in real["environment"]
    assert all(mount["Target"] != "/weft/emulated" for mount in real["host_config"]["Mounts"])


@pytest.mark.parametrize("injection", ["cdi", "nvidia", "devices"])
def test_a_job_gets_no_gpu_by_naming_it_to_the_hook(injection: str) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_MIG_CONFIG_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    made = container(gpus=(0,), injection=injection, env=env)["environment"]
    assert made["NVIDIA_VISIBLE_DEVICES"] == ("GPU-a" if injection == "nvidia" else "void")
    assert "NVIDIA_MIG_CONFIG_DEVICES" not in made
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert container(injection=injection, env=env)["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_ranks_of_one_network_meet_by_name_and_others_at_the_hosts_port() -> None:
    peers = {"chief": ("10.0.0.1",), "worker": ("10.0.0.1",)}
    gang = {"world_size": 2, "peers": peers, "master_port": 2345}
    named = container(**gang)
    assert named["environment"]["MASTER_ADDR"] == "weft-job-1-1-0"
    assert '"worker":["weft-job-1-1-1:2345"]' in named["environment"]["TF_CONFIG"]
    assert named["ports"] is None
    apart = container(network="weft-alone", named=False, published=True, master_address="10.0.0.1", **gang)
    assert apart["environment"]["MASTER_ADDR"] == "10.0.0.1"
    assert apart["host_config"]["PortBindings"] == {"2345/tcp": [{"HostIp": "", "HostPort": "2345"}]}
    other = container(network="weft-alone", named=False, published=True, rank=1, **gang)
    assert "PortBindings" not in other["host_config"]
    on_host = container(network="host", named=False, **gang)
    assert "PortBindings" not in on_host["host_config"]


LIVE = Members(
    changes=3,
    ranks=tuple(
        Member(role="worker", rank=rank, address=address, port=2345 + rank)
        for rank, address in ((0, NODE.address), (4, NODE.address), (7, "10.0.0.2"))
    ),
    least=1,
    most=8,
)


def test_ranks_that_joined_later_are_named_by_their_own_numbers_and_those_elsewhere_by_their_host() -> None:
    asked = order(image="img", rank=4, role_rank=1, world_size=3, master_port=2345, members=LIVE)
    inside = members_inside(asked, NODE, ContainerSettings(), named=True)
    assert [(member.rank, member.address, member.port) for member in inside.ranks] == [
        (0, "weft-job-1-1-0", 2345),
        (4, "weft-job-1-1-4", 2345),
        (7, "10.0.0.2", 2352),
    ]
    everywhere = members_inside(asked, NODE, ContainerSettings(job_network="overlay"), named=True)
    assert everywhere.ranks[2].address == "weft-job-1-1-7"
    assert members_inside(asked, NODE, ContainerSettings(), named=False) == LIVE


def test_a_live_job_in_containers_meets_at_rank_0_which_other_hosts_reach_too() -> None:
    live = {"world_size": 3, "master_port": 2345, "members": LIVE}
    first = container(published=True, **live)
    assert first["environment"]["PET_RDZV_ENDPOINT"] == "weft-job-1-1-0:2345"
    assert first["environment"]["PET_LOCAL_ADDR"] == "weft-job-1-1-0"
    assert first["environment"]["WEFT_MEMBERS"] == "/weft/run/members.json"
    assert "PortBindings" in first["host_config"]
    assert first["labels"]["weft.named"] == "1"
    away = container(network="weft-alone", named=False, rank=7, master_address="10.0.0.1", **live)
    assert away["environment"]["PET_RDZV_ENDPOINT"] == "10.0.0.1:2345"
    assert "PET_LOCAL_ADDR" not in away["environment"]
    assert away["labels"]["weft.named"] == "0"


def test_a_job_without_an_image_is_refused_by_a_node_of_containers() -> None:
    with pytest.raises(Refusal, match="names no image"):
        container(image=None)


@pytest.mark.parametrize(
    ("info", "way"),
    [
        ({"CDISpecDirs": ["/etc/cdi"], "Runtimes": {"nvidia": {}}}, "cdi"),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, "nvidia"),
        ({"Runtimes": {"runc": {}}}, "devices"),
    ],
)
def test_gpus_are_injected_by_the_best_way_the_engine_knows(info: dict[str, Any], way: str) -> None:
    assert injection_for(info) == way
