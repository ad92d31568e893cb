"""TorchX's scheduler on Weft. An app is one job, and each of its roles a role of the job.

TorchX drops its own schedulers where any package has an entry point for one, so Weft has none: `create_scheduler` is
given to a runner, or named by the user's project.
"""

import re
import shlex
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, macros, runopts

import weft
from weft.client.job_fields import JobFields
from weft.client.job_name import token
from weft.domain.job import JobState
from weft.domain.spec import JobSpec

LABEL = "torchx"  # its value is the session's name
LISTED_MAX = 1000
STATES = {
    JobState.QUEUED: AppState.PENDING,
    JobState.PLACED: AppState.PENDING,
    JobState.STARTING: AppState.PENDING,
    JobState.RUNNING: AppState.RUNNING,
    JobState.STOPPING: AppState.RUNNING,
    JobState.SUCCEEDED: AppState.SUCCEEDED,
    JobState.FAILED: AppState.FAILED,
    JobState.CANCELLED: AppState.CANCELLED,
}
VARIABLES = {macros.app_id: "WEFT_JOB_ID", macros.replica_id: "WEFT_ROLE_RANK"}
_MACROS = re.compile("|".join(map(re.escape, VARIABLES)))


def create_scheduler(session_name: str, **_: object) -> "WeftScheduler":
    return WeftScheduler(session_name)


class WeftScheduler(Scheduler[dict[str, Any]]):  # type: ignore[misc]
    def __init__(self, session_name: str) -> None:
        super().__init__("weft", session_name)

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("processes", type_=bool, default=False, help="run processes, not the images of the roles")
        options.add("priority", type_=int, default=0, help="jobs of higher priority come first")
        options.add("pool", type_=str, default="default", help="the pool of nodes")
        return options

    def _submit_dryrun(self, app: AppDef, cfg: dict[str, Any]) -> AppDryRunInfo:
        roles = {token(role.name): _role(role, processes=cfg["processes"]) for role in app.roles}
        asked = {
            "name": token(app.name) or "torchx",
            "roles": roles,
            "priority": cfg["priority"],
            "pool": cfg["pool"],
            "labels": {LABEL: token(self.session_name) or "session"},
            "retries": {"max": max(role.max_retries for role in app.roles)},
        }
        return AppDryRunInfo(asked, repr)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        fields: JobFields = dryrun_info.request
        return weft.submit({}, **fields).id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        try:
            job = weft.Job.find(app_id)
        except weft.Refused:
            return None
        assert job.view is not None
        found, state = job.view, STATES[job.state]
        allocations = () if found.placement is None else found.placement.allocations
        nodes = {each.rank: each.node_id for each in allocations}
        roles = [
            RoleStatus(
                role, [ReplicaStatus(number, state, role, nodes.get(rank, "")) for number, rank in enumerate(ranks)]
            )
            for role, ranks in _ranks(found.spec).items()
        ]
        why = "" if found.ended_for is None else str(job.explain().sentence)
        return DescribeAppResponse(app_id=app_id, state=state, num_restarts=found.epoch, msg=why, roles_statuses=roles)

    def list(self) -> list[ListAppResponse]:
        found = weft.jobs(labels=[LABEL], limit=LISTED_MAX)
        return [ListAppResponse(app_id=job.id, state=STATES[job.state]) for job in found]

    def _cancel_existing(self, app_id: str) -> None:
        weft.Job.find(app_id).cancel()

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Both streams in the order of their lines; `since` and `until` are ignored. Raises ValueError."""
        if streams not in (None, Stream.COMBINED):
            raise ValueError("the log has stdout and stderr together: streams must be combined")
        job = weft.Job.find(app_id)
        assert job.view is not None
        ranks = _ranks(job.view.spec).get(token(role_name), range(0))
        if k not in range(len(ranks)):
            raise ValueError(f"{app_id} has no replica {k} of a role {role_name}")
        for line in job.logs(follow=should_tail, rank=ranks[k]):
            if regex is None or re.search(regex, line):
                yield f"{line}\n"


def _ranks(spec: JobSpec | None) -> dict[str, range]:
    """The ranks of each role: they number all replicas of a job, in the order of its roles."""
    found, begin = dict[str, range](), 0
    for name, role in spec.roles.items() if spec is not None else ():
        found[name] = range(begin, begin + role.replicas.want)
        begin += role.replicas.want
    return found


def _role(role: Role, *, processes: bool) -> dict[str, Any]:
    """Raises ValueError for what Weft does not have."""
    if role.mounts:
        raise ValueError(f"role {role.name}: mounts are volumes in Weft, and are not taken from TorchX")
    sizes: dict[str, Any] = {"gpus": max(0, role.resource.gpu)}
    if role.resource.cpu > 0:
        sizes["cpus"] = role.resource.cpu
    if role.resource.memMB > 0:
        sizes["memory"] = f"{role.resource.memMB}MiB"
    replicas = {"want": role.num_replicas, "min": role.min_replicas or role.num_replicas}
    image = {} if processes or not role.image else {"image": role.image}
    return {"replicas": replicas, **sizes, **image, "command": _command(role), "env": dict(role.env)}


def _command(role: Role) -> list[str]:
    """The words of the role; those with a macro are filled by a shell in the run, from its own variables."""
    fixed = {macros.rank0_env: "MASTER_ADDR", macros.img_root: ""}
    words = [role.entrypoint, *role.args]
    for macro, value in fixed.items():
        words = [word.replace(macro, value) for word in words]
    if not any(_MACROS.search(word) for word in words):
        return words
    quoted = [
        "".join(f'"${VARIABLES[part]}"' if part in VARIABLES else shlex.quote(part) for part in parts if part)
        for parts in (re.split(f"({_MACROS.pattern})", word) for word in words)
    ]
    return ["sh", "-c", f"exec {' '.join(each or chr(39) * 2 for each in quoted)}"]
