"""Memory and egress that nobody uses are taken back as far as the job lets; who is about to need it has it again."""

import pytest
from msgspec import structs

from tests.support.builders import GIB
from tests.support.trained import Kindred, Model, Pool, Trained
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.job import CauseCode, Placement
from weft.domain.spec import TuningMode

WORKER = {"worker": Kindred(count=2, seconds=0.3, cpus=1.02)}  # each with 1 GiB, and half of it in use
LEAN = 768 << 20  # 1.5 times what is in use


def lean_pool() -> tuple[Trained, Pool]:
    job = Trained(Model(roles=WORKER), tuning={"mode": "on", "memory_min": "64MiB"})
    return job, Pool(job).run(700)


def test_memory_that_was_never_used_is_reclaimed_where_the_job_lets_it() -> None:
    job, pool = lean_pool()
    assert pool.codes == [CauseCode.RECLAIMED]
    assert pool.tunes[0][0] > 600.0, "it was watched for long"
    assert [one.memory for one in job.held] == [LEAN, LEAN]
    assert pool.run(3600).codes == [CauseCode.RECLAIMED]


@pytest.mark.parametrize(
    ("tuning", "left"),
    [
        ({"mode": "on"}, GIB),
        ({"mode": "on", "memory_min": "1GiB"}, GIB),
        ({"mode": "on", "memory_min": "800MiB"}, 800 << 20),
    ],
)
def test_what_the_job_wants_to_keep_it_keeps(tuning: dict[str, str], left: int) -> None:
    job = Trained(Model(roles=WORKER), tuning=tuning)
    Pool(job).run(1500)
    assert [one.memory for one in job.held] == [left, left]


@pytest.mark.parametrize(("tuning", "left"), [({"mode": "on"}, 2 * GIB), ({"mode": "on", "memory_min": "1GiB"}, GIB)])
def test_memory_that_was_added_is_taken_back_only_from_a_job_that_names_a_floor(
    tuning: dict[str, str], left: int
) -> None:
    job = Trained(Model(roles=WORKER), tuning=tuning)
    held = tuple(structs.replace(one, memory=2 * GIB) for one in job.held)
    job.job = structs.replace(job.job, placement=Placement(allocations=held))
    Pool(job).run(1500)
    assert [one.memory for one in job.held] == [left, left]


def test_a_notebook_keeps_what_it_asked_for() -> None:
    job = Trained(Model(roles=WORKER), tuning={"mode": "on", "memory_min": "64MiB"}, kind="notebook")
    assert Pool(job).run(1500).tunes == []


@pytest.mark.parametrize("mode", [TuningMode.ON, TuningMode.OFF])
def test_who_is_about_to_need_it_has_it_again_within_seconds_whatever_the_mode_is_now(mode: TuningMode) -> None:
    job, pool = lean_pool()
    pool.core.tuning = mode
    job.model = structs.replace(job.model, working_set=600 << 20)
    pool.run(2)
    assert pool.codes == [CauseCode.RECLAIMED, CauseCode.ROLLED_BACK]
    assert [one.memory for one in job.held] == [GIB, GIB]
    job.model = structs.replace(job.model, working_set=GIB // 4)
    assert len(pool.run(3600).tunes) == 2, "once in vain is enough"


def test_what_is_refused_is_asked_for_again_and_again() -> None:
    job, pool = lean_pool()
    pool.refuses = True
    job.model = structs.replace(job.model, working_set=600 << 20)
    pool.run(60)
    assert pool.codes[1:] == [CauseCode.ROLLED_BACK] * 12
    pool.refuses = False
    pool.run(6)
    assert [one.memory for one in job.held] == [GIB, GIB]


def test_a_rank_whose_node_is_full_does_not_keep_the_others_waiting() -> None:
    job, pool = lean_pool()
    pool.node = structs.replace(pool.node, capacity=structs.replace(pool.node.capacity, memory=2 * LEAN + (256 << 20)))
    job.model = structs.replace(job.model, working_set=600 << 20)
    pool.run(30)
    assert [one.memory for one in job.held] == [GIB, LEAN]
    assert len(pool.tunes) == 2, "what does not fit is not asked for"


def test_a_trial_under_way_goes_on() -> None:
    """Its cores are those that it tries; the memory comes back beside it."""
    roles = {"worker": Kindred(count=2, seconds=0.3, cpus=0.5)}
    job = Trained(Model(roles=roles), tuning={"mode": "on", "memory_min": "64MiB"})
    held = tuple(structs.replace(one, memory=LEAN) for one in job.held)
    job.job = structs.replace(job.job, placement=Placement(allocations=held))
    pool = Pool(job, growth=4.0)
    while not pool.tunes:
        pool.second()
    job.model = structs.replace(job.model, working_set=600 << 20)
    pool.run(2)
    assert pool.codes == [CauseCode.UPSCALED, CauseCode.ROLLED_BACK]
    pool.run(60)
    assert [one.memory for one in job.held] == [GIB, GIB]
    state = pool.core.state_of("j-1")
    assert state is not None
    assert (state.kept, state.undone) == (1, 0)


def test_the_newest_sample_counts_also_where_every_beat_ends_a_window() -> None:
    job, pool = lean_pool()
    pool.core.gathering.window_seconds = 1.0
    job.model = structs.replace(job.model, working_set=600 << 20)
    pool.run(2)
    assert [one.memory for one in job.held] == [GIB, GIB]


def test_a_job_that_failed_before_keeps_what_it_has() -> None:
    job = Trained(Model(roles=WORKER), tuning={"mode": "on", "memory_min": "64MiB"})
    job.job = structs.replace(job.job, attempts=1)
    assert Pool(job).run(1500).tunes == []


def test_who_began_to_look_later_does_not_know_what_it_used_before() -> None:
    job = Trained(Model(roles=WORKER), tuning={"mode": "on", "memory_min": "64MiB"})
    pool = Pool(job).run(300)
    pool.restart()
    assert pool.run(1500).tunes == []


def test_less_than_a_process_needs_to_live_is_not_left() -> None:
    job = Trained(Model(roles=WORKER, working_set=1 << 20), tuning={"mode": "on", "memory_min": "1MiB"})
    Pool(job).run(700)
    assert [one.memory for one in job.held] == [16 << 20] * 2


def test_a_cap_does_not_go_down_step_by_step() -> None:
    """Who sends in bursts loses a little by each lower cap."""
    roles = {
        "ps": Kindred(count=1, seconds=0.05, cpus=0.25, sends=4e5, egress=2_500_000),
        "worker": Kindred(count=2, seconds=0.3, cpus=1.02),
    }
    job = Trained(Model(roles=roles, takes_turns=False), noise=0.001)
    raised = structs.replace(job.held[0], egress=20_000_000)
    job.job = structs.replace(job.job, placement=Placement(allocations=(raised, *job.held[1:])))
    first = job.speed
    pool = Pool(job).run(3600)
    assert pool.codes == [CauseCode.RECLAIMED]
    assert 2_500_000 < (job.held[0].egress or 0) < 20_000_000
    assert job.speed > 0.97 * first


def test_a_cap_that_was_raised_and_is_not_needed_any_more_goes_back_to_what_was_asked_for() -> None:
    roles = {
        "ps": Kindred(count=1, seconds=0.05, cpus=0.25, sends=2.5e6, egress=2_500_000),
        "worker": Kindred(count=2, seconds=0.3, cpus=1.02),
    }
    job = Trained(Model(roles=roles, takes_turns=False))
    pool = Pool(job).run(400)
    assert pool.codes == [CauseCode.UPSCALED]
    job.model = structs.replace(job.model, roles=roles | {"ps": structs.replace(roles["ps"], sends=1e4)})
    pool.run(300)
    assert pool.codes[1:] == [CauseCode.RECLAIMED]
    assert job.held[0].egress == 2_500_000


def test_a_job_cannot_keep_more_than_it_asks_for() -> None:
    body = b"name: a\ncommand: [run]\nroles:\n  worker: {memory: 1GiB}\ntuning: {memory_min: 2GiB}\n"
    with pytest.raises(SpecError, match="more than the 1GiB that role worker asks for") as refused:
        decode_spec(body, content="yaml")
    assert refused.value.field == "tuning.memory_min"
