"""Each process of a local cluster is given its own settings and nobody else's secrets."""

from pathlib import Path

import pytest

from weft.credentials import Credentials, provision
from weft.domain.spec import TuningMode
from weft.servers import ServersState, ServerState
from weft.servers.state import write_state
from weftd.cli.local import ClusterHome, LocalCluster, Options
from weftd.cli.local.cluster import has_caddy
from weftd.cli.local.plan import Addresses, Service, not_used, role_dsn, services
from weftd.cli.local.process import environment
from weftd.cli.local.up import welcome
from weftd.cli.systems import SYSTEMS, systems
from weftd.reallocator.settings import ReallocatorSettings
from weftd.scorer.settings import ScorerSettings

HOME = ClusterHome(Path("/home"))
ADDRESSES = Addresses(
    nats_url="nats://127.0.0.1:1", pg_dsn="postgresql://weft_owner@127.0.0.1:2/weft", port=3, router_port=4
)


def planned(options: Options) -> dict[str, Service]:
    return {service.name: service for service in services(options, HOME, Credentials(HOME.credentials), ADDRESSES)}


def test_every_node_has_an_executor_and_a_telemetry_with_users_of_its_own() -> None:
    found = planned(Options(nodes=2, emulated_gpus=4))
    assert set(found) == {
        *("gateway", "scheduler", "scorer", "reallocator", "router"),
        *("executor-node-1", "telemetry-node-1", "executor-node-2", "telemetry-node-2"),
    }
    for name, service in found.items():
        assert service.settings["WEFT_NATS_USER"] == name
        assert service.settings["WEFT_NATS_PASSWORD_FILE"] == f"/home/credentials/nats/{name}"


def test_only_the_control_plane_is_told_of_postgres() -> None:
    told = {name for name, service in planned(Options()).items() if "WEFT_PG_DSN" in service.settings}
    assert told == {"gateway", "scheduler", "scorer", "reallocator", "router"}


def test_the_gateway_tells_where_the_router_is_and_of_none_where_none_runs() -> None:
    assert planned(Options())["gateway"].settings["GATEWAY_ROUTER_URL"] == "http://127.0.0.1:4"
    without = Addresses(nats_url=ADDRESSES.nats_url, pg_dsn=ADDRESSES.pg_dsn, port=3)
    found = {one.name: one for one in services(Options(), HOME, Credentials(HOME.credentials), without)}
    assert "router" not in found
    assert "GATEWAY_ROUTER_URL" not in found["gateway"].settings


def test_caddy_is_looked_for_where_the_router_looks(tmp_path: Path) -> None:
    assert not has_caddy({"ROUTER_CADDY": str(tmp_path / "caddy")})
    (tmp_path / "caddy").write_text("")
    (tmp_path / "caddy").chmod(0o755)
    assert has_caddy({"ROUTER_CADDY": str(tmp_path / "caddy")})
    assert has_caddy({})  # it is installed with the embedded servers


def test_the_executors_end_after_whoever_brings_work_and_before_the_scheduler_that_hears_of_it() -> None:
    stages = {name: service.stage for name, service in planned(Options()).items()}
    assert stages["gateway"] < stages["executor-node-1"] == stages["executor-node-2"] < stages["scheduler"]


def test_a_service_is_not_told_what_we_were_told_of_weft() -> None:
    ours = {"PATH": "/bin", "WEFT_TOKEN": "secret", "WEFT_HOME": "/elsewhere", "SCHEDULER_TICK_SECONDS": "1"}
    found = environment(ours, planned(Options())["scheduler"], 9)
    assert "WEFT_TOKEN" not in found
    assert "WEFT_HOME" not in found
    assert (found["PATH"], found["SCHEDULER_TICK_SECONDS"], found["SCHEDULER_ADMIN_PORT"]) == ("/bin", "1", "9")


def test_the_planner_of_sizes_is_switched_on_by_the_environment_too() -> None:
    given = {"REALLOCATOR_PARTITION": "on"}
    assert environment(given, planned(Options())["reallocator"], 9)["REALLOCATOR_PARTITION"] == "on"
    chosen = planned(Options(partition=TuningMode.ADVISE))["reallocator"]
    assert environment(given, chosen, 9)["REALLOCATOR_PARTITION"] == "advise", "the option is nearer than that"


def test_no_setting_of_the_environment_is_replaced_in_silence() -> None:
    given = {"EXECUTOR_SYNC_SECONDS": "5", "SCHEDULER_ORDER": "las", "SCHEDULER_POOL": "default", "WEFT_NATS_URL": "x"}
    assert not_used(given, planned(Options()).values()) == ["EXECUTOR_SYNC_SECONDS"]


def test_which_systems_are_on_is_told_in_plain_words() -> None:
    everything = ", ".join(SYSTEMS)
    assert systems({"scorer": {}, "reallocator": {}}) == f"on: {everything}"
    assert ReallocatorSettings().tuning is ReallocatorSettings().partition is ReallocatorSettings().serving
    assert (ReallocatorSettings().tuning, ScorerSettings().benchmarks) == ("on", "on"), "as the line takes for granted"
    mine = {"REALLOCATOR_TUNING": "advise", "REALLOCATOR_PARTITION": "off"}
    assert systems({"scorer": {}, "reallocator": mine}) == (
        "on: placement by measured GPU speed, services sized by their load; "
        "only advised: tuning of running jobs; off: sizes of elastic jobs"
    )
    plan = {service.name: service.settings for service in planned(Options()).values()}
    assert systems(plan).endswith("; on: " + ", ".join(list(SYSTEMS)[1:]))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("postgresql://weft_owner@127.0.0.1:5/weft", "postgresql://weft_scorer@127.0.0.1:5/weft"),
        ("postgresql://a:secret@h/weft?sslmode=require", "postgresql://weft_scorer@h/weft?sslmode=require"),
        ("postgresql:///weft?host=/run", "postgresql://weft_scorer@/weft?host=/run"),
    ],
)
def test_a_role_reaches_the_same_database_without_the_owners_password(given: str, wanted: str) -> None:
    assert role_dsn(given, "scorer") == wanted


def test_two_nodes_cannot_both_have_the_real_gpus_of_one_machine() -> None:
    with pytest.raises(ValueError, match="belong to one node"):
        Options(nodes=2, emulated_gpus=0)


def test_what_is_emulated_is_said() -> None:
    assert "8 emulated GPUs" in Options().in_words()
    assert "no hardware" in Options().pretended()
    assert "emulated" not in Options(nodes=1, emulated_gpus=0).in_words()


LINK = "http://127.0.0.1:8470/#code=code_1"


def test_what_is_told_of_a_new_cluster_says_where_everything_is(tmp_path: Path) -> None:
    """Postgres does not run as root: its data may be in another folder."""
    cluster = LocalCluster(ClusterHome(tmp_path), Options())
    provision(cluster.home.credentials, nodes=["node-1"])
    assert f"data and logs are in {tmp_path};" in welcome(cluster, LINK)
    apart = ServerState(pid=1, port=5432, version="18", folder=Path("/var/lib/weft/27aa"))
    write_state(tmp_path, ServersState(postgres=apart))
    told = welcome(cluster, LINK)
    assert f"data and logs are in {tmp_path}, those of Postgres in /var/lib/weft/27aa;" in told
    assert f"the dashboard, signed in: {LINK}" in told
    assert "the API is described at /v1/openapi.json" in told
    assert "weft top" in told
    assert "on: " not in told, "it has not started"
    cluster.systems = "on: everything"
    assert "\n  on: everything\n" in welcome(cluster, LINK)
    write_state(
        tmp_path, ServersState(postgres=ServerState(pid=1, port=5432, version="18", folder=tmp_path / "postgres"))
    )
    assert "Postgres in" not in welcome(cluster, LINK)
