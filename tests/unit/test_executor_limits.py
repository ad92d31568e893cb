"""Live resizing: what the executor decides, how limits are rounded, and which way a container's limits are changed."""

import asyncio
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.doubles.runtime import Program
from tests.support.runs import desired, order
from tests.unit.test_executor_service import World, story
from weft.domain.cluster import Gpu
from weft.messages.nodes import RunState, StartRun
from weftd.executor.files.home import Home
from weftd.executor.runs import NO_LIMIT, Limits, Run, RunKey, RuntimeUnavailableError
from weftd.executor.runtime.docker.rates import UNSURE, EgressRates
from weftd.executor.runtime.docker.resizing import held_of, safe_update
from weftd.executor.runtime.limits.groups import change, find_groups, read_limits, working_set
from weftd.executor.thinking.core import Action, Reconciler, ReconcilerTimings, Resize, Terminate
from weftd.executor.thinking.rounding import fault, lacking, settled

KEY = RunKey("job-1", 1, 0)
MIB, GIB = 1 << 20, 1 << 30
HAS = Limits(cpus=1.0, memory=256 * MIB, egress=NO_LIMIT)  # what `order()` asks for
TIMINGS = ReconcilerTimings(resize_again_seconds=1.0, resize_again_max=60.0)


def heard(*orders: StartRun, at: float = 0.0, reconciler: Reconciler | None = None) -> Reconciler:
    reconciler = reconciler or Reconciler(TIMINGS)
    reconciler.observe(desired(*orders), reported=(), sent_at=at)
    return reconciler


def running(limits: Limits = HAS, key: RunKey = KEY) -> Run:
    return Run(key=key, state=RunState.RUNNING, started_at=1.0, grace=10.0, limits=limits)


def decide(reconciler: Reconciler, *runs: Run, now: float, busy: frozenset[RunKey] = frozenset()) -> list[Action]:
    return reconciler.decide(runs, busy=busy, now=now)


# ── what is decided ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_has_what_was_ordered_is_left_alone() -> None:
    assert decide(heard(order()), running(), now=1.0) == []


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ({"cpus": 2.0}, Limits(cpus=2.0)),
        ({"memory": GIB}, Limits(memory=GIB)),
        ({"egress": 1_000_000}, Limits(egress=1_000_000)),
        ({"cpus": 0.5, "memory": GIB, "egress": 9000}, Limits(cpus=0.5, memory=GIB, egress=9000)),
    ],
)
def test_only_what_differs_is_changed(fields: dict[str, Any], limits: Limits) -> None:
    assert decide(heard(order(**fields)), running(), now=1.0) == [Resize(KEY, limits)]


def test_an_egress_that_is_no_longer_ordered_is_let_go() -> None:
    limited = running(replace(HAS, egress=1_000_000))
    assert decide(heard(order()), limited, now=1.0) == [Resize(KEY, Limits(egress=NO_LIMIT))]


def test_what_a_host_does_not_hold_is_not_changed_there() -> None:
    changed = heard(order(cpus=2.0, memory=GIB, egress=1_000_000))
    assert decide(changed, running(Limits()), now=1.0) == []
    assert decide(changed, running(Limits(cpus=1.0)), now=1.0) == [Resize(KEY, Limits(cpus=2.0))]


def test_what_a_host_rounds_is_not_changed_again_and_again() -> None:
    asked = order(cpus=0.001, memory=300 * MIB + 12345)
    assert decide(heard(asked), running(Limits(cpus=0.01, memory=300 * MIB + 12288)), now=1.0) == []
    assert decide(heard(order(memory=MIB)), running(Limits(memory=6 * MIB)), now=1.0) == []


def test_limits_that_somebody_took_away_are_given_back() -> None:
    bare = running(Limits(cpus=math.inf, memory=1 << 63, egress=NO_LIMIT))
    assert decide(heard(order()), bare, now=1.0) == [Resize(KEY, Limits(cpus=1.0, memory=256 * MIB))]


def test_only_runs_that_run_are_resized() -> None:
    changed = heard(order(cpus=2.0))
    assert decide(changed, Run(key=KEY, state=RunState.STARTING), now=1.0) == []
    assert decide(changed, Run(key=KEY, state=RunState.EXITED, exit_code=0), now=1.0) == []
    assert decide(changed, running(), now=1.0, busy=frozenset({KEY})) == []


def test_a_run_of_an_older_epoch_is_stopped_and_never_resized() -> None:
    assert decide(heard(order(epoch=2, cpus=2.0)), running(), now=1.0) == [Terminate(KEY)]


def test_a_run_that_is_to_stop_is_not_resized() -> None:
    reconciler = heard()
    assert decide(reconciler, running(), now=1.0) == [Terminate(KEY)]
    heard(order(cpus=2.0), reconciler=reconciler, at=2.0)
    assert decide(reconciler, running(), now=2.0) == []


def test_nothing_is_resized_before_the_control_plane_was_heard_nor_on_a_fenced_node() -> None:
    assert decide(Reconciler(TIMINGS), running(), now=1.0) != [Resize(KEY, HAS)]
    assert decide(heard(order(cpus=2.0)), running(), now=91.0) == [Terminate(KEY)]


def test_a_resize_that_does_not_take_is_tried_ever_more_seldom_and_told_of() -> None:
    reconciler = heard(order(memory=64 * MIB), at=0.0)
    tried = []
    for tick in range(2 * 600):
        now = tick / 2
        if tick % 60 == 0:
            heard(order(memory=64 * MIB), reconciler=reconciler, at=now)
        for action in decide(reconciler, running(), now=now):
            assert isinstance(action, Resize)
            reconciler.not_applied(action, "memory: it uses more")
            tried.append(now)
    assert tried[:8] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0]
    assert all(later - earlier <= 60.0 for earlier, later in pairwise(tried))
    assert reconciler.report([running()], {})[0].not_applied == "memory: it uses more"


def test_a_new_order_is_tried_at_once_and_one_that_took_is_no_longer_told_of() -> None:
    reconciler = heard(order(memory=64 * MIB))
    (action,) = decide(reconciler, running(), now=1.0)
    assert isinstance(action, Resize)
    reconciler.not_applied(action, "too small")
    assert decide(reconciler, running(), now=1.1) == []
    heard(order(memory=128 * MIB), reconciler=reconciler, at=1.2)
    assert decide(reconciler, running(), now=1.2) == [Resize(KEY, Limits(memory=128 * MIB))]
    assert decide(reconciler, running(replace(HAS, memory=128 * MIB)), now=1.3) == []
    assert reconciler.report([running()], {})[0].not_applied == ""


def test_an_order_whose_limits_make_no_sense_changes_nothing_and_is_told_of() -> None:
    reconciler = heard(order(cpus=math.nan, memory=GIB))
    assert decide(reconciler, running(), now=1.0) == []
    assert "cpus nan" in reconciler.report([running()], {})[0].not_applied


# ── on a whole node ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_changed_order_changes_the_run_once_and_restarts_nothing() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            await world.control.hears(KEY, "running")
            await world.control.want(order(cpus=2.0, egress=1_000_000))
            await asyncio.sleep(0.2)
            assert world.host.resizes == [(KEY, Limits(cpus=2.0, egress=1_000_000))]
            await asyncio.sleep(20)
        async with world.executor():
            await asyncio.sleep(20)
            await world.control.want(order(cpus=2.0))
            await asyncio.sleep(20)
        assert world.host.resizes[1:] == [(KEY, Limits(egress=NO_LIMIT))]
        assert world.host.starts == [KEY]

    story(tell)


def test_memory_that_a_run_needs_is_not_taken_and_the_control_plane_hears_why() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order(memory=256 * MIB))
            await world.control.hears(KEY, "running")
            await world.control.want(order(memory=100 * MIB, cpus=3.0))
            await asyncio.sleep(30)
            assert world.control.seen[KEY].not_applied.startswith(f"memory {100 * MIB}: it uses {100 * MIB} bytes now")
            assert world.alive() == [KEY]
            assert world.host.runs()[0].limits == Limits(cpus=3.0, memory=256 * MIB, egress=NO_LIMIT)
            assert 3 <= len(world.host.resizes) <= 6
            await world.control.want(order(memory=110 * MIB, cpus=3.0))
            await asyncio.sleep(5)
            assert world.control.seen[KEY].not_applied == ""
            assert world.host.runs()[0].limits.memory == 110 * MIB

    story(tell, Program(working_set=100 * MIB))


def test_a_runtime_that_fails_a_resize_is_asked_again_and_the_run_lives() -> None:
    async def tell(world: World) -> None:
        failures = 3

        def refuse(_: RunKey, __: Limits) -> str:
            nonlocal failures
            failures -= 1
            if failures > 0:
                raise RuntimeUnavailableError("the engine is away")
            return ""

        async with world.executor():
            await world.control.want(order())
            await world.control.hears(KEY, "running")
            world.host.refuse = refuse
            await world.control.want(order(cpus=2.0))
            await asyncio.sleep(15)
            assert world.host.runs()[0].limits.cpus == 2.0
            assert len(world.host.resizes) == 3
            assert world.host.starts == [KEY]

    story(tell)


# ── rounding ────────────────────────────────────────────────────────────────────────────────────────────────────────

SENSIBLE = st.builds(
    Limits,
    cpus=st.none() | st.floats(0.0001, 4096.0),
    memory=st.none() | st.integers(1, 64 << 40),
    egress=st.none() | st.just(NO_LIMIT) | st.integers(8192, 1 << 50),
)


@given(SENSIBLE)
def test_what_settled_stays_so_and_lacks_nothing(limits: Limits) -> None:
    assert fault(limits) == ""
    assert settled(settled(limits)) == settled(limits)
    assert lacking(settled(limits), limits) is None
    assert lacking(limits, limits) is None


@given(SENSIBLE, SENSIBLE)
def test_what_is_lacking_is_only_what_was_wanted_and_once_given_nothing_lacks(found: Limits, wanted: Limits) -> None:
    missing = lacking(found, wanted)
    given_now = {
        name: value for name in wanted.__struct_fields__ if (value := getattr(missing, name, None)) is not None
    }
    for name, value in given_now.items():
        assert value == getattr(wanted, name)
        assert getattr(found, name) is not None
    assert lacking(replace(found, **given_now), wanted) is None


# ── which way ───────────────────────────────────────────────────────────────────────────────────────────────────────


def gpu(*, emulated: bool) -> Gpu:
    return Gpu(index=0, uuid="GPU-1", model="GPU", memory=1 << 34, emulated=emulated)


@pytest.mark.parametrize(
    ("gpus", "injection", "safe"),
    [
        ((gpu(emulated=False),), "nvidia", False),
        ((gpu(emulated=True), gpu(emulated=False)), "nvidia", False),
        ((gpu(emulated=False),), "cdi", True),
        ((gpu(emulated=False),), "devices", True),
        ((gpu(emulated=True),), "nvidia", True),
        ((), "nvidia", False),
        ((), "cdi", True),
    ],
)
def test_the_engines_update_is_not_used_where_it_takes_gpus_away(
    gpus: tuple[Gpu, ...], injection: str, safe: bool
) -> None:
    assert safe_update(gpus=gpus, injection=injection) is safe


def inspected(**config: Any) -> Mapping[str, Any]:
    return {"Id": "f" * 64, "State": {"Pid": 0}, "HostConfig": config}


def test_what_the_engine_says_of_a_container_is_read() -> None:
    held = held_of(
        inspected(NetworkMode="weft-alone", CpuQuota=50000, CpuPeriod=100000, Memory=GIB, DeviceRequests=[{}])
    )
    assert (held.own_network, held.holds_gpus) == (True, True)
    assert held.said == Limits(cpus=0.5, memory=GIB)
    assert held_of(inspected(NanoCpus=1_500_000_000)).said == Limits(cpus=1.5)
    for network in ("host", "none", "container:other"):
        assert not held_of(inspected(NetworkMode=network)).own_network


# ── control groups ──────────────────────────────────────────────────────────────────────────────────────────────────

NAME = "c" * 64


def files(folder: Path, content: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name).write_text(text)


def test_version_1_groups_of_a_container_are_found_read_and_changed(tmp_path: Path) -> None:
    root, proc = tmp_path / "root", tmp_path / "proc"
    cpu, memory = root / "cpu,cpuacct" / "docker" / NAME, root / "memory" / "docker" / NAME
    files(cpu, {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"})
    files(memory, {"memory.limit_in_bytes": f"{GIB}\n", "memory.memsw.limit_in_bytes": f"{GIB}\n"})
    files(memory, {"memory.usage_in_bytes": f"{300 * MIB}\n", "memory.stat": f"total_inactive_file {200 * MIB}\n"})
    lines = f"5:memory:/docker/{NAME}/inner\n4:cpu,cpuacct:/docker/{NAME}\n1:name=systemd:/docker/{NAME}\n0::/\n"
    files(proc / "7", {"cgroup": lines})
    groups = find_groups(7, NAME, root=root, proc=proc)
    assert groups == {"cpu": str(cpu), "memory": str(memory)}
    assert read_limits(groups) == Limits(cpus=math.inf, memory=GIB)
    assert working_set(groups) == 100 * MIB
    assert change(groups, Limits(memory=100 * MIB)).startswith(f"memory {100 * MIB}: it uses {100 * MIB}")
    assert change(groups, Limits(cpus=0.25, memory=200 * MIB)) == ""
    assert read_limits(groups) == Limits(cpus=0.25, memory=200 * MIB)
    assert (memory / "memory.memsw.limit_in_bytes").read_text().startswith(str(200 * MIB))


@pytest.mark.parametrize("mounted", ["", "unified"])
@pytest.mark.parametrize("path", [f"/system.slice/docker-{NAME}.scope", f"/docker/{NAME}"])
def test_version_2_groups_of_a_container_are_found_read_and_changed(tmp_path: Path, mounted: str, path: str) -> None:
    root, proc = tmp_path / "root", tmp_path / "proc"
    group = Path(f"{root / mounted}{path}")
    files(group, {"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.swap.max": "max\n"})
    files(group, {"memory.current": f"{300 * MIB}\n", "memory.stat": f"anon 1\ninactive_file {200 * MIB}\n"})
    files(proc / "7", {"cgroup": f"0::{path}\n"})
    groups = find_groups(7, NAME, root=root, proc=proc)
    assert groups == {"unified": str(group)}
    assert read_limits(groups) == Limits(cpus=math.inf, memory=1 << 63)
    assert change(groups, Limits(cpus=2.5, memory=90 * MIB)).startswith(f"memory {90 * MIB}: it uses")
    assert change(groups, Limits(memory=110 * MIB)) == ""
    assert read_limits(groups) == Limits(cpus=2.5, memory=110 * MIB)
    assert (group / "memory.swap.max").read_text().startswith("0")


def test_groups_of_another_process_with_the_same_number_are_not_touched(tmp_path: Path) -> None:
    root, proc = tmp_path / "root", tmp_path / "proc"
    files(root / "docker" / NAME, {"cpu.max": "max 100000\n", "memory.max": "max\n"})
    files(proc / "7", {"cgroup": "0::/user.slice\n"})
    assert find_groups(7, NAME, root=root, proc=proc) == {}
    assert find_groups(8, NAME, root=root, proc=proc) == {}
    assert change({}, Limits(cpus=1.0)) == "its control groups are out of reach"
    assert read_limits({}) == Limits()
    assert working_set({}) is None


def test_a_group_that_vanishes_is_told_of(tmp_path: Path) -> None:
    gone = {"cpu": str(tmp_path / "cpu"), "memory": str(tmp_path / "memory")}
    assert "No such file" in change(gone, Limits(cpus=1.0))
    assert read_limits(gone) == Limits()


# ── what was given of the network ───────────────────────────────────────────────────────────────────────────────────


def test_a_change_of_egress_that_was_cut_short_is_known_as_such(tmp_path: Path) -> None:
    rates = EgressRates(Home(tmp_path))
    assert rates.of(KEY, "a") == NO_LIMIT
    rates.note(KEY, "a", UNSURE)
    assert EgressRates(Home(tmp_path)).of(KEY, "a") == UNSURE
    assert decide(heard(order()), running(replace(HAS, egress=UNSURE)), now=1.0) == [
        Resize(KEY, Limits(egress=NO_LIMIT))
    ]
    rates.note(KEY, "a", 9000)
    assert EgressRates(Home(tmp_path)).of(KEY, "a") == 9000
    assert EgressRates(Home(tmp_path)).of(KEY, "another container") == NO_LIMIT
    (tmp_path / "egress" / str(KEY)).write_text('["a",')
    assert EgressRates(Home(tmp_path)).of(KEY, "a") == UNSURE
    rates.forget_others(set())
    assert EgressRates(Home(tmp_path)).of(KEY, "a") == NO_LIMIT
