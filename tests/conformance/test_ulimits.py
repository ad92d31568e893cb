"""The `ulimits` of a job on every runtime: its processes have them, and beyond the node's bounds nothing starts."""

import re
import resource

import pytest

from tests.support.rig import Rig
from tests.support.runs import in_state, whole_log
from weft.domain.decoding.spec_decoder import decode_spec
from weft.messages.nodes import EndReason, RunState
from weftd.executor.machine.ulimits import own_bounds
from weftd.executor.runs import RunKey

LIMITS = {"core": 0, "memlock": 64 << 10, "nofile": 1000, "stack": 4 << 20}
SHOWS = "cat /proc/self/limits"
LINES = {"core": "Max core file size", "memlock": "Max locked memory", "nofile": "Max open files", "stack": "Max stack"}


def limits_in(text: str) -> dict[str, tuple[str, str]]:
    """The soft and the hard limit of each, as the kernel shows them."""
    found = {}
    for name, title in LINES.items():
        [(soft, hard)] = re.findall(rf"^{title}\S*(?: size)? +(\S+) +(\S+)", text, flags=re.MULTILINE)
        found[name] = (soft, hard)
    return found


async def test_the_processes_of_a_run_have_its_ulimits_soft_and_hard(rig: Rig) -> None:
    rig.needs("commands")
    asked = rig.shell(("sh", "-c", f"{SHOWS}; exit 7"), ulimits=LIMITS)
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (run.reason, run.exit_code) == (EndReason.EXIT, 7)
    shown = limits_in((await whole_log(rig.runtime, RunKey.of(asked))).decode())
    assert shown == {name: (str(number), str(number)) for name, number in LIMITS.items()}


async def test_a_run_without_ulimits_has_those_of_its_node(rig: Rig) -> None:
    rig.needs("commands")
    if rig.docker:
        pytest.skip("the defaults of a container are its engine's")
    asked = rig.shell(("sh", "-c", SHOWS))
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    shown = limits_in((await whole_log(rig.runtime, RunKey.of(asked))).decode())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert shown["nofile"] == (str(soft), str(hard))


async def test_a_program_with_ulimits_ignores_no_other_signals_than_one_without(rig: Rig) -> None:
    rig.needs("commands")
    logs = set()
    for ulimits in ({}, {"nofile": 1000}):
        asked = rig.shell(("sh", "-c", "grep SigIgn /proc/self/status"), ulimits=ulimits)
        await rig.runtime.start(asked)
        await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
        logs.add(await whole_log(rig.runtime, RunKey.of(asked)))
    [log] = logs
    assert log.startswith(b"SigIgn:")


@pytest.mark.parametrize("number", [2000, -1])
async def test_a_limit_beyond_the_bound_of_the_node_is_refused_for_good(rig: Rig, number: int) -> None:
    rig.needs("refusals")
    rig.node.ulimits_max = {"nofile": 1999}
    asked = rig.shell(("true",), ulimits={"nofile": number, "core": 0})
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    said = "unlimited" if number < 0 else "2000"
    assert run.detail == f"ulimits.nofile: {said} is more than the 1999 that this node allows"
    assert (run.reason, run.for_good) == (EndReason.START_FAILED, True)


async def test_what_no_operator_has_bounded_has_the_bound_of_its_runtime(rig: Rig) -> None:
    rig.needs("refusals")
    most = 1 << 20 if rig.docker else own_bounds()["nofile"]
    if most < 0:
        pytest.skip("this host bounds no open files")
    asked = rig.shell(("true",), ulimits={"nofile": most + 1})
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert f"is more than the {most} that" in run.detail


async def test_ulimits_that_the_kernel_refuses_are_the_reason_of_a_failed_start(rig: Rig) -> None:
    rig.needs("commands")
    if rig.docker:
        pytest.skip("an engine sets those of its containers")
    rig.node.ulimits_max = {"nofile": -1}
    asked = rig.shell(("true",), ulimits={"nofile": -1})  # more than any kernel lets a process open
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (run.reason, run.detail) == (EndReason.START_FAILED, "the host refused its ulimits")


def test_a_job_file_says_ulimits_as_sizes_counts_or_unlimited() -> None:
    text = b"name: a\ncommand: [x]\nulimits: {memlock: unlimited, nofile: 65536, stack: 64MiB, core: 0}\n"
    assert decode_spec(text, content="yaml").ulimits.numbers == {
        "core": 0,
        "memlock": -1,
        "nofile": 65536,
        "stack": 64 << 20,
    }
