"""What deploy/monitoring watches is really told, each alert says what to do, and the board can be drawn."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from weftd.executor.metrics import ExecutorGauges
from weftd.telemetry import metrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy/monitoring"
SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


@cache
def told() -> frozenset[str]:
    """The metrics' names, without what Prometheus puts behind them."""
    sources = [path.read_text() for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    names = {name for source in sources for name in re.findall(r'"(weft_[a-z0-9_]+)"', source)}
    tables = (metrics._GPU, metrics._GPU_TOTALS, metrics._NODE, metrics._RUN, metrics._RUN_TOTALS)
    tables += (metrics._SHARE, metrics._SHARE_TOTALS)
    names |= {name for table in tables for name, *_ in table}
    names |= {family.name for family in ExecutorGauges().registry.collect()}
    return frozenset(names)


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]


def board() -> list[dict[str, Any]]:
    return [
        panel for panel in json.loads((MONITORING / "grafana/weft.json").read_text())["panels"] if "targets" in panel
    ]


def watched() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in board():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "expr"), list(watched()))
def test_every_metric_that_is_watched_is_told(where: str, expr: str) -> None:
    names = {SUFFIX.sub("", name) for name in re.findall(r"\bweft_[a-z0-9_]+", expr) if not name.endswith("_")}
    assert names <= told(), f"{where}: nobody tells {sorted(names - told())}"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_says_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket", "info")
    assert rule["annotations"]["summary"]
    assert len(rule["annotations"]["action"]) > 40


def test_the_first_xid_of_its_kind_alerts_though_a_series_that_begins_at_1_is_no_increase() -> None:
    (expr,) = (expr for alert, expr in watched() if alert == "WeftGpuXid")
    kinds = 'weft_gpu_xid_errors_total{xid!~"13|31|43|45"}'
    words = " ".join(expr.split())
    assert words == f"increase({kinds}[10m]) > 0 or ({kinds} unless weft_gpu_xid_errors_total offset 10m)"


def test_every_process_is_scraped_at_the_port_where_it_tells() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    telling = {
        name
        for name, service in compose.items()
        if any(key.endswith("_ADMIN_PORT") and port == "9470" for key, port in service.get("environment", {}).items())
    }
    (job,) = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    (lookup,) = job["dns_sd_configs"]
    assert set(lookup["names"]) == telling
    assert lookup["port"] == 9470
    assert all(compose[name]["environment"][f"{_prefix(name)}_ADMIN_HOST"] == "0.0.0.0" for name in telling)


def test_nobody_logs_in_to_the_board_with_a_password_that_everybody_knows() -> None:
    grafana = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    assert grafana["environment"] == {
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_AUTH_BASIC_ENABLED": "false",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
    }


def test_compose_publishes_on_the_loopback_address_unless_it_is_told_another() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith(("127.0.0.1:", "${WEFT_BIND:-127.0.0.1}:")) for port in published), published


def _prefix(service: str) -> str:
    return service.removesuffix("-2").upper()


def test_no_two_panels_of_the_board_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board():
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
        assert at["x"] + at["w"] <= 24
