"""deploy/stack.yml and docs/hosts.md, as far as they can be held without a swarm."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.hosts.page import EVERY_HOST, at, steps

ROOT = Path(__file__).parents[2]
STACK = yaml.safe_load((ROOT / "deploy" / "stack.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OVER = yaml.safe_load((ROOT / "deploy" / "stack-failover.yml").read_text())  # laid over it
FAILING_OVER: dict[str, dict[str, Any]] = OVER["services"]
ON_NODES = {"executor", "guard", "telemetry"}


def test_the_processes_of_a_node_run_on_each_labelled_host_and_the_others_where_swarm_puts_them() -> None:
    assert {name for name, service in SERVICES.items() if service["deploy"].get("mode") == "global"} == ON_NODES
    for name in ON_NODES:
        assert SERVICES[name]["deploy"]["placement"]["constraints"] == ["node.labels.weft.node == true"]


def test_replicas_are_spread_over_the_sites_of_hosts() -> None:
    for name in ("gateway", "scheduler", "scorer", "reallocator", "router"):
        assert SERVICES[name]["deploy"]["placement"]["preferences"] == [{"spread": "node.labels.weft.site"}], name


def test_no_service_needs_the_kernels_load_balancer() -> None:
    for name, service in SERVICES.items():
        assert service["deploy"]["endpoint_mode"] == "dnsrr", name
        assert all(port["mode"] == "host" for port in service.get("ports", ())), name


def test_the_stack_is_deployed_only_where_its_open_ports_are_stated_to_be_private() -> None:
    """Swarm publishes a port on every address of a host, and these answer without TLS."""
    published = {name for name, service in SERVICES.items() if service.get("ports")}
    assert published == {"nats", "gateway", "router"}
    assert SERVICES["nats"]["labels"]["weft.private-network"].startswith("${WEFT_PRIVATE_NETWORK:?")
    page = (ROOT / "docs" / "hosts.md").read_text()
    assert page.count("export WEFT_STORE_ADDRESS=10.0.0.1") == page.count("WEFT_PRIVATE_NETWORK=yes\n")


def test_jobs_run_on_while_executors_are_replaced_and_have_no_host_network() -> None:
    environment = SERVICES["executor"]["environment"]
    assert environment["EXECUTOR_STOP_JOBS_ON_EXIT"] == "false"
    assert environment["EXECUTOR_JOB_NETWORK"] == "${WEFT_JOB_NETWORK:-weft-jobs-<tenant>}"
    assert environment["EXECUTOR_CLUSTER"] == SERVICES["telemetry"]["environment"]["TELEMETRY_CLUSTER"]


def test_no_default_of_a_variable_has_a_variable() -> None:
    """`docker stack deploy` takes the inner one for text, so that a gateway had no port in its address."""
    for name in ("stack.yml", "stack-failover.yml"):
        assert re.findall(r"\$\{\w+:?-[^}]*\$\{", (ROOT / "deploy" / name).read_text()) == []


def test_no_service_has_rights_or_a_file_system_that_compose_would_not_give_it() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert set(service.get("cap_add", ())) <= set(compose[name].get("cap_add", ())), name
        assert service["read_only"], name


def test_every_secret_has_a_version_in_its_name_and_is_a_file_of_the_credentials() -> None:
    for name, secret in STACK["secrets"].items():
        assert secret["name"] == f"weft-{name}-${{WEFT_CREDENTIALS_VERSION:-1}}"
        assert secret["file"].startswith("${WEFT_CREDENTIALS:-../credentials}/")
    used = {secret["source"] for service in SERVICES.values() for secret in service.get("secrets", ())}
    assert used == set(STACK["secrets"])


def test_every_command_of_the_page_names_the_host_on_which_it_is_executed() -> None:
    found = steps()
    assert len(found) >= 10
    assert EVERY_HOST in {step.where for step in found}
    assert at("ping 10.0.0.1 10.0.0.3", ["a", "b", "c"]) == "ping a c"


def test_with_failover_every_service_has_all_servers_of_nats_and_both_of_postgres() -> None:
    servers = ["nats", "nats-2", "nats-3"]
    for name, service in SERVICES.items():
        over = FAILING_OVER.get(name, {}).get("environment", {})
        if "WEFT_NATS_URL" in service.get("environment", {}):
            addresses = over["WEFT_NATS_URL"].split(",")
            assert len(addresses) == 3, name
            assert name in ON_NODES or addresses == [f"nats://{server}:4222" for server in servers], name
        if dsn := service.get("environment", {}).get("WEFT_PG_DSN"):
            both = (
                dsn.replace("@postgres:5432/", "@postgres:5432,postgres-2:5432/") + "?target_session_attrs=read-write"
            )
            assert over["WEFT_PG_DSN"] == both, name
    assert {f"{name}-data" for name in ("nats-1", "nats-2", "nats-3", "postgres-2")} == set(OVER["volumes"])
    assert FAILING_OVER["scheduler"]["environment"]["SCHEDULER_NATS_REPLICAS"] == "3"


def test_each_server_that_fails_over_is_once_on_a_host_of_its_label_and_has_the_rights_of_the_first() -> None:
    for name, first, label in (
        ("nats-2", "nats", "store-2"),
        ("nats-3", "nats", "store-3"),
        ("postgres-2", "postgres", "store-2"),
    ):
        service = FAILING_OVER[name]
        assert service["deploy"]["placement"]["constraints"] == [f"node.labels.weft.{label} == true"]
        assert service["deploy"]["replicas"] == 1
        assert service["deploy"]["endpoint_mode"] == "dnsrr"
        for right in ("cap_drop", "cap_add", "read_only", "networks", "image"):
            assert service.get(right) == SERVICES[first].get(right), f"{name}: {right}"
    names = {name: FAILING_OVER[name]["environment"]["WEFT_NATS_NAME"] for name in ("nats", "nats-2", "nats-3")}
    assert names == {name: name for name in names}
