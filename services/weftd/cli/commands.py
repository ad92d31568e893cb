"""Every command: the module that adds it, and the line that `weft --help` shows for it."""

import importlib
from types import ModuleType
from typing import NamedTuple

from weftd.cli.cli_error import CliError


class Command(NamedTuple):
    """`extra`: the extra of the distribution that installs what the module imports; empty: the base has it all."""

    module: str
    summary: str
    extra: str = ""


def _commands(module: str, *, extra: str = "", **summaries: str) -> dict[str, Command]:
    return {name: Command(f"weftd.cli.{module}", summary, extra) for name, summary in summaries.items()}


_RUN = {
    **_commands("jobs.run", run="run a command as a job"),
    **_commands("jobs.submit", submit="submit a job from a YAML or JSON file"),
    **_commands("jobs.wait", wait="wait until jobs have ended; the exit status says how"),
}
_SEE = {
    **_commands("jobs.ps", ps="list waiting and running jobs; -a for all"),
    **_commands("cluster.nodes", nodes="list nodes, their GPUs and the jobs that hold them"),
    **_commands("cluster.gpus", gpus="list GPUs with their holders and their speed for each class of jobs"),
    **_commands("cluster.health", health="list sick GPUs and nodes, with cause and remedy"),
    **_commands("cluster.status", status="check services and servers of the cluster; a remedy for each problem"),
    **_commands("cluster.top", top="show the cluster and its queue, live"),
    **_commands("jobs.describe", describe="show a job and its event history, or the cluster; --at TIME: the past"),
    **_commands("jobs.explain", explain="say why a job waits, or why it runs where it runs"),
    **_commands("jobs.logs", logs="print the output of a job; -f to follow"),
    **_commands("jobs.sweep", sweep="a sweep as a table: values, metric, curve; --best"),
    **_commands("jobs.metrics", metrics="the numbers that a job reported, such as its loss"),
    **_commands("jobs.tensorboard", tensorboard="TensorBoard here, on what jobs wrote"),
    **_commands("jobs.files", files="the files that a job wrote, also after its end"),
    **_commands("admin.usage", usage="GPU hours held, used and lost, and what they cost"),
    **_commands("jobs.schedules", schedules="jobs that run again and again: next run, last run; pause, resume, remove"),
    **_commands("jobs.events", events="list the events of the cluster; -f to follow"),
}
_ACT = {
    **_commands(
        "jobs.many",
        cancel="end jobs",
        requeue="send jobs back to the queue, to start again",
    ),
    **_commands(
        "jobs.act",
        priority="change a job's priority",
        scale="change a job's size: JOB worker=4",
        share="change a running job's share of a GPU: JOB --request 0.5",
    ),
    **_commands(
        "cluster.draining",
        cordon="give a node no new jobs",
        drain="give a node no new jobs; --evict stops what runs there",
        resume="let a drained node take jobs again",
    ),
    **_commands(
        "cluster.marking",
        label="give nodes labels, by which jobs choose them: NODE zone=a",
        taint="give nodes taints, which keep other jobs away: NODE dedicated=vision",
    ),
    **_commands("cluster.health", gpu="use a sick GPU again: gpu return NODE GPU"),
}
_ENTER = {
    **_commands("sessions.shell", shell="open a terminal in a running job", exec="run one command in a running job"),
    **_commands("sessions.forward", **{"port-forward": "forward ports of a running job to 127.0.0.1 here"}),
    **_commands("sessions.copying", cp="copy files to and from a job"),
    **_commands(
        "sessions.ssh_config", extra="ssh", **{"ssh-config": "let ssh, scp, rsync and editors reach jobs as JOB.weft"}
    ),
    **_commands("sessions.ssh_proxy", extra="ssh", **{"ssh-proxy": "serve as the ProxyCommand of `weft ssh-config`"}),
}
_SERVE = {
    **_commands("services.serve", serve="a language model as a service, by a recipe for its engine"),
    **_commands("services.batch.command", batch="ask a model the requests of a file, at low priority"),
    **_commands("services.update", update="change what a service runs, replica by replica"),
    **_commands(
        "services.endpoints",
        endpoints="list the replicas of a service, with their addresses",
        open="print the URL of a service, or of the dashboard",
    ),
    **_commands("services.call", call="send a request to a service"),
    **_commands("services.notebook", notebook="start JupyterLab as a job; print its URL"),
}
_CLUSTER = {
    **_commands("local.up", extra="embedded", up="start a cluster on this machine, or attach to it"),
    **_commands("local.down", extra="embedded", down="stop the cluster of this machine; its data stay"),
    **_commands("cluster.node", extra="cluster", node="let another machine join as a node, by one command"),
    **_commands("cluster.doctor", extra="cluster", doctor="find what is missing on this machine and in the cluster"),
    **_commands("cluster.bench_gpu", **{"bench-gpu": "measure how fast GPUs are"}),
    **_commands("local.emulate", extra="embedded", emulate="make an emulated GPU slow, sick or healthy again"),
    **_commands("demo", extra="embedded", demo="run a demo: jobs share a cluster, in about two minutes"),
    **_commands("admin.setup", setup="make the credentials of a cluster"),
    **_commands("study.replay", replay="repeat the scheduler's recorded decisions, and compare"),
    **_commands("admin.migrate", extra="cluster", migrate="bring the database to this version"),
    **_commands(
        "admin.backup",
        extra="cluster",
        backup="write the state of a cluster to a file",
        restore="put the state of a backup into a cluster",
    ),
    **_commands(
        "admin.administration",
        token="create, list and revoke access tokens",
        quota="show and set guarantees and limits of tenants",
        webhook="post events to a URL",
        secret="store secrets for jobs",
        session="list and end the sessions of browsers",
        user="list people, keep them out and let them in",
    ),
    **_commands("admin.audit", audit="print the audit log: acts of administrators, sign-ins, refusals"),
    **_commands("admin.image", image="images in the cluster's registry, and logins at other registries"),
    **_commands("admin.administration", tenant="show and set limits on the submissions of tenants"),
}
_BEGIN = {
    **_commands(
        "people.login",
        login="sign in to a cluster, and use it from now on",
        logout="forget a context and its token",
        whoami="print the tenant and the token that commands use",
    ),
    **_commands("people.context", context="list and choose the clusters that you signed in to"),
    **_commands("migration.init", init="write a job file to begin with, each field explained"),
    **_commands("migration.migrate_from", **{"migrate-from": "translate a Slurm script or a Determined configuration"}),
    **_commands("slurm.install", slurm="install sbatch, squeue and the like, which use this cluster"),
    **_commands("complete", completion="print the completion of bash, zsh or fish"),
    **_commands("assistant.mcp", mcp="serve MCP on stdin and stdout, for assistants"),
}
_STUDY = {
    **_commands("study.export", export="export the queue and history as a trace for `weft simulate`"),
    **_commands("study.what_if", **{"what-if": "simulate the queue with a change, and compare each job"}),
    **_commands(
        "study.simulate", extra="cluster", simulate="run a trace of jobs on a simulated cluster, and compare policies"
    ),
}

FAMILIES = {
    "Run": list(_RUN),
    "See": list(_SEE),
    "Act": list(_ACT),
    "Enter": list(_ENTER),
    "Serve": list(_SERVE),
    "Cluster": list(_CLUSTER),
    "Study": list(_STUDY),
    "Begin": list(_BEGIN),
}
COMMANDS = {**_RUN, **_SEE, **_ACT, **_ENTER, **_SERVE, **_CLUSTER, **_STUDY, **_BEGIN}


def load(name: str) -> ModuleType:
    """Import the module of a command. Raises CliError if the installation lacks the extra of the command."""
    command = COMMANDS[name]
    try:
        return importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if not command.extra or error.name is None or error.name.partition(".")[0] in ("weft", "weftd"):
            raise
        raise CliError(f"{name} needs more than the client: pip install 'weft-gpu[{command.extra}]'") from error
