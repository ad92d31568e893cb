"""Jobs that have secrets: where they start, what their orders say, and what no order says."""

import msgspec

from libs.domain.cluster import NO_SECRETS
from libs.domain.job import JobState
from libs.messages.nodes import JOBS, SECRET_FILES, SECRETS, SERVES, SHARES, NodeDesired, StartRun
from libs.planning.explain import explain
from services.executor.thinking.orders import runs_of
from services.scheduler.thinking.orders import as_jobs, job_order, run_orders
from tests.support.builders import job, node
from tests.support.scheduler import world
from tests.support.service_lives import rounds

S = JobState
SPEC = {"secrets": {"HF_TOKEN": "hf-token"}, "secret_files": {"KEY_FILE": "key"}}
AS_FILES = {"secret_files": {"KEY_FILE": "key"}}


def test_both_forms_of_an_order_name_the_secrets() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1, replicas=2, spec=SPEC)
    rounds(w)
    placed, nodes = w.stored["j-1"], w.core.picture.pool.nodes
    alone = run_orders(placed, nodes)["node-1"]
    shared = NodeDesired(seq=1, jobs=as_jobs(alone, {"j-1": job_order(placed, nodes)}))
    read = list(runs_of(msgspec.json.decode(msgspec.json.encode(shared), type=NodeDesired)))
    assert read == alone
    assert [run.secrets for run in read] == [{"HF_TOKEN": "hf-token"}] * 2
    assert [run.secret_files for run in read] == [{"KEY_FILE": "key"}] * 2
    assert all("HF_TOKEN" not in run.env for run in read)


def test_a_node_of_an_earlier_version_starts_no_job_that_has_secrets() -> None:
    w = world(nodes=2, gpus=1)
    w.nodes["node-1"].reads = (JOBS, SHARES, SERVES)
    w.round()
    nodes = w.core.picture.pool.nodes
    assert [nodes[name].gives_secrets for name in ("node-1", "node-2")] == [False, True]
    w.submit("j-1", gpus=1, spec=SPEC)
    w.submit("j-2", gpus=1, spec=AS_FILES)
    w.submit("j-3", gpus=1)
    rounds(w)
    assert [w.state(name) for name in ("j-1", "j-2", "j-3")] == [S.RUNNING, S.QUEUED, S.RUNNING]
    assert (places(w.stored["j-1"]), places(w.stored["j-3"])) == (["node-2"], ["node-1"])
    w.nodes["node-1"].end(("j-3", 0, 0), 0)
    rounds(w)
    assert w.state("j-2") is S.QUEUED
    w.nodes["node-1"].reads = (JOBS, SHARES, SERVES, SECRETS)  # of the version that knew them as variables alone
    rounds(w)
    assert w.state("j-2") is S.QUEUED
    w.nodes["node-1"].reads = (JOBS, SHARES, SERVES, SECRETS, SECRET_FILES)
    rounds(w)
    assert (w.state("j-2"), places(w.stored["j-2"])) == (S.RUNNING, ["node-1"])


def test_such_nodes_are_named_where_a_job_waits_for_room() -> None:
    waits = job("j-1", gpus=4, spec=SPEC)
    nodes = [node(gpus=1, seen_at=60.0), node("node-2", gpus=4, not_enforced=(NO_SECRETS,))]
    told = explain(waits, nodes=nodes, holding=[], queued=[waits], now=60.0)
    assert "1 node starts no job that has secrets, its executor is of an earlier version: node-2" in told.sentence
    assert told.numbers["nodes_of_earlier_version"] == 1.0
    plain = job("j-1", gpus=4)
    assert "version" not in explain(plain, nodes=nodes, holding=[], queued=[plain], now=60.0).sentence


def places(placed: object) -> list[str]:
    allocations = placed.placement.allocations  # type: ignore[attr-defined]
    return [one.node_id for one in allocations]


def test_an_order_without_secrets_is_as_it_was_on_the_wire() -> None:
    w = world(gpus=1)
    w.submit("j-1", gpus=1)
    rounds(w)
    [run] = run_orders(w.stored["j-1"], w.core.picture.pool.nodes)["node-1"]
    assert b"secret" not in msgspec.json.encode(run)
    assert "secrets" in StartRun.__struct_fields__
