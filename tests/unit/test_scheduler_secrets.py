"""Jobs that have secrets: what their orders say, and what no order says."""

import msgspec

from tests.support.scheduler import world
from tests.support.service_lives import rounds
from weft.domain.job import JobState
from weft.messages.nodes import JobOrder

S = JobState
SPEC = {"secrets": {"HF_TOKEN": "hf-token"}, "secret_files": {"KEY_FILE": "key"}}


def test_an_order_names_the_secrets() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1, replicas=2, spec=SPEC)
    rounds(w)
    read = w.runs_of("node-1")
    assert [run.secrets for run in read] == [{"HF_TOKEN": "hf-token"}] * 2
    assert [run.secret_files for run in read] == [{"KEY_FILE": "key"}] * 2
    assert all("HF_TOKEN" not in run.env for run in read)


def test_an_order_without_secrets_says_nothing_of_them_on_the_wire() -> None:
    w = world(gpus=1)
    w.submit("j-1", gpus=1)
    rounds(w)
    assert b"secret" not in msgspec.json.encode(w.core.answer("node-1"))
    assert "secrets" in JobOrder.__struct_fields__
