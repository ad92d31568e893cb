"""The reference of the job file and of the verbs is what the code makes of itself."""

import re

import pytest

from tests.support.reference import PAGES, ROOT, variables
from tests.support.reference_words import FIELDS, VARIABLES
from weft.domain.spec import JobSpec
from weftd.cli.commands import COMMANDS


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_of_reference_is_what_the_code_makes(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run: python -m tests.support.reference"


def test_every_field_verb_and_variable_is_there_and_none_that_is_gone() -> None:
    text, verbs = (ROOT / "docs/job-file.md").read_text(), (ROOT / "docs/verbs.md").read_text()
    assert all(f"| `{name}` |" in text for name in JobSpec.__struct_fields__ if name not in ("element", "scheduled"))
    assert re.findall(r"^### `weft (\S+)`$", verbs, flags=re.MULTILINE) == list(COMMANDS)
    assert variables() == set(VARIABLES)
    assert {"RANK", "WEFT_CHECKPOINT_DIR", "WEFT_PORT", "WEFT_ARRAY_INDEX"} <= variables()
    names = {kind.split(".")[0] for kind in FIELDS}
    assert all(re.search(rf"^class {name}\b", _sources(), flags=re.MULTILINE) for name in names)


def _sources() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "libs/weft/domain").rglob("*.py")))
