"""Commands about many jobs, from what is typed to what is asked of the gateway and printed."""

from collections import deque
from typing import Any
from urllib.parse import unquote

import pytest

from tests.support.told_gateway import ToldGateway, weft
from tests.support.views import NOW, array_view, job_view, node_view
from weft.domain.job import JobState
from weft.messages.asks import AskKind
from weft.messages.eta import Basis, Estimate, EtaOf
from weft.messages.http import Accepted, ArraysView, JobsAsked, JobsView, NodesView
from weft.messages.live import QueueRow, QueueView
from weftd.cli.rendering.context import RenderContext
from weftd.cli.rendering.jobs import when_text

Said = pytest.CaptureFixture[str]


def asked(gateway: ToldGateway) -> list[str]:
    return [unquote(request) for request in gateway.asked]


async def test_every_option_of_a_selection_is_asked_of_the_gateway(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=())
    options = "--name mlp-** --label team=vision --label urgent --tenant alice --kind batch --node n-1 --since @17.5"
    assert await weft(gateway, "ps", *options.split(), "--state", "failed") == 0
    assert asked(gateway) == [
        "GET /v1/jobs?state=failed&name=mlp-*&limit=100&label=team=vision,urgent&tenant=alice&kind=batch&node=n-1"
        "&since=17.5"
    ]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no job matches name mlp-*, state failed, label team=vision and urgent, tenant alice")


async def test_a_word_is_an_id_or_how_it_begins_else_a_name_or_a_pattern(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers |= {"GET /v1/jobs": JobsView(jobs=()), "GET /v1/jobs?id=j-ab": JobsView(jobs=(job_view("j-abc"),))}
    gateway.answers["GET /v1/jobs?limit=100"] = JobsView(jobs=(job_view("j-abc"),))
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=(node_view(),))
    assert await weft(gateway, "ps", "j-ab", "mlp-?") == 0
    assert asked(gateway)[:2] == ["GET /v1/jobs?limit=100&id=j-ab", "GET /v1/jobs?name=mlp-?&limit=100"]
    assert capsys.readouterr().out.splitlines()[1].startswith("j-abc")


async def test_a_pattern_cancels_all_open_jobs_that_it_matches_by_one_request(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.answers["POST /v1/jobs/cancel"] = JobsAsked(ask=AskKind.CANCEL, jobs=2)
    assert await weft(gateway, "cancel", "mlp-**", "--state", "queued", "--label", "team=x") == 0
    assert asked(gateway) == ["POST /v1/jobs/cancel?state=queued&name=mlp-*&label=team=x"]
    assert capsys.readouterr() == ("2 jobs will end\n", "")


async def test_of_very_many_jobs_the_request_is_sent_again(gateway: ToldGateway, capsys: Said) -> None:
    first, second = JobsAsked(ask=AskKind.CANCEL, jobs=10_000, more=True), JobsAsked(ask=AskKind.CANCEL, jobs=7)
    gateway.answers["POST /v1/jobs/cancel?all=1"] = deque([first, second])
    assert await weft(gateway, "cancel", "--all", "--yes") == 0
    assert capsys.readouterr() == ("10,007 jobs will end\n", "")


async def test_quiet_prints_the_ids_alone(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view("j-2"), job_view("j-1", JobState.QUEUED)))
    gateway.answers["GET /v1/arrays"] = ArraysView(arrays=(array_view("parts", queued=2),))
    assert await weft(gateway, "ps", "-q") == 0
    assert capsys.readouterr() == ("j-2\nj-1\na-parts\n", "")
    assert [request.partition("?")[0] for request in gateway.asked] == ["GET /v1/jobs", "GET /v1/arrays"]
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=())
    assert await weft(gateway, "ps", "-q", "--state", "failed") == 0
    assert capsys.readouterr() == ("", "")
    assert await weft(gateway, "ps", "-q", "--json") == 2


async def test_of_many_jobs_one_line_says_how_many_go_back_to_the_queue(gateway: ToldGateway, capsys: Said) -> None:
    jobs = tuple(job_view(f"j-{place}") for place in range(40))
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=jobs)
    for job in jobs[:15]:
        gateway.answers[f"POST /v1/jobs/{job.id}/requeue"] = Accepted(id=job.id, ask=AskKind.REQUEUE, state="running")
    for job in jobs[15:]:
        gateway.refuse(f"POST /v1/jobs/{job.id}/requeue", 409, "job", "it is in the queue already")
    assert await weft(gateway, "requeue", "--all", "--yes") == 1
    said = capsys.readouterr()
    assert said.out == "15 of 40 jobs will go back to the queue\n"
    refused = said.err.splitlines()
    assert (len(refused), refused[0]) == (21, "weft: j-15: it is in the queue already")
    assert refused[-1] == "weft: 25 in all were refused; the first 20 are shown"
    assert sorted(gateway.asked[1:]) == sorted(f"POST /v1/jobs/{job.id}/requeue" for job in jobs)


@pytest.mark.parametrize("typed", [["--all"], ["*"], ["**"], ["--name", "*"], ["--all", "--kind", "batch"]])
async def test_all_asks_first_and_without_a_terminal_wants_a_yes(
    gateway: ToldGateway, capsys: Said, typed: list[str]
) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view("j-1", name="mlp"),))
    gateway.answers["POST /v1/jobs/cancel"] = JobsAsked(ask=AskKind.CANCEL, jobs=1)
    assert await weft(gateway, "cancel", *typed) == 2
    said = "weft: this would cancel 1 job (mlp j-1): add --yes if you mean it\n"
    assert capsys.readouterr().err == said
    assert len(gateway.asked) == 1
    assert await weft(gateway, "cancel", *typed, "--yes") == 0
    (sent,) = asked(gateway)[1:]
    assert sent.startswith("POST /v1/jobs/cancel?")
    assert "all=1" in sent


async def test_a_selection_that_finds_nothing_changes_nothing_and_says_so(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=())
    assert await weft(gateway, "requeue", "--label", "team=x", "--state", "failed") == 1
    assert capsys.readouterr().err == "weft: no job matches state failed, label team=x\n"
    gateway.answers["POST /v1/jobs/cancel"] = JobsAsked(ask=AskKind.CANCEL, jobs=0)
    assert await weft(gateway, "cancel", "mlp-*", "--kind", "batch") == 1
    assert capsys.readouterr().err == "weft: no open job matches mlp-*, kind batch\n"


@pytest.mark.parametrize(
    "typed",
    [
        ["cancel"],
        ["requeue"],
        ["logs"],
        ["cancel", "a", "--all"],
        ["cancel", "a", "--name", "b"],
        ["ps", "--label", "a=1,2"],
    ],
)
async def test_a_selection_that_makes_no_sense_asks_nothing(gateway: ToldGateway, typed: list[str]) -> None:
    assert await weft(gateway, *typed) == 2
    assert gateway.asked == []


@pytest.mark.parametrize("since", ["yesterday", "@nan", "@inf", "@-1", "12-34", "@1e99", "\x1b[2J", "9" * 5000])
async def test_a_since_that_is_no_time_is_refused(gateway: ToldGateway, capsys: Said, since: str) -> None:
    assert await weft(gateway, "ps", f"--since={since}") == 1
    said = capsys.readouterr().err
    assert said.startswith("weft: --since: expected a time")
    assert "\x1b" not in said
    assert len(said) < 300
    assert gateway.asked == []


async def test_the_logs_of_several_jobs_are_told_apart(
    gateway: ToldGateway, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view("j-1", name="a"), job_view("j-2", name="b")))
    for job, name in (("j-1", "a"), ("j-2", "b")):
        gateway.answers |= {f"GET /v1/jobs/{job}": job_view(job, name=name)}
        gateway.answers |= {f"GET /v1/jobs/{job}/logs": f"{name}1\n{name}2\n".encode()}
    assert await weft(gateway, "logs", "?") == 0
    assert capfdbinary.readouterr().out == b"[a] a1\n[a] a2\n[b] b1\n[b] b2\n"


async def test_a_name_that_no_job_has_is_told_with_one_that_is_like_it(gateway: ToldGateway, capsys: Said) -> None:
    gateway.refuse("GET /v1/jobs/trian/explain", 404, "job", "no job has the id or the name trian")
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view(name="train"), job_view(name="serve")))
    assert await weft(gateway, "explain", "trian") == 1
    assert capsys.readouterr().err == "weft: no job has the id or the name trian; did you mean train?\n"
    gateway.refuse("GET /v1/jobs", 503, "", "the store is away for a moment")
    assert await weft(gateway, "explain", "trian") == 1
    assert "no job has the id or the name trian" in capsys.readouterr().err


async def test_a_verb_for_one_job_that_is_given_an_array_asks_for_an_element(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.refuse("GET /v1/jobs/parts/explain", 404, "job", "no job has the id or the name parts")
    gateway.answers["GET /v1/arrays/parts/elements"] = JobsView(jobs=(job_view("j-k3-4", name="parts-4"),))
    assert await weft(gateway, "explain", "parts") == 1
    assert capsys.readouterr().err == "weft: parts is an array: say which element is meant, such as parts_4\n"


@pytest.mark.parametrize("follow", [(), ("-f",)])
async def test_logs_of_a_small_array_are_those_of_its_elements(
    gateway: ToldGateway, capsys: Said, follow: tuple[str, ...]
) -> None:
    done = [job_view(f"j-k3-{n}", JobState.SUCCEEDED, name=f"parts-{n}") for n in (1, 2)]
    gateway.refuse("GET /v1/jobs/parts", 404, "job", "no job has the id or the name parts")
    gateway.answers["GET /v1/arrays/parts"] = array_view("parts", succeeded=2)
    gateway.answers["GET /v1/arrays/a-parts/elements"] = JobsView(jobs=tuple(done))
    for job in done:
        gateway.answers |= {f"GET /v1/jobs/{job.id}": job, f"GET /v1/jobs/{job.id}/logs": f"of {job.name}\n".encode()}
    assert await weft(gateway, "logs", "parts", *follow) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["[parts-1] of parts-1", "[parts-2] of parts-2"]


async def test_logs_of_a_large_array_are_refused_with_the_way_to_one_element(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.refuse("GET /v1/jobs/parts", 404, "job", "no job has the id or the name parts")
    gateway.answers["GET /v1/arrays/parts"] = array_view("parts", running=21)
    assert await weft(gateway, "logs", "parts") == 1
    told = "weft: parts has 21 elements, and logs shows no more than 20 at once: say which, such as parts_3\n"
    assert capsys.readouterr().err == told


def estimate(basis: Basis = Basis.LEARNT, **fields: Any) -> Estimate:
    return Estimate(of=EtaOf.START, basis=basis, sentence="", **fields)


def test_when_a_job_starts_is_told_in_a_word() -> None:
    context = RenderContext(now=NOW)
    told = [
        estimate(basis=Basis.ROOM, likely=NOW, latest=NOW + 1),
        estimate(earliest=NOW + 60, likely=NOW + 125, latest=NOW + 300),
        estimate(earliest=NOW + 60, latest=NOW + 3600),
        estimate(latest=NOW + 7200),
        estimate(earliest=NOW + 7200),
        estimate(),
    ]
    words = ["now", "in 2m5s", "1m0s to 1h0m", "within 2h0m", "after 2h0m", "?"]
    assert [when_text(each, context) for each in told] == words


def test_a_start_that_is_overdue_is_no_start_now() -> None:
    """`STARTS now` stood there for minutes: the estimate was past, and the job waited."""
    overdue = estimate(earliest=NOW, likely=NOW, latest=NOW + 30)
    assert [when_text(overdue, RenderContext(now=NOW + later)) for later in (0, 29, 31)] == [
        "within 30s",
        "within 1s",
        "?",
    ]


async def test_ps_tells_when_what_waits_starts(gateway: ToldGateway, capsys: Said) -> None:
    job = job_view("j-1", JobState.QUEUED)
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job,))
    row = QueueRow(
        place=1,
        id="j-1",
        name="train",
        tenant="alice",
        pool="default",
        kind=job.kind,
        state=job.state,
        priority=0,
        gpus=1,
        replicas=1,
        submitted_at=NOW,
        since=NOW,
        code="",
        sentence="",
        labels={},
        eta=estimate(likely=NOW),
    )
    gateway.answers["GET /v1/queue"] = QueueView(at=NOW, total=1, order="priority", rows=(row,))
    assert await weft(gateway, "ps") == 0
    assert capsys.readouterr().out.splitlines()[0].split()[:5] == ["ID", "NAME", "STATE", "FOR", "STARTS"]
    gateway.refuse("GET /v1/queue", 429, "", "too many readers")
    assert await weft(gateway, "ps") == 0
    assert "STARTS" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["ps", "describe", "explain"])
async def test_an_array_is_shown_by_its_name_and_by_its_id(gateway: ToldGateway, capsys: Said, verb: str) -> None:
    parts = array_view("parts", running=2, queued=19)
    gateway.answers |= {"GET /v1/jobs": JobsView(jobs=())}
    gateway.answers |= {f"GET /v1/arrays/{word}": parts for word in ("parts", "a-parts")}
    for word in ("parts", "a-parts"):
        assert await weft(gateway, verb, word) == 0
        assert "2 running, 19 queued" in capsys.readouterr().out


async def test_running_jobs_are_on_the_first_page_however_many_newer_ones_wait(
    gateway: ToldGateway, capsys: Said
) -> None:
    waiting = tuple(job_view(f"j-w{number}", JobState.QUEUED, seq=100 - number) for number in range(3))
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=waiting, before=97)
    gateway.answers["GET /v1/jobs?state=placed,running,starting,stopping"] = JobsView(jobs=(job_view("j-runs", seq=1),))
    gateway.answers |= {"GET /v1/nodes": NodesView(nodes=()), "GET /v1/arrays": b'{"arrays":[]}'}
    assert await weft(gateway, "ps", "--limit", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["j-runs", "j-w0", "j-w1"]
