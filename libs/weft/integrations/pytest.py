"""Pytest's plug-in: a cluster for tests, and tests that run as jobs. Pytest finds it as an entry point."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import weft

MARKER = "weft(**fields): run the test as a job with these fields of a job file, such as gpus=1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("weft_nodes", "nodes of weft_cluster (default: 1)", default="1")
    parser.addini("weft_gpus", "emulated GPUs of each node of weft_cluster (default: 2)", default="2")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def weft_cluster(pytestconfig: pytest.Config) -> "Iterator[weft.Cluster | None]":
    """A cluster on this machine with emulated GPUs, for all tests of the session. It needs the extra `embedded`.

    `weft.submit`, functions and tests that run as jobs use it. In a job it is None: the job runs on it already.
    """
    if "WEFT_JOB_ID" in os.environ:
        yield None
        return
    import weft

    nodes, gpus = int(pytestconfig.getini("weft_nodes")), int(pytestconfig.getini("weft_gpus"))
    with weft.Cluster.local(nodes=nodes, gpus=gpus) as cluster:
        yield cluster


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test as a job, and fail with its log. The job runs pytest on that test, in the same folder."""
    marker = pyfuncitem.get_closest_marker("weft")
    if marker is None or "WEFT_JOB_ID" in os.environ or os.environ.get("WEFT_LOCAL", "0") not in ("", "0"):
        return None
    import weft
    from weft.client.calls import python_path
    from weft.client.job_name import token

    root = str(pyfuncitem.config.rootpath)
    fields = {"name": token(pyfuncitem.name) or "test", "workdir": root, **marker.kwargs}
    fields["env"] = {"PYTHONPATH": python_path(), **fields.get("env", {})}
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", root, "-p", "no:cacheprovider", pyfuncitem.nodeid]
    job = weft.run(command, **fields)
    if job.wait() != "succeeded":
        pytest.fail(f"{job.name} ({job.id}) {job.state}:\n" + "\n".join(job.logs()), pytrace=False)
    return True
