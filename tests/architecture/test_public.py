"""The public interface of `weft`: names that programs of others use."""

import subprocess
import sys

import pytest

import weft
from tests.support.public import RECORDED, interface


def test_the_public_interface_is_the_recorded_one() -> None:
    """A change that is meant is recorded by `python -m tests.support.public`."""
    assert interface() == RECORDED.read_text()


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'Nothing'"):
        _ = weft.Nothing


def test_import_weft_loads_no_other_package() -> None:
    program = "import sys; before = set(sys.modules); import weft; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - sys.stdlib_module_names == {"weft"}
