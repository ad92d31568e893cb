"""Memory and egress that nobody uses are taken back as far as the job lets; who is about to need it has it again."""

import pytest
from msgspec import structs

from libs.domain.job import CauseCode
from libs.domain.spec import SpecError, TuningMode, decode_spec
from libs.messages.asks import RankTuning
from libs.tuning import tuner
from libs.tuning.proposal import Proposal
from libs.tuning.tuner import Phase, Trial
from tests.support.builders import GIB
from tests.support.trained import Kindred, Model, Pool, Trained

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


def test_while_its_node_has_no_room_it_is_asked_for_again() -> None:
    job, pool = lean_pool()
    pool.refuses = True
    job.model = structs.replace(job.model, working_set=600 << 20)
    pool.run(100)
    assert pool.codes[1:] == [CauseCode.ROLLED_BACK] * 5
    pool.refuses = False
    pool.run(30)
    assert [one.memory for one in job.held] == [GIB, GIB]


def test_a_trial_under_way_goes_with_it() -> None:
    job, _ = lean_pool()
    had, tried = (RankTuning(rank=0, cpus=cpus) for cpus in (0.8, 1.02))
    proposal = Proposal(
        direction="cpus:up:worker",
        code=CauseCode.UPSCALED,
        before=(had,),
        after=(tried,),
        gain=0.1,
        cost=0.1,
        sentence="",
    )
    state = structs.replace(
        tuner.begin(1, 0.0), phase=Phase.VERIFYING, trial=Trial(proposal=proposal, speed=2.0, asked_at=0.0, cpus=4.0)
    )
    moved = tuner.relieve(state, job.job, job.held, now=1.0, cpus_allowed=4.0)
    assert moved.tune is not None
    assert moved.tune.ranks == (RankTuning(rank=0, cpus=0.8, memory=GIB), RankTuning(rank=1, memory=GIB))
    job.take(moved.tune, 1.0)
    assert tuner.advance(moved.state, job.job, None, now=2.0).state.phase is Phase.SETTLING


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
