"""What a service logged and went on after, as the audit finds it."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.audit import audit, counts
from tests.chaos.member import Member
from tests.chaos.test_audit import evidence
from tests.unit.test_scheduler_loop import World
from weft.service.log import OneLine, as_text
from weftd.cli.local.plan import Service, Stage
from weftd.scheduler.thinking.state.waitlist import Waitlist


async def test_a_mistake_that_a_scheduler_went_on_after_is_a_crash_to_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "scheduler-1.log"
    writes = logging.FileHandler(log)
    writes.setFormatter(OneLine("scheduler", as_text))
    logger = logging.getLogger("weftd.scheduler.scheduler_loop")
    logger.addHandler(writes)
    member = Member(Service(name="scheduler-1", module="weftd.scheduler", stage=Stage.SCHEDULER, settings={}, log=log))

    def wrong(waitlist: Waitlist, job_id: str) -> Any:
        raise KeyError(job_id)

    w = World()
    try:
        await w.sync()
        assert member.mistakes() == []
        monkeypatch.setattr(Waitlist, "group", wrong)
        await w.submit("j-1")
        for _ in range(6):
            await w.sync()
    finally:
        logger.removeHandler(writes)
        writes.close()
    found = audit(evidence(exits=member.mistakes()))
    assert counts(found)["crashed"] == 2
    assert "scheduler-1 made a mistake" in found[0].sentence
    assert "KeyError" in found[0].sentence
