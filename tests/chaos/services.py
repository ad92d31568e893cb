"""What is seen of services from the outside: by the API, among the living processes, in the answers to requests."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from tests.chaos.wishes import PYTHON
from tests.support.programs import PROGRAMS
from weft.messages.http import JobView

MARK = "CHAOS_SERVES"  # in the environment of each replica: the folder of this run of the chaos
VERSION = "CHAOS_VERSION"  # there too: which update it runs
PROGRAM = PROGRAMS / "model.py"
COMMAND = (PYTHON, "-I", "-S", str(PROGRAM))
CALLED = b"".join(os.fsencode(word) + b"\0" for word in COMMAND)


class Request(Struct, frozen=True, kw_only=True):
    """One request to a service: when it was sent (boot seconds), its status, and which replica answered.

    Status 0: the connection broke, or the answer took too long. `answered_by`: the job that the replica is of, in its
    own words.
    """

    job_id: str
    at: float
    status: int
    answered_by: str = ""
    rank: int | None = None


class Replica(Struct, frozen=True, kw_only=True):
    """A process that serves now, by its own environment."""

    pid: int
    job_id: str
    rank: int
    version: str


class ServiceSeen(Struct, frozen=True, kw_only=True):
    """One service after all has settled. `view` is None where the API does not know it. `cancelled`: it was asked for.

    `lenders`: the states of the jobs that it has loans of; None of one that is unknown. `version`: the last
    word of the command of its newest revision. `answer`: to the last request; None if nothing was asked, since it has
    no replica.
    """

    job_id: str
    view: JobView | None
    cancelled: bool = False
    replicas: tuple[Replica, ...] = ()
    lenders: dict[str, str | None] = {}
    version: str = "0"
    answer: Request | None = None


def replicas(folder: Path) -> Iterator[Replica]:
    """Those that live; not the shims above them."""
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        with suppress(OSError, ValueError):
            lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            env = dict(line.decode(errors="replace").split("=", 1) for line in lines if b"=" in line)
            if env.get(MARK) == str(folder) and Path(f"/proc/{pid}/cmdline").read_bytes().startswith(CALLED):
                rank, version = int(env.get("WEFT_RANK", "-1")), env.get(VERSION, "0")
                yield Replica(pid=pid, job_id=env.get("WEFT_JOB_ID", ""), rank=rank, version=version)
