"""What is left of a run is killed, and nothing of a run that starts anew under its key."""

import os
import subprocess
import time
from pathlib import Path

from tests.support.runs import until
from weftd.executor.runs import RunKey
from weftd.executor.runtime.limits.cgroup import NoCgroups
from weftd.executor.runtime.process.sweeping import SOON_SECONDS, Sweeper

KEY = RunKey("job-1", 1, 0)


def process_of(key: RunKey, runs: Path) -> "subprocess.Popen[bytes]":
    environ = os.environ | {"WEFT_PROGRESS": f"{runs}/{key}/progress"}
    return subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True)


async def test_a_run_that_starts_anew_is_not_taken_for_what_was_left_of_it(tmp_path: Path) -> None:
    """An executor that was killed between a run's folder and its first process leaves a run that never began."""
    sweeper = Sweeper(NoCgroups(), str(tmp_path))
    other = RunKey("job-2", 1, 0)
    left, anew = [process_of(key, tmp_path) for key in (KEY, other)], None
    try:
        sweeper.find_strays(KEY, other)
        await sweeper.finish(KEY)
        assert left[0].wait(60) == -9
        anew = process_of(KEY, tmp_path)
        await until(lambda: left[1].poll() == -9)
        time.sleep(2 * SOON_SECONDS)  # noqa: ASYNC251 - nothing else runs here
        assert anew.poll() is None
    finally:
        for process in (*left, *([anew] if anew else [])):
            process.kill()
            process.wait()
        await sweeper.close()
