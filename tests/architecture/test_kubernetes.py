"""deploy/kubernetes: what `kubectl kustomize` makes of it is Kubernetes', and says what Weft's settings understand.

No cluster runs here: docs/kubernetes.md says what was not seen to run.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import yaml

from weft.service.config import load, names
from weftd.executor.settings import ExecutorSettings
from weftd.gateway.settings import GatewaySettings
from weftd.reallocator.settings import ReallocatorSettings
from weftd.router.settings import RouterSettings
from weftd.scheduler.settings import SchedulerSettings
from weftd.scorer.settings import ScorerSettings
from weftd.telemetry.settings import TelemetrySettings

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(__file__).parent / "kubernetes-1.32.json").read_text())
SETTINGS: dict[str, type[msgspec.Struct]] = {
    "gateway": GatewaySettings,
    "scheduler": SchedulerSettings,
    "scorer": ScorerSettings,
    "reallocator": ReallocatorSettings,
    "router": RouterSettings,
    "executor": ExecutorSettings,
    "telemetry": TelemetrySettings,
}
OTHERWISE = {
    "SCHEDULER_POOL": "SCHEDULER_POOLS says it",
    "GATEWAY_VOLUMES_ALLOWED": "none by default",
    "EXECUTOR_VOLUMES_ALLOWED": "none by default",
    "EXECUTOR_SERVICE_PUBLISH_AT": "the engine publishes at the host's address",
    "EXECUTOR_JOB_NETWORK": "none by default",
    "EXECUTOR_ADMIN_HOST": "of a host's processes only the host itself asks",
    "TELEMETRY_ADMIN_HOST": "of a host's processes only the host itself asks",
    "TELEMETRY_DCGM_NAMES": "false by default",
}
"""Variables that docker-compose.yml sets and that are not set here, and why."""

Document = dict[str, Any]


def compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return services


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kustomizations as an operator has them, with secrets for two hosts."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    copied = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(ROOT / "deploy/kubernetes", copied, ignore=shutil.ignore_patterns("secrets"))
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for hosts in (("gpu-1",), ("gpu-2",)):  # those of earlier stay
        subprocess.run([copied / "make-secrets", *hosts], env=environ, check=True, timeout=60, capture_output=True)
    return copied


@pytest.fixture(scope="module", params=["base", "try"])
def documents(folder: Path, request: pytest.FixtureRequest) -> list[Document]:
    made = subprocess.run(
        ["kubectl", "kustomize", str(folder / request.param)], check=True, timeout=60, capture_output=True
    )
    return list(yaml.safe_load_all(made.stdout))


def pods(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """The name of each workload and the template of its pods."""
    for one in documents:
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]


def containers(documents: list[Document]) -> Iterator[tuple[str, Document, Document]]:
    for name, template in pods(documents):
        spec = template["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            yield f"{name}/{container['name']}", spec, container


def named(documents: list[Document], kind: str) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def keys_of(documents: list[Document], kind: str, name: str) -> dict[str, str]:
    found = named(documents, kind)
    assert name in found, f"there is no {kind} {name}"
    data: dict[str, str] = found[name].get("data", {})
    return data


def faults(document: Document) -> list[str]:
    group, _, version = document["apiVersion"].rpartition("/")
    of = f"io.k8s.api.{group.split('.')[0] or 'core'}.{version}.{document['kind']}"
    if of not in SCHEMA["definitions"]:
        return [f"{document['apiVersion']} {document['kind']} is unknown"]
    schema = {"$ref": f"#/definitions/{of}", "definitions": SCHEMA["definitions"]}
    return [
        f"{list(error.instance_path)}: {error.message}"
        for error in jsonschema_rs.validator_for(schema).iter_errors(document)
    ]


def test_every_document_is_what_kubernetes_takes(documents: list[Document]) -> None:
    assert not {one["metadata"]["name"]: found for one in documents if (found := faults(one))}
    assert {one["metadata"].get("namespace", "weft") for one in documents} == {"weft"}


def test_a_misspelt_field_and_a_wrong_type_are_found(documents: list[Document]) -> None:
    gateway = deepcopy(named(documents, "Deployment")["weft-gateway"])
    gateway["spec"]["template"]["spec"]["containers"][0]["imagePullPolcy"] = "Always"
    gateway["spec"]["replicas"] = "two"
    assert len(faults(gateway)) == 2
    assert faults({"apiVersion": "apps/v1", "kind": "Deploiment", "metadata": {"name": "x"}})


def test_every_volume_secret_and_setting_that_is_named_exists(documents: list[Document]) -> None:
    for where, spec, container in containers(documents):
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        claimed = {
            claim["metadata"]["name"]
            for one in named(documents, "StatefulSet").values()
            for claim in one["spec"]["volumeClaimTemplates"]
        }
        for mount in container["volumeMounts"]:
            assert mount["name"] in volumes.keys() | claimed, f"{where}: no volume {mount['name']}"
        for variable in container.get("env", ()):
            if reference := variable.get("valueFrom", {}).get("configMapKeyRef"):
                assert reference["key"] in keys_of(documents, "ConfigMap", reference["name"]), f"{where}: {reference}"
        for volume in volumes.values():
            if secret := volume.get("secret"):
                assert keys_of(documents, "Secret", secret["secretName"]), f"{where}: {secret}"
            if config := volume.get("configMap"):
                assert keys_of(documents, "ConfigMap", config["name"]), f"{where}: {config}"


def environ_of(documents: list[Document], container: Document) -> dict[str, str]:
    """As the kubelet makes it, of the host gpu-1."""
    fields, found = {"spec.nodeName": "gpu-1", "status.hostIP": "10.0.0.5"}, {}
    for variable in container.get("env", ()):
        value = variable.get("value", "")
        match variable.get("valueFrom", {}):
            case {"configMapKeyRef": reference}:
                value = keys_of(documents, "ConfigMap", reference["name"])[reference["key"]]
            case {"fieldRef": reference}:
                value = fields[reference["fieldPath"]]
        found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda used, known=found: known[used[1]], value)
    return found


def test_every_service_reads_its_settings_and_listens_where_kubernetes_looks(documents: list[Document]) -> None:
    seen = set()
    for where, spec, container in containers(documents):
        name = container["name"]
        if name not in SETTINGS:
            continue
        seen.add(name)
        prefix, environ = f"{name.upper()}_", environ_of(documents, container)
        unknown = {variable for variable in environ if variable.startswith(prefix)} - names(SETTINGS[name], prefix)
        assert not unknown, f"{where}: {unknown}"
        settings: Any = load(SETTINGS[name], prefix=prefix, environ=environ)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports.pop("admin") == settings.admin_port
        if ports:
            assert ports == {"http": settings.port}
            assert settings.host == "0.0.0.0"
        if not spec.get("hostNetwork"):
            assert settings.admin_host == "0.0.0.0"
            assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
            assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "admin"}
        assert settings.connections.nats_user.split("-")[0] == name
    assert seen == SETTINGS.keys()


def test_every_file_of_a_secret_is_mounted_where_the_settings_say(documents: list[Document]) -> None:
    for where, spec, container in containers(documents):
        if container["name"] not in (*SETTINGS, "migrate", "postgres"):
            continue
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        files = set()
        for mount in container["volumeMounts"]:
            volume = volumes.get(mount["name"], {})
            if secret := volume.get("secret"):
                data = keys_of(documents, "Secret", secret["secretName"])
                files |= {f"{mount['mountPath']}/{key}" for key in data}
                assert all(base64.b64decode(value).strip() for value in data.values()), "an empty secret"
        if spec.get("initContainers"):  # which gives the host's processes their own of all hosts' passwords
            (giving,) = spec["initContainers"]
            kind, there = re.fullmatch(r'install -m 0400 "/hosts/(\w+)-\$NODE" (\S+)', giving["command"][-1]).groups()
            (secret,) = (volume["secret"] for volume in spec["volumes"] if "secret" in volume)
            assert {f"{kind}-gpu-1", f"{kind}-gpu-2"} <= keys_of(documents, "Secret", secret["secretName"]).keys()
            files.add(there)
        needed = {value for key, value in environ_of(documents, container).items() if key.endswith("_FILE")}
        assert needed <= files, f"{where}: {needed - files}"


def test_a_service_has_no_password_but_its_own(documents: list[Document]) -> None:
    for name, keys in {
        "gateway": {"nats", "postgres", "admin-token", "scorer-token"},
        "scorer": {"nats", "postgres", "scorer-token"},
        **{each: {"nats", "postgres"} for each in ("scheduler", "reallocator", "router")},
    }.items():
        (secret,) = (
            volume["secret"]["secretName"]
            for where, template in pods(documents)
            for volume in template["spec"].get("volumes", ())
            if where == f"weft-{name}" and "secret" in volume
        )
        assert keys_of(documents, "Secret", secret).keys() == keys


def test_images_commands_and_settings_are_those_of_compose(documents: list[Document]) -> None:
    services = compose()
    for where, _, container in containers(documents):
        name = container["name"]
        if name not in services:
            assert where.endswith("/secrets")
            continue
        of_compose = services[name]
        image = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", of_compose["image"])
        assert container["image"] == image, where
        command = [
            part.replace("${WEFT_HOME:-/var/lib/weft}/node-1", "/var/lib/weft/$(NODE)")
            for part in of_compose["command"]
        ]
        assert container.get("command", container.get("args")) == command, where
        missing = of_compose.get("environment", {}).keys() - {variable["name"] for variable in container.get("env", ())}
        assert missing <= OTHERWISE.keys(), f"{where}: {missing - OTHERWISE.keys()}"


def test_pods_get_no_token_of_the_cluster_and_no_variables_of_its_services(documents: list[Document]) -> None:
    for where, template in pods(documents):
        assert template["spec"]["automountServiceAccountToken"] is False, where
        assert template["spec"]["enableServiceLinks"] is False, where


def test_only_the_processes_of_a_host_have_more_than_a_container_needs(documents: list[Document]) -> None:
    for where, template in pods(documents):
        (container,) = template["spec"]["containers"]
        has = container["securityContext"]
        if where in ("weft-executor", "weft-guard", "weft-telemetry"):
            assert template["spec"]["nodeSelector"] == {"weft/host": "true"}
            continue
        assert has["capabilities"] == {"drop": ["ALL"]}, where
        assert has["allowPrivilegeEscalation"] is False, where
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True, where
        assert not template["spec"].get("hostNetwork"), where


def test_services_and_budgets_select_pods_that_exist(documents: list[Document]) -> None:
    labels = [(template["metadata"]["labels"], template) for _, template in pods(documents)]
    for one in documents:
        if one["kind"] not in ("Service", "PodDisruptionBudget"):
            continue
        selector = one["spec"]["selector"]
        wanted = selector.get("matchLabels", selector).items()
        (template,) = (template for found, template in labels if wanted <= found.items())
        ports = {port["name"] for container in template["spec"]["containers"] for port in container.get("ports", ())}
        assert {port["targetPort"] for port in one["spec"].get("ports", ())} <= ports


def test_every_selector_is_of_the_labels_of_its_own_pods(documents: list[Document]) -> None:
    for one in documents:
        if one["kind"] in ("Deployment", "DaemonSet", "StatefulSet"):
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_nats_for_trying_is_configured_as_in_compose() -> None:
    assert (ROOT / "deploy/kubernetes/try/nats.conf").read_text() == (ROOT / "deploy/nats.conf").read_text()


def test_the_servers_for_trying_are_where_the_settings_say(documents: list[Document]) -> None:
    services = named(documents, "Service")
    if "nats" not in services:
        pytest.skip("this kustomization has no servers")
    settings = named(documents, "ConfigMap")["weft"]["data"]
    (nats,) = services["nats"]["spec"]["ports"]
    (postgres,) = services["postgres"]["spec"]["ports"]
    assert settings["nats"] == f"nats://nats:{nats['port']}"
    assert settings["postgres"] == f"postgres:{postgres['port']}/weft"


def test_make_secrets_wants_a_host_and_changes_nothing_without(folder: Path) -> None:
    before = (folder / "base/secrets/kustomization.yaml").read_text()
    refused = subprocess.run([folder / "make-secrets"], timeout=60, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "name the GPU hosts" in refused.stderr
    assert (folder / "base/secrets/kustomization.yaml").read_text() == before
