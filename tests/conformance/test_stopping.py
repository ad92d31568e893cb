"""How a run stops, on every runtime that runs commands: `docs/contract.md`, Stopping."""

import io
import shlex
import signal
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.engine import need_images
from tests.support.rig import IMAGE, IMAGE_WITH_PYTHON, Rig
from tests.support.runs import find, in_state, logged, processes_of, until, whole_log
from weft.domain.spec import StopSignal
from weft.messages.nodes import EndReason, RunState, StartRun
from weftd.executor.runs import Run, RunKey

# A program that needs a moment to save, and one that says when it is asked to stop.
TRAIN = "trap 'echo asked; sleep 0.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
IGNORES = "trap '' TERM; echo up; while :; do sleep 0.05; done"
FIRST_STATUS = 128 + signal.SIGTERM


@pytest.fixture(autouse=True)
def commands(rig: Rig) -> None:
    rig.needs("commands")


async def stopped(rig: Rig, asked: StartRun, *, after: bytes = b"up") -> tuple[Run, str]:
    """Start a run, ask it to stop once it has written `after`, and wait for its end, without any kill."""
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, after)
    await rig.runtime.signal(key, kill=False)
    run = await in_state(rig.runtime, key, RunState.EXITED)
    return run, (await whole_log(rig.runtime, key)).decode()


def with_python(rig: Rig, script: str, **fields: Any) -> StartRun:
    if rig.docker:
        need_images(IMAGE_WITH_PYTHON)
    python = "python3" if rig.docker else sys.executable
    image = IMAGE_WITH_PYTHON if rig.docker else None
    return rig.shell((python, "-u", "-c", script), image=image, **fields)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param('sh -c "$TRAIN"; echo after', id="wrapper"),
        pytest.param('sh -c "$TRAIN" | cat; echo after', id="pipe"),
        pytest.param('sh -c "$TRAIN" & sleep 60; echo after', id="background"),
        pytest.param('setsid sh -c "$TRAIN" & sleep 60; echo after', id="setsid"),
        pytest.param("""sh -c 'sh -c "$TRAIN"; echo between'; echo after""", id="two-wrappers"),
    ],
)
async def test_a_program_below_the_main_process_has_the_rest_of_the_grace(rig: Rig, script: str) -> None:
    run, log = await stopped(rig, rig.shell(("sh", "-c", script), env={"TRAIN": TRAIN}))
    assert "saved" in log
    assert "after" not in log
    assert run.exit_code == FIRST_STATUS, "the status is the main process's"


async def test_the_main_process_gets_the_stop_signal_of_its_job_and_the_others_get_sigterm(rig: Rig) -> None:
    main = "trap 'echo main asked; exit 0' USR1; trap 'echo wrong' TERM; while :; do sleep 0.05; done"
    asked = rig.shell(("sh", "-c", f'sh -c "$TRAIN" & {main}'), env={"TRAIN": TRAIN}, stop_signal=StopSignal.USR1)
    run, log = await stopped(rig, asked)
    assert "main asked" in log
    assert "wrong" not in log
    assert "saved" in log
    assert run.exit_code == 0


async def test_the_end_of_a_stopped_run_is_that_of_its_last_process(rig: Rig) -> None:
    asked = rig.shell(("sh", "-c", f'sh -c "{TRAIN}"; echo after'))
    run, _ = await stopped(rig, asked)
    assert not processes_of(asked)
    assert run.started_at is not None
    assert run.ended_at is not None
    assert run.ended_at - run.started_at >= 0.5


WORKERS = """
import multiprocessing, os, signal, sys, time
def work():
    signal.signal(signal.SIGTERM, lambda *_: (print("worker asked"), os._exit(1)))
    while os.getppid() == PARENT:
        time.sleep(0.02)
    os._exit(0)
def save(*_):
    time.sleep(0.5)
    print("saved with", sum(worker.is_alive() for worker in workers), "workers")
    os._exit(0)
PARENT = os.getpid()
workers = [multiprocessing.get_context("fork").Process(target=work, daemon=True) for _ in range(2)]
for worker in workers:
    worker.start()
signal.signal(signal.SIGTERM, save)
time.sleep(0.2)
print("up")
while True:
    time.sleep(0.02)
"""


async def test_workers_are_asked_only_when_the_main_process_has_ended(rig: Rig) -> None:
    run, log = await stopped(rig, with_python(rig, WORKERS))
    assert "saved with 2 workers" in log, run
    assert run.exit_code == 0


async def test_workers_of_a_program_under_a_shell_are_not_asked_before_the_program_has_ended(rig: Rig) -> None:
    asked = with_python(rig, WORKERS)
    script = f"{shlex.join(asked.command)} | cat; echo after"
    run, log = await stopped(rig, rig.shell(("sh", "-c", script), image=asked.image))
    assert "saved with 2 workers" in log, run


async def test_a_run_that_ends_by_itself_leaves_nothing_any_time(rig: Rig) -> None:
    asked = rig.shell(("sh", "-c", f'setsid sh -c "{TRAIN}" & sleep 0.3; exit 3'))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, key, RunState.EXITED)
    assert (run.exit_code, run.reason) == (3, EndReason.EXIT)
    await until(lambda: not processes_of(asked))
    assert b"asked" not in await whole_log(rig.runtime, key)


async def test_what_ignores_the_stop_lives_to_the_end_of_the_grace_and_no_longer(rig: Rig) -> None:
    asked = rig.shell(("sh", "-c", f'sh -c "{IGNORES}"; echo after'))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    await rig.runtime.signal(key, kill=False)
    await until(lambda: len([pid for pid in processes_of(asked) if is_shell(pid)]) == 1)
    run = await find(rig.runtime, key)
    assert run is not None
    assert run.live, "its processes still have its GPUs"
    await rig.runtime.signal(key, kill=True)
    await in_state(rig.runtime, key, RunState.EXITED)
    await until(lambda: not processes_of(asked))


async def test_a_program_of_a_shell_that_waits_for_it_is_asked_near_the_end_of_the_grace(rig: Rig) -> None:
    asked = rig.shell(("sh", "-c", """trap 'echo trapped; exit 5' TERM; sh -c "$TRAIN" """), env={"TRAIN": TRAIN})
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    await rig.runtime.hurry(key)
    await rig.runtime.signal(key, kill=False)
    await rig.runtime.hurry(key)
    run = await in_state(rig.runtime, key, RunState.EXITED)
    log = await whole_log(rig.runtime, key)
    assert log.count(b"asked") == 1
    assert b"saved" in log
    assert (run.exit_code, b"trapped" in log) == (5, True)


async def test_a_stop_goes_on_under_the_next_executor(rig: Rig) -> None:
    slow = TRAIN.replace("sleep 0.5", "sleep 1.5")
    asked = rig.shell(("sh", "-c", f'sh -c "{slow}"; echo after'))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    await rig.runtime.signal(key, kill=False)
    await logged(rig.runtime, key, b"asked")
    runtime = await rig.reopen()
    run = await in_state(runtime, key, RunState.RUNNING)
    assert run.live
    run = await in_state(runtime, key, RunState.EXITED)
    assert run.exit_code == FIRST_STATUS
    assert (await whole_log(runtime, key)).count(b"asked") == 1
    assert b"saved" in await whole_log(runtime, key)


async def test_a_stop_is_not_forgotten_with_the_executor_that_asked(rig: Rig) -> None:
    first = "trap 'echo first; sleep 1; exit 4' TERM"
    asked = rig.shell(("sh", "-c", f"{first}; (trap - TERM; {TRAIN}) & while :; do sleep 0.05; done"))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    await rig.runtime.signal(key, kill=False)
    await logged(rig.runtime, key, b"first")
    runtime = await rig.reopen()
    run = await in_state(runtime, key, RunState.EXITED)
    assert run.exit_code == 4
    assert "saved" in (await whole_log(runtime, key)).decode()


@pytest.fixture(params=[StopSignal.USR1, "12", "RTMIN+3"])
def image_with_stop_signal(rig: Rig, request: pytest.FixtureRequest) -> Iterator[str]:
    if not rig.docker:
        pytest.skip("processes have no image")
    import docker

    client = docker.from_env()
    tag = f"weft-test-{uuid.uuid4().hex[:8]}:local"
    text = f'FROM {IMAGE}\nSTOPSIGNAL {request.param}\nENTRYPOINT ["env", "FROM_IMAGE=yes"]\n'
    client.images.build(fileobj=io.BytesIO(text.encode()), tag=tag)
    yield tag
    client.images.remove(tag, force=True)
    client.close()


async def test_the_stop_signal_and_the_entrypoint_of_an_image_are_kept(rig: Rig, image_with_stop_signal: str) -> None:
    traps = 'for s in USR1 12 37; do trap "echo asked; exit 0" $s; done'
    script = f"echo $FROM_IMAGE; {traps}; echo up; while :; do sleep 0.05; done"
    run, log = await stopped(rig, rig.shell(("sh", "-c", script), image=image_with_stop_signal))
    assert "yes" in log
    assert "asked" in log
    assert run.exit_code == 0


def is_shell(pid: int) -> bool:
    """Whether it is a shell of the job, and not the shim of its run."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
        return command.startswith(b"sh\0-c") and b"\0weft-run\0" not in command
    except OSError:
        return False
