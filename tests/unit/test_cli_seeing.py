"""Commands that show something, from what is typed to what is printed; the gateway is told what to answer."""

import json
import re
import time
from collections import deque

import msgspec
import pytest
from aiohttp import web
from msgspec import structs

from tests.support.steps import placement
from tests.support.told_gateway import ToldGateway, weft
from tests.support.views import NO_ROOM, NOW, array_view, cluster_view, event_view, gpu_view, job_view, node_view
from weft.client.failure import LastWords
from weft.domain.job import Cause, CauseCode, JobState
from weft.messages.http import (
    ErrorDetail,
    ErrorView,
    EventView,
    GpusView,
    JobsView,
    LimitsView,
    NodesView,
    RunView,
)
from weft.messages.http.explanation import Explanation
from weft.messages.signals import Finding, RankVerdict
from weftd.cli.jobs.logs import LineWriter, last_lines
from weftd.cli.rendering.failure import hint

Said = pytest.CaptureFixture[str]


async def test_ps_asks_for_open_jobs_and_lists_them(gateway: ToldGateway, capsys: Said) -> None:
    job = job_view(gpus=1)
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job,))
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=(node_view("node-1", gpu_view(0, held_by=job)),))
    assert await weft(gateway, "ps") == 0
    assert "state=queued,placed,starting,running,stopping" in gateway.asked[0].replace("%2C", ",")
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["ID", "NAME", "STATE", "FOR", "GPUS", "PRIO", "WHAT", "NOW"]
    assert "1 emulated" in out[1]
    assert "\x1b" not in "".join(out)


async def test_ps_all_asks_for_every_state_and_for_more_pages_as_far_as_the_limit(gateway: ToldGateway) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=tuple(job_view(seq=seq) for seq in range(100)), before=7)
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=())
    assert await weft(gateway, "ps", "-a", "--limit", "150") == 0
    assert gateway.asked[:2] == [
        "GET /v1/jobs?limit=100&elements=0&benchmarks=0",
        "GET /v1/jobs?limit=50&before=7&elements=0&benchmarks=0",
    ]


async def test_json_is_what_the_api_answers(gateway: ToldGateway, capsys: Said) -> None:
    view = JobsView(jobs=(job_view(state=JobState.QUEUED, waiting_for=NO_ROOM),))
    gateway.answers["GET /v1/jobs"] = view
    assert await weft(gateway, "ps", "--json") == 0
    assert capsys.readouterr().out == msgspec.json.encode(view).decode() + "\n"


async def test_every_seeing_command_prints_json_where_it_is_asked_to(gateway: ToldGateway, capsys: Said) -> None:
    job, event = job_view(), event_view("started")
    told = Explanation(job_id=job.id, name="train", state=JobState.RUNNING, code="fits", sentence="it is on node-1")
    gateway.answers |= {
        "GET /v1/nodes": NodesView(nodes=(node_view(),)),
        "GET /v1/gpus": GpusView(gpus=(gpu_view(0, node_id="node-1"),)),
        "GET /v1/cluster": cluster_view(node_view()),
        "GET /v1/jobs/train": job,
        f"GET /v1/jobs/{job.id}/events": [event],
        "GET /v1/jobs/train/explain": told,
        "GET /v1/events": [event],
    }
    wanted: dict[tuple[str, ...], object] = {
        ("nodes",): gateway.answers["GET /v1/nodes"],
        ("gpus",): gateway.answers["GET /v1/gpus"],
        ("top",): gateway.answers["GET /v1/cluster"],
        ("describe", "train"): {"job": job, "events": [event]},
        ("explain", "train"): told,
        ("events",): event,
    }
    for typed, answer in wanted.items():
        assert await weft(gateway, *typed, "--json") == 0
        assert capsys.readouterr().out == msgspec.json.encode(answer).decode() + "\n"


async def test_describe_tells_the_job_and_its_story(gateway: ToldGateway, capsys: Said) -> None:
    job = job_view()
    gateway.answers |= {
        "GET /v1/jobs/train": job,
        f"GET /v1/jobs/{job.id}/events": [event_view("submitted"), event_view("waiting", cause=NO_ROOM)],
    }
    assert await weft(gateway, "describe", "train") == 0
    out = capsys.readouterr().out
    assert out.startswith("train  j-aaaaaaaaaa  running for ")
    assert "no-room: wants 4 GPUs on one node; the most free is 2, on node-2" in out


async def test_top_without_a_terminal_prints_once(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/cluster"] = cluster_view(node_view("node-1", gpu_view(0)), running=(job_view(),))
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=())
    assert await weft(gateway, "top") == 0
    out = capsys.readouterr().out
    assert "0 of 1 emulated GPU held" in out
    assert "train" in out
    assert "\x1b" not in out


async def test_gpus_are_listed_of_the_nodes_that_are_named(gateway: ToldGateway, capsys: Said) -> None:
    gpus = tuple(gpu_view(0, node_id=f"node-{number}") for number in (1, 2, 3))
    gateway.answers["GET /v1/gpus"] = GpusView(gpus=gpus)
    assert await weft(gateway, "gpus", "node-1", "node-3") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["NODE", "node-1", "node-3"]
    assert await weft(gateway, "gpus", "node-2") == 0
    assert gateway.asked == ["GET /v1/gpus", "GET /v1/gpus?node=node-2"]
    assert await weft(gateway, "gpus", "node-2", "node-7") == 1
    assert "weft: there is no node node-7 with GPUs" in capsys.readouterr().err


async def test_nodes_of_another_name_are_refused(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=(node_view(),))
    assert await weft(gateway, "nodes", "node-7") == 1
    assert capsys.readouterr().err == "weft: there is no node node-7; there is node-1\n"


async def test_logs_are_the_bytes_as_they_are(gateway: ToldGateway, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    gateway.answers |= {"GET /v1/jobs/train": job_view(), "GET /v1/jobs/j-aaaaaaaaaa/logs": b"one\n\xff\x1b[1mtwo"}
    assert await weft(gateway, "logs", "train") == 0
    assert capfdbinary.readouterr().out == b"one\n\xff\x1b[1mtwo"


async def test_logs_of_all_ranks_are_told_apart(gateway: ToldGateway, capsys: Said) -> None:
    job = job_view(placement=placement(("node-1", 0), ("node-2", 0)))
    gateway.answers |= {"GET /v1/jobs/train": job, "GET /v1/jobs/j-aaaaaaaaaa/logs": b"one\ntwo"}
    assert await weft(gateway, "logs", "train", "--rank", "all") == 0
    assert capsys.readouterr().out.splitlines() == ["[0] one", "[0] two", "[1] one", "[1] two"]


async def test_logs_of_all_ranks_are_asked_of_those_that_exist(gateway: ToldGateway, capsys: Said) -> None:
    """It wants eight replicas and was given one."""
    job = job_view(replicas=8, placement=placement(("node-1", 0)))
    gateway.answers |= {"GET /v1/jobs/train": job, "GET /v1/jobs/j-aaaaaaaaaa/logs": b"one\n"}
    assert await weft(gateway, "logs", "train", "--rank", "all") == 0
    assert capsys.readouterr().out == "[0] one\n"
    assert sum("/logs?" in asked for asked in gateway.asked) == 1


async def test_logs_of_all_ranks_of_an_earlier_epoch_are_those_that_it_had(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers |= {
        "GET /v1/jobs/train": job_view(state=JobState.QUEUED, epoch=1, replicas=1),
        "GET /v1/jobs/j-aaaaaaaaaa/events": [
            event_view("placed", epoch=0, placement=placement(("node-1", 0), ("node-1", 1)))
        ],
        "GET /v1/jobs/j-aaaaaaaaaa/logs": b"one\n",
    }
    assert await weft(gateway, "logs", "train", "--rank", "all") == 0
    assert capsys.readouterr().out == "[0] one\n[1] one\n"


async def test_logs_of_all_ranks_are_also_those_of_ranks_that_left(gateway: ToldGateway, capsys: Said) -> None:
    one = placement(("node-1", 0))
    grown = placement(("node-1", 0), ("node-1", 1))
    gateway.answers |= {
        "GET /v1/jobs/train": job_view(placement=msgspec.structs.replace(one, changes=2, ranks_used=2)),
        "GET /v1/jobs/j-aaaaaaaaaa/events": [
            event_view(name, placement=where) for name, where in (("placed", one), ("resized", grown), ("resized", one))
        ],
        "GET /v1/jobs/j-aaaaaaaaaa/logs": b"one\n",
    }
    assert await weft(gateway, "logs", "train", "--rank", "all") == 0
    assert capsys.readouterr().out == "[0] one\n[1] one\n"


@pytest.mark.parametrize("follow", [[], ["-f"]])
async def test_a_rank_whose_log_is_gone_ends_no_other(gateway: ToldGateway, capsys: Said, follow: list[str]) -> None:
    job = job_view(state=JobState.SUCCEEDED, placement=placement(("node-1", 0), ("node-2", 0)))
    gateway.answers["GET /v1/jobs/train"] = gateway.answers["GET /v1/jobs/j-aaaaaaaaaa"] = job
    gateway.answers["GET /v1/jobs/j-aaaaaaaaaa/logs?rank=0"] = b"one\n"
    gateway.refuse("GET /v1/jobs/j-aaaaaaaaaa/logs?rank=1", 404, "epoch", "node node-2 has no log of epoch 0")
    assert await weft(gateway, "logs", "train", "--rank", "all", *follow) == 0
    said = capsys.readouterr()
    assert said.out == "[0] one\n"
    assert said.err == "rank 1: node node-2 has no log of epoch 0\n"


FAILED = job_view(
    state=JobState.FAILED,
    replicas=2,
    exit_code=3,
    ended_for=Cause(
        code=CauseCode.RANK_ENDED, sentence="rank 1 ended with status 3", numbers={"rank": 1.0, "exit_code": 3.0}
    ),
    placement=placement(("node-1", 0), ("node-2", 0)),
)


async def test_the_log_of_a_failed_job_is_that_of_the_rank_that_failed_first(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.answers |= {"GET /v1/jobs/train": FAILED, "GET /v1/jobs/j-aaaaaaaaaa/logs": b"ValueError\n"}
    assert await weft(gateway, "logs", "train") == 0
    said = capsys.readouterr()
    assert said.out == "ValueError\n"
    assert said.err == "rank 1 of train, which failed first (rank 1 ended with status 3); --rank all shows all\n"
    assert "rank=1&" in next(asked for asked in gateway.asked if "/logs?" in asked)
    gateway.asked.clear()
    assert await weft(gateway, "logs", "train", "--rank", "0") == 0
    assert "rank=0&" in next(asked for asked in gateway.asked if "/logs?" in asked)


async def test_what_the_rank_that_failed_wrote_last_is_told_with_why(gateway: ToldGateway, capsys: Said) -> None:
    story = [event_view("failed", exit_code=3, cause=FAILED.ended_for)]
    told = Explanation(
        job_id=FAILED.id, name="train", state=JobState.FAILED, code="rank-ended", sentence="it has failed"
    )
    gateway.answers |= {
        "GET /v1/jobs/train": FAILED,
        f"GET /v1/jobs/{FAILED.id}": FAILED,
        f"GET /v1/jobs/{FAILED.id}/events": story,
        f"GET /v1/jobs/{FAILED.id}/logs": b"Traceback\n\x1b]0;owned\x07ValueError: bad\n",
        "GET /v1/jobs/train/explain": told,
    }
    for verb in ("describe", "explain"):
        assert await weft(gateway, verb, "train") == 0
        assert "the last lines of rank 1\n  Traceback\n  ValueError: bad\n" in capsys.readouterr().out
    gateway.refuse(f"GET /v1/jobs/{FAILED.id}/logs", 404, "node", "node node-2, which has the log, is lost")
    assert await weft(gateway, "explain", "train") == 0
    assert "the last lines of rank 1 are missing: node node-2, which has the log" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sentence", "lines", "told"),
    [
        ("could not start: command not found: pyhton", (), True),
        ("ended with status 1", ("ModuleNotFoundError: No module named 'torch'",), True),
        ("ended with status 1", ("ValueError: bad",), False),
    ],
)
def test_a_job_that_misses_the_environment_of_the_shell_is_told_what_to_do(
    sentence: str, lines: tuple[str, ...], told: bool
) -> None:
    job = job_view(state=JobState.FAILED, ended_for=Cause(code=CauseCode.EXITED, sentence=sentence))
    assert bool(hint(job, LastWords(rank=0, lines=lines))) is told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)", "a collective of NCCL timed"),
        ("RuntimeError: [..] Timed out waiting 1800000ms for recv operation", ""),
        ("RuntimeError: [../gloo/transport/tcp/pair.cc] [Gloo] Timed out waiting", "a collective of Gloo timed out"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "not all ranks came to the rendezvous"),
    ],
)
def test_a_timeout_of_nccl_or_torch_in_the_last_lines_is_recognised(line: str, told: str) -> None:
    cause = Cause(code=CauseCode.EXITED, sentence="ended with status 1")
    said = hint(job_view(state=JobState.FAILED, ended_for=cause), LastWords(rank=1, lines=("step 9", line)))
    assert said.startswith(told)
    assert bool(said) is bool(told)


async def test_a_job_that_hangs_is_listed_as_hung(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view(hung_since=1.0), job_view("j-bbbbbbbbbb")))
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=())
    assert await weft(gateway, "ps") == 0
    said = capsys.readouterr().out
    assert (said.count("hung"), said.count("running")) == (1, 1)


def test_with_a_virtual_environment_active_the_hint_is_the_option_that_takes_it_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/home/ada/venv")
    cause = Cause(code=CauseCode.EXITED, sentence="could not start: command not found: torchrun")
    said = hint(job_view(state=JobState.FAILED, ended_for=cause), None)
    assert said.endswith("`weft run --venv` takes /home/ada/venv along")


async def test_a_job_younger_than_the_moment_is_described_in_words(gateway: ToldGateway, capsys: Said) -> None:
    young = job_view(submitted_at=time.time() - 70)
    refusal = ErrorView(error=ErrorDetail(field="at", reason="not yet"))
    gateway.answers |= {
        "GET /v1/jobs/train": young,
        f"GET /v1/jobs/train?at={NOW}": web.Response(status=404, body=msgspec.json.encode(refusal)),
    }
    assert await weft(gateway, "describe", "train", "--at", f"@{NOW}") == 1
    assert re.fullmatch(
        r"weft: train did not exist then: it was submitted at [0-9:]{8}, 1m10s ago\n", capsys.readouterr().err
    )


async def test_logs_as_json_have_a_line_per_line(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers |= {"GET /v1/jobs/train": job_view(), "GET /v1/jobs/j-aaaaaaaaaa/logs": b"one\ntwo\n"}
    assert await weft(gateway, "logs", "train", "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [{"rank": 0, "line": "one"}, {"rank": 0, "line": "two"}]


async def test_bytes_that_a_node_has_dropped_are_told_beside_the_log(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers |= {"GET /v1/jobs/train": job_view(), "GET /v1/jobs/j-aaaaaaaaaa/logs": b"two\n"}
    dropped = str(3 << 20)
    gateway.log_headers = {"X-Weft-Offset": dropped, "X-Weft-Begins": dropped, "X-Weft-Node": "node-1"}
    assert await weft(gateway, "logs", "train") == 0
    said = capsys.readouterr()
    assert said.out == "two\n"
    told = "bytes 0 to 3145728 (3MiB) of epoch 0 are missing: dropped by the limits of node node-1"
    assert said.err == f"{told} (EXECUTOR_LOG_BYTES_MAX)\n"


async def test_the_last_lines_of_a_log_without_its_head_tell_of_it_where_they_reach_it(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.answers |= {"GET /v1/jobs/train": job_view(), "GET /v1/jobs/j-aaaaaaaaaa/logs": b"two\nthree\n"}
    gateway.log_headers = {"X-Weft-Offset": "4096", "X-Weft-Begins": "4096", "X-Weft-Node": "node-1"}
    assert await weft(gateway, "logs", "train", "-n", "5") == 0
    assert capsys.readouterr().err.startswith("bytes 0 to 4096 (4KiB) of epoch 0 are missing")
    assert await weft(gateway, "logs", "train", "-n", "1") == 0
    assert capsys.readouterr().err == ""


def noted(code: CauseCode, sentence: str, *, rank: int = 0, epoch: int = 0, version: int = 1) -> EventView:
    cause = Cause(code=code, sentence=sentence, by="node-1", numbers={"rank": float(rank)})
    return event_view("noted", version=version, cause=cause, epoch=epoch)


LOST = "4MiB of its output are lost: the disk of its node was full from 10:00:01 on"
WAITS = "its output has waited for room on the disk of its node since 10:00:01"


@pytest.mark.parametrize(
    ("state", "told", "said"),
    [
        (JobState.RUNNING, [noted(CauseCode.OUTPUT_WAITS, WAITS)], WAITS),
        (JobState.SUCCEEDED, [noted(CauseCode.OUTPUT_WAITS, WAITS)], ""),
        (
            JobState.SUCCEEDED,
            [noted(CauseCode.OUTPUT_WAITS, WAITS), noted(CauseCode.OUTPUT_LOST, LOST, version=2)],
            LOST,
        ),
        (JobState.SUCCEEDED, [noted(CauseCode.OUTPUT_LOST, f"rank 1: {LOST}", rank=1)], ""),
        (JobState.SUCCEEDED, [noted(CauseCode.OUTPUT_LOST, LOST, epoch=7)], ""),
        (JobState.SUCCEEDED, [noted(CauseCode.PROCESS_KILLED, "one of its processes was killed for memory")], ""),
    ],
)
async def test_output_that_a_full_disk_kept_out_of_the_log_is_told_beside_it(
    gateway: ToldGateway, capsys: Said, state: JobState, told: list[EventView], said: str
) -> None:
    job = job_view(state=state, placement=placement(("node-1", 0)))
    gateway.answers |= {"GET /v1/jobs/train": job, "GET /v1/jobs/j-aaaaaaaaaa/events": told}
    gateway.answers["GET /v1/jobs/j-aaaaaaaaaa/logs"] = b"one\n"
    assert await weft(gateway, "logs", "train") == 0
    found = capsys.readouterr()
    assert found.out == "one\n"
    assert found.err == (f"rank 0 of train, epoch 0: {said} (seen at {told[-1].time})\n" if said else "")


async def test_who_followed_a_log_is_told_at_its_end_what_is_lost_of_each_epoch(
    gateway: ToldGateway, capsys: Said
) -> None:
    told = [
        noted(CauseCode.OUTPUT_LOST, LOST),
        noted(CauseCode.OUTPUT_WAITS, WAITS, epoch=1, version=2),
        noted(CauseCode.OUTPUT_LOST, LOST, epoch=2, version=3),
    ]
    job = job_view(state=JobState.SUCCEEDED, epoch=2, placement=placement(("node-1", 0)))
    gateway.answers["GET /v1/jobs/train"] = gateway.answers["GET /v1/jobs/j-aaaaaaaaaa"] = job
    gateway.answers |= {"GET /v1/jobs/j-aaaaaaaaaa/logs": b"one\n", "GET /v1/jobs/j-aaaaaaaaaa/events": told}
    gateway.log_headers = {"X-Weft-Epoch": "2"}
    assert await weft(gateway, "logs", "train", "-f") == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["rank 0 of train, epoch 0", "rank 0 of train, epoch 2"]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (JobState.QUEUED, "train has written nothing: it has not started yet"),
        (JobState.RUNNING, "rank 0 of train has written nothing yet: it is running"),
        (JobState.SUCCEEDED, "rank 0 of train wrote nothing"),
    ],
)
async def test_a_job_that_wrote_nothing_is_said_to(
    gateway: ToldGateway, capsys: Said, state: JobState, told: str
) -> None:
    gateway.answers |= {"GET /v1/jobs/train": job_view(state=state), "GET /v1/jobs/j-aaaaaaaaaa/logs": b""}
    assert await weft(gateway, "logs", "train") == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(told)


async def test_the_last_lines_of_a_log_can_be_asked_for(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers |= {"GET /v1/jobs/train": job_view(), "GET /v1/jobs/j-aaaaaaaaaa/logs": b"one\ntwo\nthree\n"}
    assert await weft(gateway, "logs", "train", "-n", "2") == 0
    assert capsys.readouterr().out == "two\nthree\n"
    assert last_lines(b"one\ntwo", 1) == b"two"
    assert last_lines(b"one\ntwo", 0) == b""


def test_a_line_is_told_whole_however_it_came() -> None:
    said: list[bytes] = []
    writer = LineWriter(said.append, lambda line: b"> " + line)
    for chunk in (b"on", b"e\ntw", b"o", b"\nthree"):
        writer.write(chunk)
    writer.close()
    assert b"".join(said) == b"> one\n> two\n> three\n"


async def test_explain_says_what_a_running_job_leaves_unused_and_which_limits_were_changed(
    gateway: ToldGateway, capsys: Said
) -> None:
    told = Explanation(job_id="j-1", name="train", state=JobState.RUNNING, code="fits", sentence="it is on node-1")
    unused = RankVerdict(job_id="j-1", epoch=0, rank=-1, code="over-provisioned", sentence="uses 0.1 of its 4 cores")
    unknown = RankVerdict(job_id="j-1", epoch=0, rank=-1, code="unknown", sentence="too few measurements of its ranks")
    asked = LimitsView(cpus=4.0, memory=1 << 30)
    run = RunView(rank=0, role="worker", node_id="node-1", cpus=0.5, memory=1 << 30, asked=asked)
    gateway.answers["GET /v1/jobs/train/explain"] = told
    less = Finding(code="less-cpu", job_id="j-1", sentence="train: each worker 4.00 → 0.50 cores")
    gateway.answers["GET /v1/jobs/j-1"] = job_view("j-1", verdicts=(unused, unknown), findings=(less,), runs=(run,))
    assert await weft(gateway, "explain", "train") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "leaves unused: over-provisioned: uses 0.1 of its 4 cores" in lines
    assert "to improve: each worker 4.00 → 0.50 cores" in lines
    assert "tuned: rank 0 has 0.5 CPUs instead of 4" in lines
    assert not any("unknown" in line for line in lines)


def of_element(event: str, index: int, *, at: float, version: int = 1) -> EventView:
    return event_view(event, job=f"j-parts-{index}", at=at, version=version, name=f"parts-{index}")


async def test_the_events_of_an_array_are_those_of_its_elements_in_order(gateway: ToldGateway, capsys: Said) -> None:
    stories = {
        0: [of_element("submitted", 0, at=NOW - 9), of_element("started", 0, at=NOW - 5, version=2)],
        1: [of_element("submitted", 1, at=NOW - 8), of_element("failed", 1, at=NOW - 3, version=2)],
    }
    late = [of_element("succeeded", 0, at=NOW, version=3), event_view("started", job="j-other"), stories[1][1]]
    stream = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in reversed(late))
    gateway.answers |= {
        "GET /v1/arrays/parts": array_view("parts", running=1, failed=1),
        "GET /v1/arrays/a-parts": deque(
            [array_view("parts", running=1, failed=1), array_view("parts", succeeded=1, failed=1)]
        ),
        "GET /v1/arrays/a-parts/elements": JobsView(jobs=(job_view("j-parts-0"), job_view("j-parts-1"))),
        "GET /v1/events?limit=1": [stories[0][0]],
        "GET /v1/events": stream,
        **{f"GET /v1/jobs/j-parts-{index}/events": story for index, story in stories.items()},
    }
    assert await weft(gateway, "events", "parts", "-f") == 0
    shown = [line.split()[2:4] for line in capsys.readouterr().out.splitlines()]
    assert [" ".join(words) for words in shown] == [
        *("parts-0 j-parts-0", "parts-1 j-parts-1", "parts-0 j-parts-0", "parts-1 j-parts-1", "parts-0 j-parts-0"),
    ]
    many = structs.replace(array_view("parts", running=51), elements=51)
    gateway.answers["GET /v1/arrays/parts"] = many
    assert await weft(gateway, "events", "parts") == 1
    assert "parts has 51 elements, and events shows no more than 50 at once" in capsys.readouterr().err
