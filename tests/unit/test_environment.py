"""The contract with the job's own code, name by name."""

import json
from typing import Any

import pytest

from tests.support.runs import order
from weft.domain.cluster import Gpu
from weft.domain.contract import DEFAULT_NAMES, MEETING_NAMES, THREAD_NAMES, own_values
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.spec import JobSpec
from weft.messages.nodes import Members, Serve
from weftd.executor.machine.environment import RunFacts, environment
from weftd.gateway.submissions import notes_on


def facts(**fields: object) -> RunFacts:
    return RunFacts(
        **{  # type: ignore[arg-type]
            "checkpoints": "/checkpoints/job-1",
            "results": "/results/job-1",
            "progress": "/run/progress",
            "master_address": "10.0.0.1",
            **fields,
        }
    )


def gpu(index: int, *, emulated: bool = False) -> Gpu:
    return Gpu(index=index, uuid=f"GPU-{index}", model="H200", memory=1, emulated=emulated)


def test_a_run_knows_who_it_is() -> None:
    env = environment(order("job-7", epoch=3, rank=2, role_rank=1, world_size=4, role="ps"), facts())
    assert env["WEFT_JOB_ID"] == "job-7"
    assert (env["WEFT_EPOCH"], env["WEFT_RANK"], env["WEFT_WORLD_SIZE"]) == ("3", "2", "4")
    assert (env["WEFT_ROLE"], env["WEFT_ROLE_RANK"]) == ("ps", "1")


def test_a_run_knows_its_folders() -> None:
    env = environment(order(), facts(progress_socket="/run/progress.sock"))
    assert (env["WEFT_CHECKPOINT_DIR"], env["WEFT_RESULTS"]) == ("/checkpoints/job-1", "/results/job-1")
    assert (env["WEFT_PROGRESS"], env["WEFT_PROGRESS_SOCKET"]) == ("/run/progress", "/run/progress.sock")
    assert "WEFT_PROGRESS_SOCKET" not in environment(order(), facts())


GANG: dict[str, Any] = {"world_size": 2, "master_port": 29500}
RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}


def of_frameworks(env: dict[str, str]) -> set[str]:
    """The names that state a rank or a place to meet."""
    return {name for name in env if name in RANKS | MEETING_NAMES or name.startswith("PET_")}


@pytest.mark.parametrize("gpus", [(), (0,), (0, 1, 2)])
@pytest.mark.parametrize("members", [None, Members(changes=0, ranks=(), least=1, most=1)])
def test_the_only_replica_of_a_job_is_no_rank(gpus: tuple[int, ...], members: Members | None) -> None:
    assert of_frameworks(environment(order(gpus=gpus, master_port=29500, members=members), facts())) == set()


def test_a_replica_of_a_service_is_no_rank() -> None:
    env = environment(order(rank=3, master_port=29500, serve=Serve(port=8080)), facts(service_port=4000))
    assert of_frameworks(env) == set()
    assert (env["WEFT_RANK"], env["WEFT_PORT"], env["PORT"]) == ("3", "4000", "4000")


@pytest.mark.parametrize("gpus", [(), (0,)])
def test_a_replica_with_one_gpu_is_one_rank_of_its_gang(gpus: tuple[int, ...]) -> None:
    env = environment(order(rank=1, gpus=gpus, **GANG), facts())
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("1", "2", "0", "1")
    assert (env["NODE_RANK"], env["GROUP_RANK"]) == ("1", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_a_replica_with_several_gpus_is_a_machine_that_starts_its_own_workers() -> None:
    env = environment(order(rank=1, gpus=(0, 1), **GANG), facts())
    assert not RANKS & env.keys()
    assert (env["NODE_RANK"], env["GROUP_RANK"], env["WEFT_WORLD_SIZE"]) == ("1", "1", "2")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_torchrun_needs_no_arguments() -> None:
    env = environment(order(rank=1, gpus=(0, 1, 2), **GANG), facts())
    assert (env["PET_NNODES"], env["PET_NODE_RANK"], env["PET_NPROC_PER_NODE"]) == ("2", "1", "3")
    assert (env["PET_MASTER_ADDR"], env["PET_MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert environment(order(**GANG), facts())["PET_NPROC_PER_NODE"] == "1"


@pytest.mark.parametrize(("grace", "seconds"), [(100.0, "95"), (30.0, "25"), (6.0, "3"), (1.0, "1"), (0.5, "1")])
def test_torchrun_gives_its_workers_the_grace_less_its_own_part(grace: float, seconds: str) -> None:
    assert environment(order(grace=grace), facts())["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == seconds
    mine = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert environment(order(grace=grace, env=mine), facts())["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "7"


@pytest.mark.parametrize(
    ("cpus", "gpus", "threads"),
    [
        (0.1, (), "1"),
        (1.0, (), "1"),
        (1.5, (0,), "2"),
        (16.0, (), "16"),
        (16.0, (0, 1, 2, 3), "4"),
        (2.0, (0, 1, 2), "1"),
    ],
)
def test_threads_follow_the_cpus_of_each_worker(cpus: float, gpus: tuple[int, ...], threads: str) -> None:
    env = environment(order(cpus=cpus, gpus=gpus), facts())
    assert {env[name] for name in THREAD_NAMES} == {threads}


def test_libraries_follow_the_threads_that_the_user_sets() -> None:
    env = environment(order(cpus=4, env={"OMP_NUM_THREADS": "9"}), facts())
    assert {name: env[name] for name in THREAD_NAMES if name in env} == {"OMP_NUM_THREADS": "9"}
    env = environment(order(cpus=4, env={"MKL_NUM_THREADS": "9"}), facts())
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("4", "9")


MEMBERS = Members(changes=0, ranks=(), least=1, most=8)


def test_torchrun_resizes_without_arguments() -> None:
    asked = order(rank=5, world_size=2, master_port=29500, gpus=(0, 1), epoch=2, members=MEMBERS)
    env = environment(asked, facts(members="/run/members.json", own_address="10.0.0.2"))
    assert env["WEFT_MEMBERS"] == "/run/members.json"
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("1:8", "2")
    assert (env["PET_RDZV_BACKEND"], env["PET_RDZV_ENDPOINT"]) == ("c10d", "10.0.0.1:29500")
    assert (env["PET_RDZV_ID"], env["PET_LOCAL_ADDR"]) == ("job-1-2", "10.0.0.2")
    assert "PET_NODE_RANK" not in env
    assert int(env["PET_MAX_RESTARTS"]) > 0
    assert env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_rank_0_alone_holds_the_rendezvous() -> None:
    held = [environment(order(rank=rank, members=MEMBERS), facts())["PET_RDZV_CONF"] for rank in (0, 1, 9)]
    assert [conf.partition(",")[0] for conf in held] == ["is_host=1", "is_host=0", "is_host=0"]


def test_how_torchrun_resizes_is_the_users_to_set() -> None:
    mine = {"PET_NNODES": "2:4", "PET_RDZV_BACKEND": "etcd", "PET_MAX_RESTARTS": "0", "WEFT_MEMBERS": "mine"}
    env = environment(order(env=mine, members=MEMBERS), facts(members="/run/members.json"))
    assert {name: env[name] for name in mine} == {**mine, "WEFT_MEMBERS": "/run/members.json"}


def test_a_job_of_one_size_finds_nothing_of_members() -> None:
    env = environment(order(master_port=29500), facts(members="/run/members.json", own_address="10.0.0.2"))
    assert not [name for name in env if "RDZV" in name or name in ("WEFT_MEMBERS", "PET_LOCAL_ADDR")]


def test_tensorflow_finds_every_task_at_a_port_of_its_own() -> None:
    peers = {"chief": ("10.0.0.1",), "worker": ("10.0.0.1", "10.0.0.2"), "ps": ("10.0.0.2",)}
    asked = order(role="worker", role_rank=1, rank=2, world_size=4, master_port=29500, peers=peers)
    assert json.loads(environment(asked, facts())["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["10.0.0.1:29500"],
            "worker": ["10.0.0.1:29501", "10.0.0.2:29502"],
            "ps": ["10.0.0.2:29503"],
        },
        "task": {"type": "worker", "index": 1},
    }


def test_tensorflow_tasks_with_an_address_each_share_the_port() -> None:
    named = facts(peers={"worker": ("weft-a-1-0", "weft-a-1-1")}, task_ports_differ=False)
    asked = order(world_size=2, master_port=29500, peers={"worker": ("10.0.0.1", "10.0.0.1")})
    cluster = json.loads(environment(asked, named)["TF_CONFIG"])["cluster"]
    assert cluster == {"worker": ["weft-a-1-0:29500", "weft-a-1-1:29500"]}


def test_without_a_port_nothing_claims_one() -> None:
    env = environment(order(master_port=0, world_size=2), facts())
    assert not {"MASTER_PORT", "PET_MASTER_PORT", "TF_CONFIG"} & env.keys()


def test_real_gpus_are_named_to_cuda_by_uuid() -> None:
    env = environment(order(gpus=(0, 3)), facts(gpus=(gpu(0), gpu(3))))
    assert (env["CUDA_VISIBLE_DEVICES"], env["WEFT_GPUS"]) == ("GPU-0,GPU-3", "0,3")
    assert "WEFT_GPUS_EMULATED" not in env


def test_cuda_sees_neither_emulated_gpus_nor_those_of_others() -> None:
    env = environment(order(gpus=(1,)), facts(gpus=(gpu(1, emulated=True),)))
    assert (env["CUDA_VISIBLE_DEVICES"], env["WEFT_GPUS"], env["WEFT_GPUS_EMULATED"]) == ("", "1", "1")
    assert environment(order(), facts())["CUDA_VISIBLE_DEVICES"] == ""


def test_a_run_on_emulated_gpus_finds_how_slow_they_are() -> None:
    emulated = facts(gpus=(gpu(1, emulated=True),), slowdowns="/home/emulated")
    assert environment(order(gpus=(1,)), emulated)["WEFT_EMULATED_SLOWDOWNS"] == "/home/emulated"
    real = environment(order(gpus=(1,)), facts(gpus=(gpu(1),), slowdowns="/home/emulated"))
    assert "WEFT_EMULATED_SLOWDOWNS" not in real


def test_a_program_of_ours_finds_the_nodes_own_python() -> None:
    assert environment(order(), facts(python="/opt/weft/bin/python"))["WEFT_PYTHON"] == "/opt/weft/bin/python"
    assert "WEFT_PYTHON" not in environment(order(), facts())


def test_a_value_of_the_user_replaces_each_value_that_is_not_wefts_alone() -> None:
    everything = environment(order(gpus=(0,), members=MEMBERS, **GANG), facts(members="/m", own_address="10.0.0.2"))
    env = environment(
        order(gpus=(0,), members=MEMBERS, env=dict.fromkeys(everything, "mine"), **GANG),
        facts(members="/m", own_address="10.0.0.2"),
    )
    kept = {name for name, value in env.items() if value != "mine"}
    assert kept == {name for name in everything if name.startswith("WEFT_")} | {"CUDA_VISIBLE_DEVICES"}


def test_a_variable_that_weft_does_not_set_is_the_users() -> None:
    mine = {"MINE": "1", "RANK": "9", "PET_NPROC_PER_NODE": "8", "WEFT_ARRAY_INDEX": "3"}
    env = environment(order(env=mine), facts())
    assert {name: env[name] for name in mine} == mine


def spec(**fields: object) -> JobSpec:
    return decode_spec(json.dumps({"name": "x", "command": ["x"], "roles": {"worker": {}}, **fields}).encode())


def test_a_submission_notes_the_variables_of_which_weft_has_a_value_too() -> None:
    env = {"RANK": "7", "MASTER_PORT": "29500", "MINE": "1", "OMP_NUM_THREADS": "2"}
    (note,) = notes_on(spec(env=env, roles={"worker": {"replicas": {"want": 2}}}))
    assert note == "MASTER_PORT and RANK are set by the job; Weft's own values are not used"
    assert notes_on(spec(env=env)) == (), "the only replica finds no value of Weft"
    (note,) = notes_on(
        spec(
            kind="batch", roles={"worker": {"replicas": {"want": 2}, "gpus": 2, "env": {"NODE_RANK": "1", "RANK": "1"}}}
        )
    )
    assert note == "NODE_RANK is set by the job; Weft's own value is not used", "several GPUs: Weft sets no RANK"
    (note,) = notes_on(spec(env={"CUDA_VISIBLE_DEVICES": "0"}))
    assert note == "CUDA_VISIBLE_DEVICES is Weft's to set; the job's value is not used where Weft has one"


def test_every_variable_of_which_weft_has_a_value_is_known_to_the_note() -> None:
    gang = environment(
        order(gpus=(0,), members=MEMBERS, **GANG),
        facts(members="/m", own_address="10.0.0.2"),
    )
    served = environment(order(gpus=(0,), serve=Serve(port=80)), facts(service_port=4000))
    for found, fields in (
        (gang, {"roles": {"worker": {"replicas": {"want": 2}}}}),
        (served, {"kind": "inference", "service": {}}),
    ):
        own = own_values(spec(env=dict.fromkeys(found, "mine"), **fields))
        assert {*own.of_job, *own.of_weft} == found.keys() - DEFAULT_NAMES
