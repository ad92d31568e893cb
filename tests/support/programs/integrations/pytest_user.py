"""Tests of a person who uses the plug-in of pytest; no test of this project."""

import os

import pytest

import weft


@pytest.fixture
def number() -> int:
    return 3


@pytest.mark.weft(gpus=1, name="marked")
def test_marked(weft_cluster: None, number: int) -> None:
    assert weft_cluster is None
    assert os.environ["WEFT_GPUS"] == "0"
    assert number == 3


@pytest.mark.weft
def test_that_fails(weft_cluster: None) -> None:
    assert os.environ["WEFT_JOB_ID"] == "none"


def test_unmarked(weft_cluster: weft.Cluster) -> None:
    assert "WEFT_JOB_ID" not in os.environ
    assert [job.name for job in weft.jobs()] == ["test-that-fails", "marked"]
