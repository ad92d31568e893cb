"""`weft simulate`, from what is typed to what is printed and written, and its exit status."""

import argparse
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from weft.simulator.metrics import metrics
from weft.simulator.model import World
from weft.simulator.outcome import JobOutcome, Outcome, Spell
from weft.simulator.report.compared import COLUMNS
from weftd.cli.__main__ import INTERRUPTED, main, parse
from weftd.cli.cli_error import CliError
from weftd.cli.rendering.context import RenderContext
from weftd.cli.study.simulate import told_settings
from weftd.cli.study.simulation.plan import Planned, plans_of
from weftd.cli.study.simulation.results import document, drawing
from weftd.cli.study.simulation.running import interruptible

Said = pytest.CaptureFixture[str]

TRACE = """id,arrival_s,gpus,duration_s
j-1,0,4,3600
j-2,60,8,1800
j-3,120,1,600
j-4,180,2,7200
"""
PROFILE = "gpu_id,node_id,classA,classB\n" + "".join(
    f"{gpu},{gpu // 4},{2.5 if gpu == 1 else 1.0},1.0\n" for gpu in range(8)
)
SMALL = ("--nodes", "2")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    (tmp_path / "trace.csv").write_text(TRACE)
    return str(tmp_path / "trace.csv")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    (tmp_path / "profile.csv").write_text(PROFILE)
    return str(tmp_path / "profile.csv")


def typed(*options: str) -> argparse.Namespace:
    return parse("simulate", ["simulate", "--trace", "t.csv", *options])


def ran(policy: str = "fifo+packed+none", *, ends: float = 100.0) -> Outcome:
    job = JobOutcome(
        id="j-1", job_class="A", tenant="t", gpus=1, arrival_s=0.1, started_s=1.0, completed_s=ends, work_s=50.0
    )
    return Outcome(workload="w", policy=policy, nodes=1, gpus_per_node=1, jobs=(job,), notes=("so",))


def text_of(*outcomes: Outcome, width: int, bars: bool = True) -> list[str]:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(drawing(outcomes, RenderContext(now=0.0, width=width, bars=bars)))
    return captured.get().splitlines()


# what is run


def test_every_combination_of_the_names_is_run_in_the_order_they_were_said() -> None:
    plans = plans_of(typed("--order", "las,fifo", "--placement", "packed, pal", "--backfill", "easy"))
    assert [str(plan.policy) for plan in plans] == [
        *("las+packed+easy", "las+pal+easy", "fifo+packed+easy", "fifo+pal+easy"),
    ]


def test_what_is_not_said_is_as_the_world_has_it() -> None:
    (plan,) = plans_of(typed())
    assert plan == Planned(policy=plan.policy, world=plan.world)
    assert (str(plan.policy), plan.world.penalty, plan.world.move_s) == ("priority+weft-best+easy", 1.7, 60.0)
    assert plan.world == World()
    (plan,) = plans_of(typed("--drift", "2", "--move-cost", "0", "--penalty", "1", "--durations-known", "--seed", "9"))
    assert (plan.world.drift_s, plan.world.move_s, plan.world.penalty, plan.seed) == (7200.0, 0.0, 1.0, 9)
    assert plan.world.durations_known


def test_our_best_is_a_preset_and_parts_of_it_can_be_replaced() -> None:
    assert [str(plan.policy) for plan in plans_of(typed("--preset", "weft-best"))] == ["las+weft-best+easy"]
    (plan,) = plans_of(typed("--preset", "weft-best", "--order", "srtf"))
    assert str(plan.policy) == "srtf+weft-best+easy"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--order", "lifo"), "order: no such order as 'lifo'; there are fifo, "),
        (("--placement", "nowhere"), "placement: no such placement as 'nowhere'"),
        (("--backfill", "magic"), "backfill: no such backfill as 'magic'; there are none, easy, conservative"),
        (("--partition", "best"), "--partition: no such planner as 'best'; there are weft, none"),
        (
            ("--placement", "packed", "--partition", "weft"),
            "--placement packed moves running jobs, which a partition does not allow",
        ),
        (("--preset", "best"), "--preset: no such preset as 'best'; there are "),
    ],
)
def test_a_name_that_is_none_is_told_with_those_that_are(options: tuple[str, ...], reason: str) -> None:
    with pytest.raises(CliError) as refused:
        plans_of(typed(*options))
    assert str(refused.value).startswith(reason)
    assert refused.value.status == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--nodes", "0"), "--nodes: expected 1 or more, not 0"),
        (("--nodes", "two"), "--nodes: expected a whole number, not 'two'"),
        (("--penalty", "0.5"), "--penalty: expected 1 or more, not 0.5"),
        (("--move-cost", "nan"), "--move-cost: expected 0 or more, not nan"),
        (("--load", "0"), "--load: expected more than 0, not 0"),
        (("--load", "much"), "--load: expected a number, not 'much'"),
        (("--order", ","), "--order: expected a name, or several with commas"),
        (("--generate", "poisson"), "--generate: not allowed with --trace"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_the_option(
    options: tuple[str, ...], reason: str, capsys: Said
) -> None:
    with pytest.raises(SystemExit) as ended:
        typed(*options)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"weft: {reason}\n")


def test_settings_that_were_said_are_told_and_files_without_their_folders() -> None:
    told = told_settings(typed("--profile", "/somewhere/gpus.csv", "--load", "0.8", "--drift", "12", "--seed", "1"))
    assert told == {"profile": "gpus.csv", "load": "0.8", "drift": "every 12 h"}


# what is said


def test_one_run_is_a_document_of_its_own_and_several_are_a_list() -> None:
    one = json.loads(document([ran()]))
    assert list(one["jobs"]) == ["j-1"]
    assert one["jobs"]["j-1"]["arrival_s"] == 0.1
    assert one["jobs"]["j-1"]["completed_s"] == 100.0
    assert one["metrics"]["jct_mean_s"] == metrics(ran()).jct_mean_s
    assert (one["workload"], one["policy"], one["notes"], one["emulated"]) == ("w", "fifo+packed+none", ["so"], True)
    two = json.loads(document([ran(), ran("x")]))
    assert [run["policy"] for run in two["runs"]] == ["fifo+packed+none", "x"]
    assert two["runs"][0] == one


def test_a_page_fits_into_80_columns_and_says_that_it_is_simulated() -> None:
    long = "priority+packed-sticky+conservative"
    for outcomes in ([ran()], [ran(), ran(long, ends=40), ran("las+pal+easy", ends=1e7)]):
        lines = text_of(*outcomes, width=80)
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("w: 1 job on 1 × 1 = 1 GPU (simulated cluster, no hardware)")
        assert lines[-1].rstrip() == "note: so"


def test_a_pipe_gets_every_number_and_the_ratio_to_the_first_run() -> None:
    runs = [
        structs.replace(run, spells=(Spell(0, 20.1, 40.1, ((0, 0),), 1.0),))
        for run in (ran(ends=100.1), ran("x", ends=60.1))
    ]
    head, first, second = text_of(*runs, width=400, bars=False)[2:5]
    assert [column.title.upper() for column in COLUMNS if column.title.upper() not in head] == []
    assert "×" not in first
    assert second.split()[:3] == ["x", "40.0", "×0.500"], "of the time that jobs wait"


# the whole command


def test_a_trace_is_simulated_and_every_job_and_all_metrics_are_written(
    trace: str, profile: str, tmp_path: Path, capsys: Said
) -> None:
    out = tmp_path / "out.json"
    assert main(["simulate", "--trace", trace, "--profile", profile, *SMALL, "--json", str(out)]) == 0
    told = json.loads(out.read_bytes())
    assert list(told["jobs"]) == ["j-1", "j-2", "j-3", "j-4"]
    assert told["jobs"]["j-2"]["arrival_s"] == 60
    assert all(job["completed_s"] >= job["arrival_s"] + 600 for job in told["jobs"].values())
    assert told["settings"]["profile"] == "profile.csv"
    said = capsys.readouterr()
    assert said.out.startswith("trace: 4 jobs on 2 × 4 = 8 GPUs (simulated cluster, no hardware)\n")
    assert said.err == ""


def test_the_same_command_gives_the_same_bytes(capsys: Said) -> None:
    command = ["simulate", "--generate", "poisson", "--jobs", "30", "--order", "fifo,las", "--json", "-", "--seed", "4"]
    printed: list[str] = []
    for _ in range(2):
        assert main(command) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert len(json.loads(printed[0])["runs"]) == 2
    assert main([*command[:-1], "5"]) == 0
    assert capsys.readouterr().out != printed[0]


def test_a_report_is_drawn(trace: str, profile: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="comes with the extra `report`")
    out = tmp_path / "out.html"
    assert main(["simulate", "--trace", trace, "--profile", profile, *SMALL, "--report", str(out)]) == 0
    assert "priority+weft-best+easy" in out.read_text()


def test_elastic_jobs_are_planned_and_their_numbers_told(trace: str, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "out.json"
    options = ("--preset", "weft-best", "--elastic", "2", "--resize-cost", "10", "--partition", "none,weft")
    assert main(["simulate", "--trace", trace, *SMALL, *options, "--json", str(out)]) == 0
    rigid, elastic = json.loads(out.read_bytes())["runs"]
    assert (rigid["policy"], elastic["policy"]) == ("las+weft-best+easy", "las+weft-best+easy+weft")
    assert rigid["sizes"]["plans"] == 0
    assert elastic["sizes"]["plans"] > 0
    assert elastic["metrics"]["jct_mean_s"] < rigid["metrics"]["jct_mean_s"]
    said = capsys.readouterr().out
    assert "SPEED-UP" in said
    assert "1 to 2 × the GPUs that each job asks for, by restarts of 10 s" in said


def cli_error(capsys: Said, *command: str) -> tuple[int, str]:
    status = main(["simulate", *command])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("weft: ")
    assert said.err.count("\n") == 1
    return status, said.err


def test_a_bad_trace_is_told_with_file_and_line(tmp_path: Path, capsys: Said) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(TRACE + "j-5,240,2,-7\n")
    status, said = cli_error(capsys, "--trace", str(bad), *SMALL)
    assert (status, said.startswith(f"weft: {bad}:6: ")) == (1, True)
    status, said = cli_error(capsys, "--trace", str(tmp_path / "none.csv"))
    assert status == 1
    assert "none.csv" in said


def test_a_job_that_can_never_fit_is_told(trace: str, capsys: Said) -> None:
    status, said = cli_error(capsys, "--trace", trace, "--nodes", "1")
    assert status == 1
    assert "job j-2 asks for 8 GPUs, the cluster has 4" in said


def test_a_bad_profile_is_told_with_file_and_line(trace: str, tmp_path: Path, capsys: Said) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(PROFILE.replace("2.5", "fast"))
    status, said = cli_error(capsys, "--trace", trace, "--profile", str(bad), *SMALL)
    assert (status, said.startswith(f"weft: {bad}:3: ")) == (1, True)
    bad.write_text(PROFILE)
    status, said = cli_error(capsys, "--trace", trace, "--profile", str(bad), "--nodes", "3")
    assert status == 1
    assert "it has 8 GPUs, the cluster 12" in said


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        (("--jobs", "5"), 2, "--jobs goes with --generate only"),
        (("--resize-cost", "5"), 2, "--resize-cost goes with --elastic only"),
        (("--elastic", "2", "--exponent", "1.5"), 2, "exponent must be 0 to 1: 1.5"),
        (("--report", "out.pdf"), 1, "a report is a file that ends in .html"),
        (("--json", "no/such/folder/out.json"), 1, "there is no folder no/such/folder"),
    ],
)
def test_what_could_only_fail_later_is_told_at_once(
    trace: str, options: tuple[str, ...], status: int, reason: str, capsys: Said
) -> None:
    ended, said = cli_error(capsys, "--trace", trace, *SMALL, *options)
    assert (ended, reason in said) == (status, True)


def test_a_limit_is_of_a_trace(capsys: Said) -> None:
    status, said = cli_error(capsys, "--generate", "poisson", "--limit", "5")
    assert (status, said) == (2, "weft: --limit goes with --trace only\n")


def test_a_file_that_cannot_be_written_is_told(trace: str, tmp_path: Path, capsys: Said) -> None:
    status, said = cli_error(capsys, "--trace", trace, *SMALL, "--json", str(tmp_path))
    assert (status, said.startswith(f"weft: cannot write {tmp_path}: ")) == (1, True)


# Ctrl-C


async def test_ctrl_c_ends_a_simulation_that_never_awaits() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_exits_as_everywhere(tmp_path: Path) -> None:
    """The trace is a pipe in which nothing comes: `weft` is in the middle of it when the signal arrives."""
    pipe = tmp_path / "trace.csv"
    os.mkfifo(pipe)
    ended = threading.Event()

    def interrupt() -> None:
        with pipe.open("w"):  # as soon as `weft` reads
            os.kill(os.getpid(), signal.SIGINT)
            ended.wait()

    person = threading.Thread(target=interrupt)
    person.start()
    try:
        assert main(["simulate", "--trace", str(pipe)]) == INTERRUPTED
    finally:
        ended.set()
        person.join()
