"""The checklists name files and tests that exist, and what a list promises a test for is in the docs."""

import importlib
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from libs.credentials.folder import POSTGRES_ROLES
from libs.planning.policy import BACKFILLS, ORDERS, PLACEMENTS
from libs.service import Connections
from libs.store.migrate import ROLES

ROOT = Path(__file__).parents[2]
PAGES = ("ARCHITECTURE.md", "README.md", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))))
SERVICES = ("executor", "gateway", "reallocator", "scheduler", "scorer", "telemetry")
PATH = re.compile(r"`((?:libs|services|tests|docs|deploy)/[\w./-]+)(?:::(\w+))?`")


@pytest.mark.parametrize("page", PAGES)
def test_a_path_or_test_that_a_page_names_exists(page: str) -> None:
    for path, test in PATH.findall((ROOT / page).read_text()):
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


@pytest.mark.parametrize("name", [*ORDERS, *PLACEMENTS, *BACKFILLS])
def test_every_policy_has_a_row(name: str) -> None:
    assert f"| `{name}`" in (ROOT / "docs/policies.md").read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_every_setting_is_in_the_docs(service: str) -> None:
    config = getattr(importlib.import_module(f"services.{service}.__main__"), f"{service.title()}Config")
    names = [f"{service}_{field.name}".upper() for field in msgspec.structs.fields(config)]
    names.remove(f"{service}_connections".upper())
    names += [f"WEFT_{field}".upper() for field in Connections.__struct_fields__]
    text = "".join((ROOT / "docs" / page).read_text() for page in ("operating.md", "security.md", "tuning.md"))
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []


def test_no_service_imports_another() -> None:
    """The contract of the import linter names every service but the command line, which starts them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (modules,) = (contract["modules"] for contract in contracts if contract["type"] == "independence")
    assert sorted(modules) == [f"services.{service}" for service in SERVICES]


def test_every_role_of_the_database_has_a_password() -> None:
    assert ("owner", *ROLES) == POSTGRES_ROLES


def test_every_folder_has_a_row_in_the_architecture() -> None:
    folders = [path.parent for kind in ("libs", "services") for path in (ROOT / kind).glob("*/*.py")]
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert [name for name in sorted({str(path.relative_to(ROOT)) for path in folders}) if f"`{name}`" not in text] == []


def test_the_glossary_fits_on_a_screen() -> None:
    glossary = (ROOT / "ARCHITECTURE.md").read_text().split("## One word per idea")[1].split("\n## ")[0]
    assert len(re.findall(r"^\| ", glossary, flags=re.MULTILINE)) <= 31
