"""deploy/stack.yml and docs/hosts.md, as far as they can be held without a swarm."""

from pathlib import Path
from typing import Any

import yaml

from tests.hosts.page import EVERY_HOST, at, steps

ROOT = Path(__file__).parents[2]
STACK = yaml.safe_load((ROOT / "deploy" / "stack.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
ON_NODES = {"executor", "guard", "telemetry"}


def test_the_processes_of_a_node_run_on_each_labelled_host_and_the_others_where_swarm_puts_them() -> None:
    assert {name for name, service in SERVICES.items() if service["deploy"].get("mode") == "global"} == ON_NODES
    for name in ON_NODES:
        assert SERVICES[name]["deploy"]["placement"]["constraints"] == ["node.labels.weft.node == true"]


def test_no_service_needs_the_kernels_load_balancer() -> None:
    for name, service in SERVICES.items():
        assert service["deploy"]["endpoint_mode"] == "dnsrr", name
        assert all(port["mode"] == "host" for port in service.get("ports", ())), name


def test_jobs_run_on_while_executors_are_replaced_and_have_no_host_network() -> None:
    environment = SERVICES["executor"]["environment"]
    assert environment["EXECUTOR_STOP_JOBS_ON_EXIT"] == "false"
    assert environment["EXECUTOR_JOB_NETWORK"] == "${WEFT_JOB_NETWORK:-weft-jobs-<tenant>}"
    assert environment["EXECUTOR_CLUSTER"] == SERVICES["telemetry"]["environment"]["TELEMETRY_CLUSTER"]


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
