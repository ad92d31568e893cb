"""The contract with the job's own code, name by name."""

import json

from libs.domain.cluster import Gpu
from libs.messages.nodes import Members
from services.executor.environment import RunFacts, environment
from tests.support.runs import order


def facts(**fields: object) -> RunFacts:
    return RunFacts(
        **{  # type: ignore[arg-type]
            "checkpoints": "/checkpoints/job-1",
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
    assert env["WEFT_CHECKPOINT_DIR"] == "/checkpoints/job-1"
    assert (env["WEFT_PROGRESS"], env["WEFT_PROGRESS_SOCKET"]) == ("/run/progress", "/run/progress.sock")
    assert "WEFT_PROGRESS_SOCKET" not in environment(order(), facts())


def test_torch_finds_its_gang() -> None:
    env = environment(order(rank=1, world_size=2, master_port=29500), facts())
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("1", "2", "0", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_torchrun_needs_no_arguments() -> None:
    env = environment(order(rank=1, world_size=2, master_port=29500, gpus=(0, 1, 2)), facts())
    assert (env["PET_NNODES"], env["PET_NODE_RANK"], env["PET_NPROC_PER_NODE"]) == ("2", "1", "3")
    assert (env["PET_MASTER_ADDR"], env["PET_MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert environment(order(), facts())["PET_NPROC_PER_NODE"] == "1"


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
    env = environment(order(master_port=0), facts())
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


def test_the_users_names_are_kept_and_the_contracts_win() -> None:
    mine = {"MINE": "1", "RANK": "9", "WEFT_JOB_ID": "other", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    env = environment(order(env=mine), facts())
    assert (env["MINE"], env["RANK"], env["WEFT_JOB_ID"], env["CUDA_VISIBLE_DEVICES"]) == ("1", "0", "job-1", "")


def test_what_only_tunes_is_the_users_to_set() -> None:
    assert environment(order(), facts())["PYTHONUNBUFFERED"] == "1"
    env = environment(order(env={"PYTHONUNBUFFERED": "", "PET_NPROC_PER_NODE": "8"}), facts())
    assert (env["PYTHONUNBUFFERED"], env["PET_NPROC_PER_NODE"]) == ("", "8")
