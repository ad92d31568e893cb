"""docs/README.md is the index and the navigation of the documentation site."""

import re

import pytest

from tests.support.site import FOLDERS, FROM_ROOT, ROOT, linked, navigation

INDEX = (ROOT / "docs/README.md").read_text()
KINDS = ["Concepts", "Tutorials", "How-to guides", "Reference", "Explanation", "Operations", "Contributing"]


def test_the_sections_are_those_of_diataxis_with_operations() -> None:
    assert [next(iter(section)) for section in navigation(INDEX)[1:]] == KINDS


def test_every_page_of_docs_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w./-]+\.md", str(navigation(INDEX)))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages | set(FROM_ROOT)), "each page is in one section"
    assert all(f"{folder}/README.md" in listed for folder in FOLDERS)


def test_a_link_leads_to_the_page_on_the_site_and_a_file_outside_it_is_named() -> None:
    assert linked("[a](arrays.md#sweeps), [b](decisions)", "docs/serving.md") == (
        "[a](arrays.md#sweeps), [b](decisions/README.md)"
    )
    assert linked("[c](../CHANGELOG.md)", "docs/releases.md") == "[c](CHANGELOG.md)"
    assert linked("[d](../arrays.md)", "docs/decisions/README.md") == "[d](../arrays.md)"
    assert linked("[e](docs/arrays.md)", "CHANGELOG.md") == "[e](arrays.md)"
    assert linked("[f](../libs/weft/version.py)", "docs/releases.md") == "f (`libs/weft/version.py`)"
    assert linked("`[g](nowhere.md)` [h](https://example.org)", "docs/releases.md") == (
        "`[g](nowhere.md)` [h](https://example.org)"
    )


def test_a_link_to_a_file_that_does_not_exist_ends_the_build() -> None:
    with pytest.raises(ValueError, match=r"docs/releases.md links to libs/none.py, which does not exist"):
        linked("[a](../libs/none.py)", "docs/releases.md")
