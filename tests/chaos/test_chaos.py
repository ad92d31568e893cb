"""A run of chaos, and the check of the check: without fencing the audit finds jobs that run twice at once."""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import Any

import pytest

from tests.chaos.audit import FAULTY
from tests.chaos.misdeeds import BY_JOBS, BY_REQUESTS
from tests.support.tier import of_tier

SECONDS_MAX = 280.0
CHAOS_SECONDS = of_tier(30, 60)
ENDED = ("succeeded", "failed")


async def chaos(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Its status, its figures, all it said. It cleans up after itself also when we lose patience."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.chaos", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            said = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()
    assert process.returncode is not None
    return process.returncode, json.loads(said.splitlines()[-1]), said


@pytest.mark.timeout(SECONDS_MAX + 20)
async def test_nothing_is_lost_or_run_twice_in_chaos() -> None:
    status, figures, said = await chaos("--seconds", str(CHAOS_SECONDS), "--seed", "7")
    assert status == 0, said
    assert {kind: figures[kind] for kind in FAULTY} == dict.fromkeys(FAULTY, 0)
    assert figures["acknowledged"] == figures["jobs"] > CHAOS_SECONDS / 3
    assert figures["faults_done"] > CHAOS_SECONDS / 3
    assert figures["misdeeds"].keys() >= {*BY_JOBS, *BY_REQUESTS}
    assert sum(count for what, count in figures["hostile_outcomes"].items() if what.endswith(ENDED)) > 0
    assert sum(figures["lies"].values()) > 100
    if not any("no Caddy" in why for why in figures["not_tried"]):
        assert figures["services"] == 3
        assert sum(figures["requests"].values()) > 100


@pytest.mark.nightly
@pytest.mark.timeout(120)
async def test_without_fencing_the_audit_finds_jobs_that_run_twice_at_once() -> None:
    status, figures, said = await chaos("--seconds", "21", "--seed", "1", "--fencing", "off", "--settle", "0")
    assert status == 1, said
    assert figures["overlaps"] > 0, said
