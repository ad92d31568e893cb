"""Problems and warnings of the cluster itself, each with a remedy. Pure."""

from collections.abc import Iterator, Sequence

from weft.domain.health import HealthRecord
from weft.domain.quantity import duration_text
from weft.domain.text import listed, plural
from weft.messages.http import NodeView
from weft.messages.http.status import DatabaseView, Grave, ServiceView, StatusFinding

NEEDED = {
    "scheduler": "no job starts, and ends of jobs are not recorded; running jobs continue",
    "scorer": "speeds of GPUs are not updated; jobs are placed by the last known speeds",
    "reallocator": "no running job is tuned or resized, and services keep their size",
}
"""The services that every cluster has besides gateways, and what is missing without them."""

ROUTER = "services are not reached through the router"
SILENT_SECONDS = 15.0  # three reports
CONNECTIONS_PART = 0.8
UNSENT_MANY = 10_000
ASKS_MANY = 10_000
NAMED_MAX = 5


def findings(
    *,
    version: str,
    nats: bool,
    database: DatabaseView | None,
    migrations: Sequence[str],
    services: Sequence[ServiceView],
    heard_seconds: float,
    routed: bool,
    pools: Sequence[str],
    nodes: Sequence[NodeView],
) -> list[StatusFinding]:
    """The findings, problems first. `heard_seconds`: time in which services could have reported; `routed`: the cluster
    has an address for its services."""
    heard = [one for one in services if one.silent_seconds <= SILENT_SECONDS]
    could_report = nats and heard_seconds > SILENT_SECONDS
    carries = any(one.service == "gateway" for one in heard)  # its own reports come by NATS, too
    found = [
        *_servers(nats and (carries or not could_report), database, migrations),
        *(_services(version, services, heard, pools, routed=routed) if could_report and carries else ()),
        *_nodes(nodes),
    ]
    return sorted(found, key=lambda one: one.grave is not Grave.PROBLEM)


def _servers(nats: bool, database: DatabaseView | None, migrations: Sequence[str]) -> Iterator[StatusFinding]:
    if not nats:
        yield _problem(
            "nats", "the gateway has no connection to NATS", "start NATS, or look at its log; nothing is lost"
        )
    if database is None:
        yield _problem(
            "postgres",
            "Postgres does not answer: new jobs are refused, and running jobs continue",
            "start Postgres, or look at its log and its disk",
        )
        return
    if missing := [name for name in migrations if name not in database.ran]:
        yield _problem("postgres", f"the database lacks {listed(missing, NAMED_MAX)}", "weft migrate")
    if unknown := [name for name in database.ran if name not in migrations]:
        sentence = f"the database has {listed(unknown, NAMED_MAX)}, of a later version"
        yield _warning("gateway", sentence, "bring this gateway to that version")
    if database.connections >= CONNECTIONS_PART * database.connections_max:
        sentence = f"{database.connections} of {database.connections_max} connections to Postgres are in use"
        yield _warning("postgres", sentence, "set max_connections higher, or run fewer gateways")
    if database.unsent >= UNSENT_MANY:
        sentence = f"{database.unsent:,} or more events wait to be published"
        yield _warning("nats", sentence, "check that a scheduler leads and that the NATS stream accepts events")
    if database.asks >= ASKS_MANY:
        sentence = f"{database.asks:,} or more submissions and commands wait for a scheduler"
        yield _warning("scheduler", sentence, "check that a scheduler leads")


def _services(
    version: str, services: Sequence[ServiceView], heard: Sequence[ServiceView], pools: Sequence[str], *, routed: bool
) -> Iterator[StatusFinding]:
    there = {one.service for one in heard if one.ready}
    for service, loss in {**NEEDED, **({"router": ROUTER} if routed else {})}.items():
        if service not in there:
            yield _problem(service, f"no {service} is running: {loss}", f"start a {service}, or look at its log")
    led = {pool for one in heard for pool in one.leads}
    if "scheduler" in there and (unled := sorted(set(pools) - led)):
        sentence = f"no scheduler leads {plural(len(unled), 'pool')}: {listed(unled, NAMED_MAX)}"
        yield _problem("scheduler", sentence, "wait for the lease to end, about ten seconds; then look at its log")
    for one in heard:
        if one.stuck:
            sentence = f"{one.instance} is stuck in {listed(one.stuck, NAMED_MAX)}"
            yield _problem(one.service, sentence, "look at its log, and restart it: nothing is lost")
    for one in services:
        if one.silent_seconds > SILENT_SECONDS and one.service in there:
            sentence = f"{one.instance} has been silent for {duration_text(one.silent_seconds)}"
            yield _warning(one.service, sentence, "look at its log, unless you stopped it")
    if others := sorted({f"{one.service} {one.version}" for one in heard if one.version != version}):
        sentence = f"this gateway has version {version}; other services: {listed(others, NAMED_MAX)}"
        yield _warning("gateway", sentence, "bring all services to one version")


def _nodes(nodes: Sequence[NodeView]) -> Iterator[StatusFinding]:
    if lost := [node.id for node in nodes if not node.ready]:
        yield _problem("nodes", f"no report from: {listed(lost, NAMED_MAX)}", "check its executor: weft nodes")
    if silent := [node.id for node in nodes if node.ready and node.silent_seconds]:
        yield _warning("nodes", f"late with their reports: {listed(silent, NAMED_MAX)}", "weft nodes")
    if full := [node.id for node in nodes if node.use and node.use.disk_full]:
        sentence = f"the disk of runs and logs is full on {listed(full, NAMED_MAX)}: no job starts there"
        yield _problem("nodes", sentence, "make room on it")
    if sick := [node.id for node in nodes if any(one is not None and not one.well for one in _health(node))]:
        yield _warning("nodes", f"sick, or with sick GPUs: {listed(sick, NAMED_MAX)}", "weft health")


def _health(node: NodeView) -> Iterator[HealthRecord | None]:
    yield node.health
    for gpu in node.gpus:
        yield gpu.health


def _problem(about: str, sentence: str, act: str) -> StatusFinding:
    return StatusFinding(grave=Grave.PROBLEM, about=about, sentence=sentence, act=act)


def _warning(about: str, sentence: str, act: str) -> StatusFinding:
    return StatusFinding(grave=Grave.WARNING, about=about, sentence=sentence, act=act)
