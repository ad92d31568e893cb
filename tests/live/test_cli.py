"""`weft` as a person uses it, each command a process of its own, on a whole cluster."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import SECONDS_MAX, Person, Terminal, ended
from weft.domain.job import JobState


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("cli"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def alice(cluster: Cluster) -> Person:
    """The administrator."""
    return Person(cluster, cluster.local.token)


async def test_a_job_is_run_seen_waited_for_and_its_log_read(alice: Person) -> None:
    job = await alice.runs("--gpus", "1", "--name", "hello", "--", "sh", "-c", "echo hello; echo again >&2")
    waited = await alice.types("wait", job)
    assert waited.status == 0
    assert waited.out.startswith(f"hello {job} succeeded after ")
    assert (await alice.types("logs", job)).out == "hello\nagain\n"
    assert (await alice.types("logs", "hello", "-n", "1")).out == "again\n"
    listed = json.loads((await alice.types("ps", "-a", "--json")).out)
    assert job in [each["id"] for each in listed["jobs"]]
    described = (await alice.types("describe", job)).out
    story = described.partition("event history")[2]
    order = [story.index(f" {event} ") for event in ("submitted", "placed", "starting", "started", "succeeded")]
    assert order == sorted(order)
    assert "emulated GPU" in described
    told = [json.loads(line) for line in (await alice.types("events", job, "-f", "--json")).out.splitlines()]
    assert [event["type"].rpartition(".")[2] for event in told][-1] == "succeeded"
    last_two = (await alice.types("events", job, "-n", "2", "--json")).out.splitlines()
    assert [json.loads(line) for line in last_two] == told[-2:]


async def test_following_shows_the_log_and_the_story_and_exits_as_the_job_does(alice: Person) -> None:
    good = await alice.types("run", "-f", "--", "sh", "-c", "echo out")
    assert (good.status, good.out) == (0, "out\n")
    bad = await alice.types(
        "run", "--name", "bad", "--retries", "1", "-f", "--", "sh", "-c", "echo out; sleep 1; exit 3"
    )
    assert (bad.status, bad.out) == (3, "out\nout\n")
    assert " requeued " in bad.err
    assert " failed: ended with status 3, after " in bad.err.splitlines()[-1]


async def test_following_a_gang_ends_with_the_last_lines_of_the_rank_that_failed(alice: Person) -> None:
    script = 'echo hello $RANK; if [ $RANK = 1 ]; then sleep 0.5; echo "ValueError: bad"; exit 7; fi; sleep 60'
    bad = await alice.types("run", "--name", "gang-bad", "--replicas", "2", "-f", "--", "sh", "-c", script)
    assert bad.status == 7
    assert "the last lines of rank 1\n  hello 1\n  ValueError: bad\n" in bad.err
    assert " failed: rank 1 ended with status 7, after " in bad.err.splitlines()[-1]
    logs = await alice.types("logs", "gang-bad")
    assert logs.out == "hello 1\nValueError: bad\n"
    assert logs.err.startswith("rank 1 of gang-bad, which failed first")
    for verb in ("explain", "describe"):
        assert "ValueError: bad" in (await alice.types(verb, "gang-bad")).out
    assert "rank 1 ended with status 7" in (await alice.types("ps", "-a")).out


async def test_a_job_that_never_started_has_no_log_and_says_why(alice: Person) -> None:
    never = await alice.types("run", "--name", "typo", "-f", "--", "no-such-program")
    assert never.status == 1
    assert "typo" in never.err
    assert "command not found" in never.err
    assert "`weft run --help` says what to do" in never.err
    logs = await alice.types("logs", "typo")
    assert (logs.status, logs.out) == (1, "")
    assert logs.err.startswith("weft: typo never started in epoch 0: command not found")


async def test_https_to_a_gateway_that_speaks_http_is_told_in_words(alice: Person) -> None:
    refused = await alice.types("ps", "--url", alice.cluster.local.url.replace("http:", "https:"), "--token", "x")
    assert refused.status == 1
    assert "does not speak TLS; try http:// in place of https://" in refused.err


async def test_ctrl_c_leaves_the_followed_job_alone(alice: Person) -> None:
    following = await alice.begins("run", "--name", "patient", "-f", "--", "sh", "-c", "echo ready; sleep 60")
    assert following.stdout
    async with asyncio.timeout(SECONDS_MAX):
        assert await following.stdout.readline() == b"ready\n"
    following.send_signal(signal.SIGINT)
    left = await ended(following)
    assert left.status == 130
    assert "patient goes on: " in left.err
    assert "Traceback" not in left.err
    assert (await alice.cluster.client.job("patient")).state is JobState.RUNNING
    assert (await alice.types("cancel", "patient")).status == 0
    assert (await alice.types("wait", "patient")).status == 1


async def test_a_job_that_waits_is_explained_with_who_holds_what_it_needs(alice: Person) -> None:
    holders = [
        await alice.runs("--name", f"hold-{n}", "--gpus", "2", "--no-preempt", "--", "sleep", "60") for n in "ab"
    ]
    for holder in holders:
        await alice.cluster.state(holder, JobState.RUNNING)
    waiter = await alice.runs("--name", "waiter", "--gpus", "1", "--", "true")
    explained = (await alice.types("explain", "waiter")).out
    assert explained.startswith(f"waiter  {waiter}  queued\nno-room: wants 1 GPU")
    assert all(holder in explained for holder in holders)
    assert "2 emulated" in explained
    told = json.loads((await alice.types("explain", "waiter", "--json")).out)
    assert (told["code"], {holder["job_id"] for holder in told["holders"]}) == ("no-room", set(holders))
    nodes = (await alice.types("nodes")).out
    assert nodes.count("Emulated GPU") >= 2
    assert f"hold-a {holders[0]} rank 0" in nodes
    top = (await alice.types("top")).out
    assert "4 of 4 emulated GPUs held" in top
    assert "no-room: wants 1 GPU" in top
    assert (await alice.types("priority", "waiter", "7")).out == f"{waiter} has priority 7 (it is queued)\n"
    await alice.cluster.until(waiter, lambda job: job.priority == 7)
    assert (await alice.types("cancel", *holders)).status == 0
    assert (await alice.types("wait", waiter, "--timeout", "20")).status == 0


async def test_a_job_that_is_over_can_be_sent_back_to_the_queue(alice: Person) -> None:
    job = await alice.runs("--name", "twice", "--", "sh", "-c", "echo epoch $WEFT_EPOCH")
    assert (await alice.types("wait", job)).status == 0
    assert (await alice.types("requeue", job)).status == 0
    await alice.cluster.until(job, lambda view: view.epoch == 1 and view.state.final)
    assert (await alice.types("logs", job)).out == "epoch 1\n"
    assert (await alice.types("logs", job, "--epoch", "0")).out == "epoch 0\n"


async def test_a_drained_node_takes_nothing_until_it_is_resumed(alice: Person) -> None:
    assert (await alice.types("drain", "node-1", "node-2")).status == 0
    job = await alice.runs("--name", "later", "--", "true")
    assert (await alice.types("wait", job, "--timeout", "1")).status == 124
    assert "drained" in (await alice.types("nodes")).out
    assert (await alice.types("resume", "node-1", "node-2")).status == 0
    assert (await alice.types("wait", job, "--timeout", "20")).status == 0


async def test_a_job_runs_where_the_labels_match_and_where_it_tolerates_the_taints(alice: Person) -> None:
    refused = await alice.types("run", "--where", "zone == 'b'", "--", "true")
    assert refused.status != 0
    assert "--where: no node of its pool matches `zone == 'b'`; no node has a label" in refused.err
    refused = await alice.types("run", "--where", "zone = 'b'", "--", "true")
    assert "--where: at character 6: `=` alone; did you mean `==`?" in refused.err
    assert (await alice.types("label", "node-2", "zone=b", "nvlink=")).status == 0
    assert (await alice.types("taint", "node-2", "dedicated=vision")).status == 0
    await until_shown(alice, "nvlink, zone=b; taint dedicated=vision")
    refused = await alice.types("run", "--where", "zone == 'b'", "--", "true")
    assert "--tolerate: each node of its pool that matches its `where` has a taint" in refused.err
    job = await alice.runs("--where", "zone == 'b' && nvlink", "--tolerate", "dedicated", "--", "true")
    assert (await alice.types("wait", job, "--timeout", "20")).status == 0
    view = await alice.cluster.until(job, lambda view: view.state.final)
    assert view.nodes == ("node-2",)
    assert "has labels zone=b, nvlink by" in (await alice.types("events")).out
    assert (await alice.types("label", "node-2", "zone-", "nvlink-")).status == 0
    assert (await alice.types("taint", "node-2", "dedicated-")).status == 0
    assert (await alice.types("label", "node-1")).status == 2


async def until_shown(alice: Person, text: str) -> None:
    """Return once `weft nodes` shows the text."""
    async with asyncio.timeout(SECONDS_MAX):
        while text not in (await alice.types("nodes")).out:  # noqa: ASYNC110 -- by looking alone
            await asyncio.sleep(0.1)


async def test_a_node_is_emptied_and_takes_jobs_again_at_a_time(alice: Person) -> None:
    job = await alice.runs("--name", "moves", "--gpus", "1", "--", "sh", "-c", "echo epoch $WEFT_EPOCH; sleep 600")
    view = await alice.cluster.until(job, lambda view: view.state is JobState.RUNNING)
    assert view.placement is not None
    home = view.placement.allocations[0].node_id
    drained = await alice.types("drain", home, "--evict", "--wait", "--reason", "new memory", "--until", "1h")
    assert (drained.status, drained.out) == (0, f"{home} takes no new jobs\n")
    assert "drained (new memory, until " in (await alice.types("nodes")).out
    view = await alice.cluster.until(job, lambda view: view.state is JobState.RUNNING and view.epoch == 1)
    assert view.placement is not None
    assert view.placement.allocations[0].node_id != home
    assert "drained (new memory, until " in (await alice.types("events", job)).out
    assert (await alice.types("resume", home)).status == 0
    assert (await alice.types("cancel", job)).status == 0
    refused = await alice.types("cordon", home, "--until", "yesterday")
    assert (refused.status, refused.out) == (1, "")
    assert "--until: expected a time such as 2h" in refused.err


async def test_the_ranks_of_a_gang_have_logs_of_their_own(alice: Person) -> None:
    job = await alice.runs("--replicas", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    assert (await alice.types("wait", job)).status == 0
    assert (await alice.types("logs", job, "--rank", "1")).out == "rank 1 of 2\n"
    everything = (await alice.types("logs", job, "-f", "--rank", "all")).out
    assert sorted(everything.splitlines()) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]


async def test_a_job_ends_with_its_workers_though_its_helper_would_run_for_ever(alice: Person, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("""
name: helped
done_when: worker
grace: 5s
roles:
  ps: {command: [sh, -c, "trap 'echo told; exit 9' TERM; while :; do sleep 0.1; done"]}
  worker: {replicas: {want: 2}, command: [sh, -c, "sleep 1; echo trained"]}
""")
    ran = await alice.types("submit", str(tmp_path / "job.yaml"), "-f")
    assert ran.status == 0
    assert "core-done: every rank of role worker ended with status 0: the other ranks stop" in ran.err
    assert " succeeded" in ran.err.splitlines()[-1]
    logs = (await alice.types("logs", "helped", "--rank", "all")).out
    assert (logs.count("told"), logs.count("trained")) == (1, 2)


async def test_a_file_is_submitted_once_per_key(alice: Person, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: filed\ncommand: [echo, filed]\n")
    first = await alice.types("submit", str(tmp_path / "job.yaml"), "--key", "only-once")
    again = await alice.types(
        "submit", "-", "--key", "only-once", stdin=b'{"name": "filed", "command": ["echo", "filed"]}'
    )
    assert (first.status, again.status, again.out) == (0, 0, first.out)
    other = await alice.types("submit", "-", "--key", "only-once", stdin=b"name: other\ncommand: [x]\n")
    assert other.status == 1
    assert other.err.startswith("weft: Idempotency-Key: ")


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        (["run", "--gpus", "9", "--", "x"], "weft: --gpus: "),
        (["run", "--pool", "nowhere", "--", "x"], "weft: --pool: no node is in pool nowhere"),
        (["run", "--volume", "/etc:/x", "--", "x"], "weft: --volume: /etc is not below"),
        (["describe", "nobody"], "weft: no job has the id or the name nobody"),
        (["cancel", "nobody"], "weft: no job has the id or the name nobody"),
        (["drain", "node-9"], "weft: there is no node node-9"),
        (["logs", "a.b"], "weft: not an id or a name"),
    ],
)
async def test_what_is_refused_is_one_line_and_stores_nothing(alice: Person, typed: list[str], complaint: str) -> None:
    before = (await alice.cluster.client.jobs(limit=1)).jobs
    refused = await alice.types(*typed)
    assert (refused.status, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert refused.err.startswith(complaint)
    assert (await alice.cluster.client.jobs(limit=1)).jobs == before


async def test_a_tenant_sees_and_touches_only_its_own_jobs_until_its_token_is_revoked(alice: Person) -> None:
    bob = Person(alice.cluster, (await alice.types("token", "make", "bob", "--label", "laptop")).out.strip())
    job = await alice.runs("--name", "private", "--gpus", "1", "--", "sleep", "60")
    await alice.cluster.state(job, JobState.RUNNING)
    assert (await bob.types("ps", "-a")).out == ""
    assert "private" not in (await bob.types("nodes")).out
    assert (await bob.types("cancel", job)).status == 1
    assert (await bob.types("token", "make", "bob")).status == 1
    own = await bob.runs("--name", "own", "--", "true")
    assert own in (await bob.types("ps", "-a")).out
    assert (await alice.types("cancel", job)).status == 0
    assert (await alice.types("token", "revoke", "bob", "--label", "laptop")).out == "1 token revoked\n"

    async def refused() -> bool:
        return (await bob.types("ps")).status == 1

    async with asyncio.timeout(SECONDS_MAX):
        while not await refused():
            pass
    assert "(the token is from WEFT_TOKEN)" in (await bob.types("ps")).err


async def test_a_reader_that_stops_reading_is_no_error(alice: Person) -> None:
    job = await alice.runs("--name", "wordy", "--", "sh", "-c", "yes | head -c 3000000")
    assert (await alice.types("wait", job)).status == 0
    logs = await alice.begins("logs", job)
    assert logs.stdout
    await logs.stdout.readexactly(2)
    logs.stdout._transport.close()  # type: ignore[attr-defined]  # as `head` does
    assert logs.stderr
    assert await logs.stderr.read() == b""
    assert await logs.wait() == 141


@pytest.mark.parametrize("ending", ["q", "Ctrl-C", "hang-up"])
async def test_top_is_live_on_a_terminal_and_leaves_it_as_it_was(alice: Person, ending: str) -> None:
    terminal = Terminal(alice, "top", "--interval", "0.2")
    await terminal.begin()
    await terminal.shows(b"4 emulated GPUs held")
    job = await alice.runs("--name", f"live-{ending.lower()}", "--gpus", "2", "--", "sleep", "60")
    await terminal.shows(f"live-{ending.lower()}".encode())
    await alice.types("cancel", job)
    match ending:
        case "q":
            assert await terminal.ends(key=b"q") == 0
        case "Ctrl-C":
            assert await terminal.ends(sent=signal.SIGINT) == 0
        case _:
            assert await terminal.ends(sent=signal.SIGHUP) == 0
    assert terminal.seen.count(b"\x1b[?1049h") == 1  # a screen of its own
    assert terminal.seen.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in terminal.seen[-64:]


async def test_a_log_on_a_terminal_cannot_steer_it(alice: Person) -> None:
    hostile = r"printf 'good\rbad\033]0;owned\007\033]52;c;eA==\007\033[2J\302\2332J\033[31mred\n'"
    job = await alice.runs("--name", "hostile", "--", "sh", "-c", hostile)
    assert (await alice.types("wait", job)).status == 0
    terminal = Terminal(alice, "logs", job)
    await terminal.begin()
    await terminal.shows(b"red")
    assert await terminal.ends() == 0
    assert b"good\r\nbad\x1b[31mred\r\n" in terminal.seen
    assert b"owned" not in terminal.seen
    raw = Terminal(alice, "logs", "--raw", job)
    await raw.begin()
    await raw.shows(b"red")
    assert await raw.ends() == 0
    assert b"\x1b]0;owned\x07" in raw.seen
    assert "\x1b]0;owned\x07" in (await alice.types("logs", job)).out  # a pipe gets every byte
