"""The start of a run: its command, environment and folder are prepared, then its shim is spawned."""

import errno
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from msgspec.structs import replace

from weft.domain.object_store.urls import MOUNT_VARIABLE, OUTPUT_VARIABLE, variable_of
from weft.domain.spec import StopSignal
from weft.messages.nodes import RunState, StartRun
from weftd.executor.files import members
from weftd.executor.files.home import Home
from weftd.executor.files.job_folders import OWN, make_folder
from weftd.executor.leave import Leave
from weftd.executor.machine.environment import RunFacts, environment
from weftd.executor.machine.node import (
    NodeFacts,
    Refusal,
    gpus_of,
    meets_at_its_port,
    named_paths,
    port_taken,
    volume_source,
)
from weftd.executor.machine.ulimits import check_ulimits, own_bounds
from weftd.executor.runs import Limits, Run, RunKey, RuntimeUnavailableError
from weftd.executor.runtime.bookkeeping import Bookkeeping
from weftd.executor.runtime.limits import cgroup
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.lives import Live
from weftd.executor.runtime.process.pipes import RunPipes, make_pipes, open_log
from weftd.executor.runtime.process.shim import find_command, spawn

INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")  # the only variables that a job inherits from the executor


class Starter:
    """`inherited`: the executor's own variables."""

    def __init__(
        self,
        home: Home,
        node: NodeFacts,
        cgroups: cgroup.Cgroups,
        book: Bookkeeping,
        *,
        inherited: Mapping[str, str],
        ignore_images: bool,
    ) -> None:
        self._home = home
        self._node = node
        self._cgroups = cgroups
        self._book = book
        self._base = {name: inherited[name] for name in INHERITED if name in inherited}
        self._ignore_images = ignore_images

    def prepare(self, order: StartRun, key: RunKey) -> tuple[tuple[str, ...], dict[str, str], str]:
        """The command with its program's whole path, its environment, and its working directory. Raises Refusal."""
        if order.image and not (self._ignore_images and order.command):
            raise Refusal(f"this node runs jobs as processes and cannot use the image {order.image}")
        if not order.command:
            raise Refusal("there is no command", is_for_good=True)
        for volume in order.volumes:
            volume_source(volume, self._node.volumes_allowed)
            if volume.source != volume.target:
                raise Refusal(f"this node runs jobs as processes and cannot mount {volume.source} at {volume.target}")
        if order.ulimits:
            check_ulimits(order.ulimits, {**own_bounds(), **self._node.ulimits_max})
        paths = named_paths(order, self._node)
        for volume in order.named_volumes:
            if volume.target:
                why = f"leave `target` out, its path is in {volume.variable}"
                raise Refusal(f"this node runs jobs as processes and cannot mount {volume.name}: {why}")
        checkpoints = f"{self._node.checkpoints}/{order.job_id}"
        facts = RunFacts(
            gpus=gpus_of(order, self._node),
            checkpoints=checkpoints,
            results=f"{self._node.results}/{order.job_id}",
            secrets=self._home.secrets(key),
            progress=self._home.progress(key),
            progress_socket=self._home.progress_socket(key),
            members=self._home.members(key),
            own_address=self._node.address,
            slowdowns=str(self._home.emulated),
            python=sys.executable,
            master_address=order.master_address,
            service_port=None if order.serve is None else self._book.served.begin(key, order.serve, self._node.ports),
            volumes={volume.variable: paths[volume.name] for volume in order.named_volumes}
            | {variable_of(MOUNT_VARIABLE, path): folder for path, folder in order.mounted.items()}
            | {variable_of(OUTPUT_VARIABLE, path): folder for path, folder in order.written.items()},
        )
        env = {**self._base, **environment(order, facts)}
        workdir = self._home.context(key) if order.context else order.workdir or checkpoints
        if workdir != checkpoints and not os.path.isdir(workdir):
            raise Refusal(f"the workdir {workdir} does not exist on this node", is_for_good=True)
        command = (*(order.entrypoint or ()), *order.command)
        program, why = find_command(command[0], path=env.get("PATH", os.defpath), workdir=workdir)
        if why:
            raise Refusal(why, is_for_good=True)
        if meets_at_its_port(order) and _port_taken(order.master_port):
            raise port_taken(order)
        return (program, *command[1:]), env, workdir

    def spawn(
        self,
        order: StartRun,
        key: RunKey,
        *,
        command: tuple[str, ...],
        env: dict[str, str],
        workdir: str,
        leave: Leave | None,
    ) -> tuple[Live, RunPipes]:
        """Spawn the shim; records.py explains the order. Raises OSError, RuntimeUnavailableError."""
        folder = self._home.run(key)
        for parent in (self._node.checkpoints, self._node.results):
            make_folder(parent, order.job_id, mode=OWN)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        pin = self._book.pins.begin(order)
        groups = self._cgroups.create(str(key), Limits(cpus=order.cpus, memory=order.memory), pin)
        with ExitStack() as opened:
            pipes, ends = make_pipes()
            opened.callback(ends.close)
            failed = opened.enter_context(ExitStack())
            failed.callback(pipes.close)
            record = records.RunRecord(
                job_id=key.job_id,
                epoch=key.epoch,
                rank=key.rank,
                grace=order.grace,
                memory=order.memory,
                cgroups=groups,
                pipes=pipes.inodes(),
                stop_signal=order.stop_signal or StopSignal.TERM,
            )
            record_fd = records.begin(folder, record)
            opened.callback(os.close, record_fd)
            lock_fd = records.lock(folder)
            if lock_fd is None:
                raise RuntimeUnavailableError(f"{key} runs already, under an executor that is not this one")
            opened.callback(os.close, lock_fd)
            records.reserve(folder, lock_fd)
            if order.members is not None:
                members.show(self._home, key, order.members)
            os.close(open_log(self._home.log(key)))
            pid = spawn(
                command,
                env=env,
                folder=folder,
                workdir=workdir,
                lock_fd=lock_fd,
                ends=ends,
                cgroups=tuple(groups.values()),
                leave=leave,
                ulimits=order.ulimits,
            )
            failed.pop_all()
            record = replace(record, pid=pid)
            with suppress(OSError):  # Without it the run goes on, and is found all the same.
                records.add_pid(record_fd, record)
        run = Run(key=key, state=RunState.STARTING, grace=order.grace)
        run = replace(run, serve=self._book.served.serve(key), port=self._book.served.port(key))
        return Live(record, run, child=True), pipes


def _port_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
