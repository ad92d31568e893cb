"""The public interface of `weft`: names that programs of others use."""

import ast
import inspect
import re
import subprocess
import sys
import typing

import pytest

import weft
from tests.support.public import RECORDED, interface
from tests.support.python_reference import SECTIONS
from tests.support.tree import ROOT
from weft.client.job_fields import OF_THE_ROLE, JobFields
from weft.domain.spec import JobSpec

IMPORT_SECONDS_MAX = 0.15  # processor time: others may load the machine
IN_A_JOB = "weft.step(1, of=2, loss=0.5); weft.should_stop(); weft.checkpoint_dir; weft.rank(); weft.members()"


def test_the_public_interface_is_the_recorded_one() -> None:
    """A change that is meant is recorded by `python -m tests.support.public`."""
    assert interface() == RECORDED.read_text()


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'Nothing'"):
        _ = weft.Nothing


@pytest.mark.parametrize("used", ["", IN_A_JOB])
def test_import_weft_and_its_functions_for_a_job_load_no_other_package(used: str) -> None:
    program = f"import sys; before = set(sys.modules); import weft; {used}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - sys.stdlib_module_names == {"weft"}


def test_import_weft_is_quick() -> None:
    program = "import time; began = time.process_time(); import weft; print(time.process_time() - began)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < IMPORT_SECONDS_MAX


def parameters(function: object) -> dict[str, tuple[object, object]]:
    assert callable(function)
    return {name: (one.kind, one.default) for name, one in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize("name", [name for name in weft.aio.__all__ if name.islower()])
def test_a_function_has_the_same_parameters_with_and_without_an_event_loop(name: str) -> None:
    assert parameters(getattr(weft, name)) == parameters(getattr(weft.aio, name))


@pytest.mark.parametrize(
    "name", ["find", "refresh", "wait", "wait_until", "result", "logs", "cancel", "scale", "explain"]
)
def test_a_method_of_a_job_has_the_same_parameters_with_and_without_an_event_loop(name: str) -> None:
    assert parameters(getattr(weft.Job, name)) == parameters(getattr(weft.aio.Job, name))


def test_the_keywords_of_submit_are_the_fields_of_a_job_file() -> None:
    """Arrays and recurring jobs are submitted from a file, and Weft itself sets `element` and `scheduled`."""
    of_a_job = set(JobSpec.__struct_fields__) - {"array", "sweep", "sample", "element", "schedule", "scheduled"}
    assert set(typing.get_type_hints(JobFields)) == of_a_job | set(OF_THE_ROLE)


def test_the_pages_about_python_name_what_is_there_and_all_of_it() -> None:
    page = (ROOT / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    for block in blocks:
        compile(block, "docs/python.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert set(re.findall(r"\bweft\.([a-z_]\w*|[A-Z]\w*)", "".join(blocks))) <= {*weft.__all__}
    assert {name for names in SECTIONS.values() for name in names} == {*weft.__all__} - {"__version__", "aio"}
    told = set(re.findall(r"`(?:weft\.)?(\w+)", (ROOT / "docs/python-reference.md").read_text()))
    assert {name for name in vars(weft.Job) if not name.startswith("_")} - {"name"} <= told
