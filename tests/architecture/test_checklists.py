"""The checklists name files and tests that exist, and what a list promises a test for is in the docs."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from tests.support.steps import CAUSES
from weft.credentials.folder import POSTGRES_ROLES
from weft.domain.job import STEPS, Job, JobEvent
from weft.messages.events import JobEventData
from weft.messages.http import EventData
from weft.planning.policy import BACKFILLS, ORDERS, PLACEMENTS
from weft.service import Connections
from weft.service.config import names as names_of
from weft.store.migrate import ROLES
from weft.store.rows import COLUMNS

ROOT = Path(__file__).parents[2]
PAGES = ("ARCHITECTURE.md", "README.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))))
SERVICES = ("arbiter", "executor", "gateway", "reallocator", "router", "scheduler", "scorer", "telemetry")
PATH = re.compile(r"`((?:libs|services|tests|docs|deploy)/[\w./-]+)(?:::(\w+))?`")


@pytest.mark.parametrize("page", PAGES)
def test_a_path_or_test_that_a_page_names_exists(page: str) -> None:
    for path, test in PATH.findall((ROOT / page).read_text()):
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


def test_every_event_of_a_job_can_be_taken_in_tests() -> None:
    assert CAUSES.keys() == {event for _, event in STEPS} == set(JobEvent) - {JobEvent.SUBMITTED}


def test_what_an_event_says_is_read_again() -> None:
    assert set(JobEventData.__struct_fields__) <= set(EventData.__struct_fields__)


def test_every_field_that_a_step_changes_is_stored() -> None:
    never = {"id", "tenant", "spec", "seq", "submitted_at", "submitter"}  # of the submission
    assert {field for field, _, _ in COLUMNS} == set(Job.__struct_fields__) - never - {"version"}
    sql = ROOT.joinpath("libs/weft/store/sql/functions/steps.sql").read_text()
    written, read = re.findall(r"\(([\w,\s]+)\)\s+= \(SELECT ([\w,\s]+?)\s+FROM jsonb_populate_record", sql)[0]
    assert re.findall(r"\w+", written) == re.findall(r"\w+", read)
    assert set(re.findall(r"\w+", written)) == {column for _, column, _ in COLUMNS} | {"version", "last_event"}


@pytest.mark.parametrize("name", [*ORDERS, *PLACEMENTS, *BACKFILLS])
def test_every_policy_has_a_row(name: str) -> None:
    assert f"| `{name}`" in (ROOT / "docs/policies.md").read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_is_in_the_docs(service: str) -> None:
    settings = getattr(importlib.import_module(f"weftd.{service}.settings"), f"{service.title()}Settings")
    names = sorted(names_of(settings, f"{service.upper()}_") | names_of(Connections, "WEFT_"))
    text = "".join((ROOT / "docs" / page).read_text() for page in ("operating.md", "security.md", "tuning.md"))
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []


def test_no_service_imports_another() -> None:
    """The contract of the import linter names every service, and the command line."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (modules,) = (contract["modules"] for contract in contracts if contract["type"] == "independence")
    assert sorted(modules) == sorted(f"weftd.{name}" for name in (*SERVICES, "cli"))


def test_every_role_of_the_database_has_a_password() -> None:
    assert ("owner", *ROLES) == POSTGRES_ROLES


def test_every_folder_has_a_row_in_the_architecture() -> None:
    folders = [path.parent for kind in ("libs/weft", "services/weftd") for path in (ROOT / kind).glob("*/*.py")]
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert [name for name in sorted({str(path.relative_to(ROOT)) for path in folders}) if f"`{name}`" not in text] == []


def test_the_glossary_fits_on_a_screen() -> None:
    glossary = (ROOT / "ARCHITECTURE.md").read_text().split("## One word per idea")[1].split("\n## ")[0]
    assert len(re.findall(r"^\| ", glossary, flags=re.MULTILINE)) <= 31
