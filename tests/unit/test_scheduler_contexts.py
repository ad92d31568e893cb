"""Jobs that have files with them: where they start, and what their orders say."""

import msgspec

from libs.domain.cluster import NO_CONTEXTS
from libs.domain.job import JobState
from libs.messages.nodes import CONTEXTS, JOBS, SECRETS, SERVES, SHARES, NodeDesired
from libs.planning.explain import explain
from services.executor.thinking.orders import runs_of
from services.scheduler.thinking.orders import as_jobs, job_order, run_orders
from tests.support.builders import job, node
from tests.support.scheduler import world
from tests.support.service_lives import rounds

S = JobState
DIGEST = "5" * 64
SPEC = {"context": DIGEST}


def test_both_forms_of_an_order_name_the_files() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1, replicas=2, spec=SPEC)
    rounds(w)
    placed, nodes = w.stored["j-1"], w.core.picture.pool.nodes
    alone = run_orders(placed, nodes)["node-1"]
    shared = NodeDesired(seq=1, jobs=as_jobs(alone, {"j-1": job_order(placed, nodes)}))
    read = list(runs_of(msgspec.json.decode(msgspec.json.encode(shared), type=NodeDesired)))
    assert read == alone
    assert [run.context for run in read] == [DIGEST] * 2


def test_a_node_of_an_earlier_version_starts_no_job_that_has_files_until_it_is_of_this_one() -> None:
    w = world(gpus=1)
    w.nodes["node-1"].reads = (JOBS, SHARES, SERVES, SECRETS)
    w.round()
    assert not w.core.picture.pool.nodes["node-1"].takes_contexts
    w.submit("j-1", gpus=1, spec=SPEC)
    rounds(w)
    assert w.state("j-1") is S.QUEUED
    w.nodes["node-1"].reads = (JOBS, SHARES, SERVES, SECRETS, CONTEXTS)
    rounds(w)
    assert w.state("j-1") is S.RUNNING


def test_explain_names_the_nodes_that_are_too_old() -> None:
    waits = job("j-1", gpus=4, spec=SPEC)
    nodes = [node(gpus=1, seen_at=60.0), node("node-2", gpus=4, not_enforced=(NO_CONTEXTS,))]
    told = explain(waits, nodes=nodes, holding=[], queued=[waits], now=60.0)
    assert "1 node starts no job that has files with it, its executor is of an earlier version: node-2" in told.sentence
