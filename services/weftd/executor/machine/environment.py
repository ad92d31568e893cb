"""The environment variables of a run: docs/contract.md, C10 to C20.

A value of the user replaces Weft's value of the same name, unless the name is Weft's alone
(`libs/weft/domain/contract.py`). A TensorFlow task listens on the master's port plus its position in the cluster,
because tasks may share a node; where each has an address of its own (containers of one network) `task_ports_differ` is
False and all use the master's port.
"""

import math
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from weft.domain.cluster import Gpu
from weft.domain.contract import THREAD_NAMES, is_wefts_alone
from weft.messages.nodes import Members, StartRun

SLOWDOWNS_VARIABLE = "WEFT_EMULATED_SLOWDOWNS"  # weft.emulation.slowdowns reads it in a run
_SHUTDOWN_SECONDS = 5.0  # of the grace, for torchrun itself, once its workers have ended
# Seconds: ranks wait as long for rank 0 as without elasticity; once enough ranks have met, they wait for more.
_RENDEZVOUS = "read_timeout=600,last_call_timeout=5"
_RESTARTS_MAX = "100"


class RunFacts(Struct, frozen=True, kw_only=True):
    """Facts that only the node knows: its GPUs, and where the run finds its folders and the other ranks."""

    gpus: tuple[Gpu, ...] = ()  # those that this run holds
    checkpoints: str
    results: str
    secrets: str = ""  # the folder of those that it has as files
    progress: str
    progress_socket: str = ""
    members: str = ""  # the file; for runs that have members
    own_address: str = ""  # at which other ranks reach this one; empty: not known
    slowdowns: str = ""  # the slowdowns of the node's emulated GPUs, see libs/weft/emulation/slowdowns.py
    python: str = ""  # the node's own, for jobs that are programs of ours
    master_address: str
    peers: Mapping[str, tuple[str, ...]] = {}
    task_ports_differ: bool = True
    service_port: int | None = None  # where it listens for requests, as it sees it itself
    volumes: Mapping[str, str] = {}  # by variable, where the run finds each volume and mount that it names


def environment(order: StartRun, facts: RunFacts) -> dict[str, str]:
    """Everything that Weft and the user put into the environment of one run."""
    ours = {**_defaults(order), **_of_weft(order, facts)}
    if not is_alone(order):
        ours |= _meeting(order, facts)
    if order.members is not None and not is_alone(order):
        ours |= _elastic(order, order.members, facts)
    theirs = {**order.env, **{name: f"{facts.secrets}/{name}" for name in order.secret_files}}
    return {**theirs, **ours, **{name: text for name, text in theirs.items() if not is_wefts_alone(name)}}


def is_alone(order: StartRun) -> bool:
    """Return True if the run is the only replica of its job, now and later, or a replica of a service."""
    return order.world_size <= 1 and (order.members is None or order.members.most <= 1)


def _defaults(order: StartRun) -> dict[str, str]:
    """Values that suit most programs, for which a user or an image may have others (`DEFAULT_NAMES`).

    The CPUs of a replica with several GPUs are divided among them, as its program starts a worker for each. Libraries
    that read a name of their own follow `OMP_NUM_THREADS` without it, so that a user's value of that is enough.
    """
    names = {
        "PYTHONUNBUFFERED": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(order.grace - min(_SHUTDOWN_SECONDS, order.grace / 2)))),
    }
    if THREAD_NAMES[0] not in order.env:
        threads = str(max(1, math.ceil(order.cpus / max(1, len(order.gpus)))))
        names |= dict.fromkeys(THREAD_NAMES, threads)
    return names


def _meeting(order: StartRun, facts: RunFacts) -> dict[str, str]:
    """The names by which the replicas of a job meet. A replica with several GPUs starts its own workers, as a machine
    of a cluster does: it is no rank itself."""
    rank, world = str(order.rank), str(order.world_size)
    names = {
        "NODE_RANK": rank,
        "GROUP_RANK": rank,
        "MASTER_ADDR": facts.master_address,
        "PET_MASTER_ADDR": facts.master_address,
        "PET_NPROC_PER_NODE": str(max(1, len(order.gpus))),
    }
    if len(order.gpus) <= 1:
        names |= {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    if order.members is None:
        names |= {"PET_NNODES": world, "PET_NODE_RANK": rank}
    if order.master_port:
        names["MASTER_PORT"] = names["PET_MASTER_PORT"] = str(order.master_port)
        names["TF_CONFIG"] = _tf_config(order, facts)
    return names


def _elastic(order: StartRun, members: Members, facts: RunFacts) -> dict[str, str]:
    """Variables with which `torchrun` admits ranks that join later and continues without ranks that leave.

    Rank 0 holds the rendezvous: `torchrun` alone could let any rank of the same host hold it, and it would go with that
    rank. Where `torchrun` shares rank 0's store with its workers (since PyTorch 2.5), a rank that joins later waits for
    an address in it for ever: the workers make a store of their own. The departure of a rank counts as a restart of the
    others' workers.
    """
    names = {
        "PET_NNODES": f"{members.least}:{members.most}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": f"{order.job_id}-{order.epoch}",
        "PET_RDZV_CONF": f"is_host={int(order.rank == 0)},{_RENDEZVOUS}",
        "PET_MAX_RESTARTS": _RESTARTS_MAX,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if order.master_port:
        names["PET_RDZV_ENDPOINT"] = f"{facts.master_address}:{order.master_port}"
    if facts.own_address:
        names["PET_LOCAL_ADDR"] = facts.own_address
    return names


def _of_weft(order: StartRun, facts: RunFacts) -> dict[str, str]:
    """The names that are Weft's own, and those of the GPUs and the port."""
    names = {
        "WEFT_JOB_ID": order.job_id,
        "WEFT_EPOCH": str(order.epoch),
        "WEFT_RANK": str(order.rank),
        "WEFT_WORLD_SIZE": str(order.world_size),
        "WEFT_ROLE": order.role,
        "WEFT_ROLE_RANK": str(order.role_rank),
        "WEFT_CHECKPOINT_DIR": facts.checkpoints,
        "WEFT_RESULTS": facts.results,
        "WEFT_PROGRESS": facts.progress,
        "WEFT_GPUS": ",".join(str(index) for index in order.gpus),
        **_gpus(facts.gpus, facts.slowdowns),
        **facts.volumes,
    }
    if order.members is not None:
        names["WEFT_MEMBERS"] = facts.members
    if facts.own_address:
        names["WEFT_ADDRESS"] = facts.own_address
    if facts.python:
        names["WEFT_PYTHON"] = facts.python
    if facts.progress_socket:
        names["WEFT_PROGRESS_SOCKET"] = facts.progress_socket
    if facts.service_port is not None and order.serve is not None:
        names["WEFT_PORT"] = names["PORT"] = str(facts.service_port)
        names["WEFT_SERVICE_PATH"] = order.serve.address
    return names


def _gpus(gpus: tuple[Gpu, ...], slowdowns: str) -> dict[str, str]:
    """Real GPUs by uuid. CUDA sees no emulated GPU; variables name these and the folder of their slowdowns."""
    real = [gpu.uuid for gpu in gpus if not gpu.emulated]
    names = {"CUDA_VISIBLE_DEVICES": ",".join(real)}
    if any(gpu.emulated for gpu in gpus):
        names["WEFT_GPUS_EMULATED"] = "1"
        if slowdowns:
            names[SLOWDOWNS_VARIABLE] = slowdowns
    return names


def _tf_config(order: StartRun, facts: RunFacts) -> str:
    """`{"cluster": {role: [host:port, …]}, "task": {"type": role, "index": n}}`."""
    cluster: dict[str, list[str]] = {}
    peers = facts.peers or order.peers or {order.role: (facts.master_address,)}
    position = 0
    for role, addresses in peers.items():
        cluster[role] = []
        for address in addresses:
            cluster[role].append(f"{address}:{order.master_port + position * facts.task_ports_differ}")
            position += 1
    task = {"type": order.role, "index": order.role_rank}
    return msgspec.json.encode({"cluster": cluster, "task": task}).decode()
