"""The processes of a local cluster, and the settings of each. Pure."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from weft.credentials import Credentials
from weftd.cli.local.home import ClusterHome
from weftd.cli.local.options import Options


class Stage(IntEnum):
    """The order of stopping."""

    CONTROL = 1  # no new job comes in
    NODE = 2  # each ends its runs, and reports that
    SCHEDULER = 3  # which takes those reports


class Service(Struct, frozen=True, kw_only=True):
    """One process: its name here, its module, its settings except the port of its probes."""

    name: str
    module: str
    stage: Stage
    settings: Mapping[str, str]
    log: Path

    @property
    def admin_setting(self) -> str:
        return f"{self.module.rpartition('.')[2].upper()}_ADMIN_PORT"


class Addresses(Struct, frozen=True, kw_only=True):
    nats_url: str
    pg_dsn: str
    port: int  # of the gateway
    router_port: int = 0  # 0: no router runs


def services(options: Options, home: ClusterHome, credentials: Credentials, addresses: Addresses) -> list[Service]:
    """Every process of the cluster."""
    made = [
        _control("gateway", options, home, credentials, addresses, _gateway(options, credentials, addresses)),
        _control("scheduler", options, home, credentials, addresses, {"SCHEDULER_POOL": options.pool}),
        _control("scorer", options, home, credentials, addresses, _scorer(options, credentials)),
        _control("reallocator", options, home, credentials, addresses, _reallocator(options)),
    ]
    if addresses.router_port:
        own = {"ROUTER_PORT": str(addresses.router_port)}
        made.append(_control("router", options, home, credentials, addresses, own))
    for node_id in options.node_ids:
        made.append(_node("executor", node_id, options, home, credentials, addresses))
        made.append(_node("telemetry", node_id, options, home, credentials, addresses))
    return made


def not_used(ours: Mapping[str, str], planned: Iterable[Service]) -> list[str]:
    """The settings in our environment in whose place the cluster has a value of its own."""
    found = {
        name
        for service in planned
        for name, value in service.settings.items()
        if not name.startswith("WEFT_") and ours.get(name, value) != value
    }
    return sorted(found)


def role_dsn(dsn: str, role: str) -> str:
    """The same database as another user, whose password comes from a file."""
    parts = urlsplit(dsn)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"weft_{role}@{place}"))


def _control(
    name: str,
    options: Options,
    home: ClusterHome,
    credentials: Credentials,
    addresses: Addresses,
    own: Mapping[str, str],
) -> Service:
    settings = {
        **_bus(credentials, addresses, name),
        "WEFT_PG_DSN": role_dsn(addresses.pg_dsn, name),
        "WEFT_PG_PASSWORD_FILE": str(credentials.postgres_password_file(name)),
        **own,
        **options.settings,
    }
    stage = Stage.SCHEDULER if name == "scheduler" else Stage.CONTROL
    return Service(name=name, module=f"weftd.{name}", stage=stage, settings=settings, log=home.log(name))


def _gateway(options: Options, credentials: Credentials, addresses: Addresses) -> dict[str, str]:
    router = {"GATEWAY_ROUTER_URL": f"http://127.0.0.1:{addresses.router_port}"} if addresses.router_port else {}
    return {
        **router,
        "GATEWAY_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(addresses.port),
        "GATEWAY_REGISTRY_ADDRESS": f"127.0.0.1:{addresses.port}",
        "GATEWAY_ADMIN_TOKEN_FILE": str(credentials.admin_token_file),
        "GATEWAY_SCORER_TOKEN_FILE": str(credentials.scorer_token_file),
    }


def _scorer(options: Options, credentials: Credentials) -> dict[str, str]:
    if not options.benchmarks:
        return {"SCORER_BENCHMARKS": "off"}
    return {"SCORER_TOKEN_FILE": str(credentials.scorer_token_file)}


def _reallocator(options: Options) -> dict[str, str]:
    partition = {} if options.partition is None else {"REALLOCATOR_PARTITION": options.partition.value}
    return {"REALLOCATOR_POOL": options.pool, **partition}


def _node(
    kind: str, node_id: str, options: Options, home: ClusterHome, credentials: Credentials, addresses: Addresses
) -> Service:
    prefix = kind.upper()
    settings = {
        **_bus(credentials, addresses, f"{kind}-{node_id}"),
        f"{prefix}_NODE_ID": node_id,
        f"{prefix}_POOL": options.pool,
        f"{prefix}_HOME": str(home.node(node_id)),
        f"{prefix}_RUNTIME": "process",
        f"{prefix}_EMULATED_GPUS": str(options.emulated_gpus),
    }
    if kind == "executor":
        settings |= {
            "EXECUTOR_ADDRESS": "127.0.0.1",
            "EXECUTOR_CHECKPOINTS": str(home.checkpoints),
            "EXECUTOR_CPUS": f"{options.node_cpus:g}",
            "EXECUTOR_MEMORY": str(options.node_memory),
            "EXECUTOR_STOP_JOBS_ON_EXIT": "1",
            "EXECUTOR_SYNC_SECONDS": "0.5",  # so that a node joins soon after the scheduler is there
        }
    settings |= options.settings
    name = f"{kind}-{node_id}"
    stage = Stage.NODE if kind == "executor" else Stage.CONTROL
    return Service(name=name, module=f"weftd.{kind}", stage=stage, settings=settings, log=home.log(name))


def _bus(credentials: Credentials, addresses: Addresses, user: str) -> dict[str, str]:
    return {
        "WEFT_NATS_URL": addresses.nats_url,
        "WEFT_NATS_USER": user,
        "WEFT_NATS_PASSWORD_FILE": str(credentials.nats_password_file(user)),
    }
