"""A program of a person who uses TorchX."""

import sys

from torchx.runner import Runner
from torchx.specs import AppDef, AppState, Resource, Role, macros

from weft.integrations.torchx import create_scheduler

SCRIPT = "import os, sys; print('replica', sys.argv[1], os.environ['GREETING']); sys.exit(int(sys.argv[2]))"


def app(name: str, status: int) -> AppDef:
    role = Role(
        name="Trainer_A",
        image="",
        entrypoint=sys.executable,
        args=["-c", SCRIPT, f"number-{macros.replica_id}", str(status)],
        env={"GREETING": "it's $me"},
        num_replicas=2,
        resource=Resource(cpu=1, gpu=1, memMB=256),
    )
    return AppDef(name=name, roles=[role])


with Runner("session", {"weft": create_scheduler}) as runner:
    handle = runner.run(app("My App", 0), scheduler="weft", cfg={"priority": 5})
    status = runner.wait(handle, wait_interval=0.2)
    assert status.state is AppState.SUCCEEDED, status
    assert list(runner.log_lines(handle, "Trainer_A", 1)) == ["replica number-1 it's $me\n"]
    failing = runner.run(app("fails", 7), scheduler="weft")
    assert runner.wait(failing, wait_interval=0.2).state is AppState.FAILED
    assert {one.app_handle: one.state for one in runner.list("weft")} == {
        handle: AppState.SUCCEEDED,
        failing: AppState.FAILED,
    }
    assert runner.status("weft://session/j-none00000") is None
    print(handle)
