"""The pages that state facts of the code are held against it: states and steps, events, messages."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.doubles.store import MemoryStore
from tests.support.scheduler import world
from tests.support.story import documents, tell_everything
from weft.credentials.permissions import SERVICE_PERMISSIONS, Permissions, node_permissions
from weft.domain.job import STEPS, CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.messages.events import NODE_EVENTS
from weftd.scheduler.thinking.core_settings import Settings

ROOT = Path(__file__).parents[2]
Steps = set[tuple[str, str, str]]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def rows(text: str, *, under: str) -> list[list[str]]:
    """The cells of the first table behind a line."""
    lines = text[text.index(under) :].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    found: list[list[str]] = []
    for line in lines[begin + 1 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def names(cell: str) -> list[str]:
    """What a cell has in backticks."""
    return re.findall(r"`([^`]+)`", cell)


# states


CODE: Steps = {(state.value, event.value, to.value) for (state, event), to in STEPS.items()}


def test_the_diagram_has_exactly_the_legal_steps() -> None:
    diagram = page("job-states.md").split("```mermaid")[1].split("```")[0]
    edges = re.findall(r"^ +(\S+) --> (\w+): (\w+)$", diagram, flags=re.MULTILINE)
    assert len(edges) == diagram.count("-->") == len(set(edges))
    assert ("[*]", "queued", "submitted") in edges
    assert {(begin, event, end) for begin, end, event in edges if begin != "[*]"} == CODE


def test_the_table_of_steps_has_exactly_the_legal_steps_and_says_when() -> None:
    table = rows(page("job-states.md"), under="## Steps")
    assert {tuple(names(cell)[0] for cell in row[:3]) for row in table} == CODE
    assert len(table) == len(CODE)
    assert all(row[3] for row in table)


def test_the_database_has_exactly_the_legal_steps() -> None:
    migrations = [path.read_text() for path in sorted((ROOT / "libs/weft/store/sql/migrations").glob("*.sql"))]
    statements = [
        after.split(";")[0]
        for migration in migrations
        for after in migration.split("INSERT INTO job_steps (from_state, event, to_state) VALUES")[1:]
    ]
    found = [step for statement in statements for step in re.findall(r"\('(\w+)', +'(\w+)', +'(\w+)'\)", statement)]
    assert len(found) == sum(statement.count("(") for statement in statements) == len(set(found))
    assert set(found) == CODE


def test_every_state_has_a_line_with_owner_and_deadline() -> None:
    table = {names(row[0])[0]: row[1:] for row in rows(page("job-states.md"), under="## States")}
    assert table.keys() == {state.value for state in JobState}
    for state in JobState:
        holds, owner, meaning, deadline, then = table[state.value]
        assert holds == ("yes" if state.holding else "no")
        assert meaning
        assert then
        assert (owner == "nobody") == (deadline == "final") == state.final


SETTINGS = {"start": "start_seconds", "stop": "stop_seconds", "lease": "lease_seconds"}
JOBS_OWN = {"limit", "grace"}


def test_deadlines_are_those_of_the_code() -> None:
    """The settings and their defaults; that each ends its state is shown by tests/unit/test_scheduler_deadlines.py."""
    text = page("job-states.md").split("## States")[1].split("## Steps")[0]
    words = " ".join(text.split())
    named = dict(re.findall(r"`(\w+_seconds)` \((\d+)\)", words))
    assert named == {name: f"{getattr(Settings(), name):g}" for name in (*SETTINGS.values(), "settle_seconds")}
    for row in rows(page("job-states.md"), under="## States"):
        assert set(re.findall(r"\*(\w+)\*", row[4])) <= SETTINGS.keys() | JOBS_OWN


# Where a job is taken to when the deadline of its state has passed, and why.
AT_THE_DEADLINE = {
    JobState.PLACED: (JobState.STOPPING, CauseCode.START_TIMEOUT),
    JobState.STARTING: (JobState.STOPPING, CauseCode.START_TIMEOUT),
    JobState.RUNNING: (JobState.STOPPING, CauseCode.TIME_LIMIT),
    JobState.STOPPING: (JobState.FAILED, CauseCode.STOP_TIMEOUT),
}


@pytest.mark.parametrize("state", JobState)
def test_what_happens_at_a_deadline_is_what_the_page_says(state: JobState) -> None:
    (row,) = [row for row in rows(page("job-states.md"), under="## States") if names(row[0]) == [state.value]]
    if state not in AT_THE_DEADLINE:
        assert row[4] in ("final", "none, by design")
        return
    to, code = AT_THE_DEADLINE[state]
    assert {to.value, code.value} <= set(names(row[5]))
    w = world(settings=Settings(lease_seconds=1e6))
    w.submit("j-1", spec={"time_limit": "60s", "grace": "10s", "retries": {"max": 0}})
    w.tick()
    node = w.nodes["node-1"]
    if state is not JobState.PLACED:
        node.unkillable.add(("j-1", 0, 0))
        w.sync("node-1")
        if state is JobState.STARTING:
            node.prepares(("j-1", 0, 0))
        w.sync("node-1")
    if state is JobState.STOPPING:
        w.ask(AskKind.REQUEUE, "j-1")
    assert w.state("j-1") is state
    taken = w.tick(1000)
    assert (taken[0].to, taken[0].cause.code) == (to, code)


# events

SUBJECTS = [f"weft.events.jobs.{event}" for event in JobEvent] + [f"weft.events.nodes.{event}" for event in NODE_EVENTS]


def examples() -> dict[str, Any]:
    found = re.findall(r"^### `(\S+)`\n\n[^#]+?```json\n(.+?)```$", page("events.md"), flags=re.MULTILINE | re.DOTALL)
    assert len(found) == len(dict(found))
    return {subject: json.loads(example) for subject, example in found}


@pytest.fixture(scope="module")
async def told() -> dict[str, Any]:
    """What is really told; the conformance suite holds that Postgres tells the same."""
    store = MemoryStore()
    return documents(await tell_everything(store, store))


def test_every_event_has_an_example_and_no_other_has() -> None:
    assert sorted(examples()) == sorted(SUBJECTS)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_an_example_is_what_is_really_told(told: dict[str, Any], subject: str) -> None:
    example = examples()[subject]
    assert example == told[subject]
    assert example["type"] == subject.replace(".events", "")


@pytest.mark.parametrize(("heading", "topic"), [("## Events of jobs", "jobs"), ("## Events of nodes", "nodes")])
def test_every_field_of_an_event_is_described_and_where_it_is(told: dict[str, Any], heading: str, topic: str) -> None:
    documented = {names(row[0])[0]: row[1] for row in rows(page("events.md"), under=heading)}
    found: dict[str, set[str]] = {}
    for subject, example in told.items():
        if subject.startswith(f"weft.events.{topic}."):
            for field in example["data"]:
                found.setdefault(field, set()).add(subject.rpartition(".")[2])
    every = {subject.rpartition(".")[2] for subject in SUBJECTS if f".{topic}." in subject}
    assert documented.keys() == found.keys()
    for field, events in found.items():
        if documented[field] == "every event":
            assert events == every, field
        else:
            assert events <= set(names(documented[field])) < every, field


def test_every_field_of_the_envelope_is_described(told: dict[str, Any]) -> None:
    documented = [names(row[0])[0] for row in rows(page("events.md"), under="## The envelope")]
    for example in told.values():
        assert list(example) == documented


# messages


def messages() -> dict[str, str]:
    """Every message of the house and its subject, read from the source."""
    found: dict[str, str] = {}
    for path in [*ROOT.glob("libs/weft/**/*.py"), *ROOT.glob("services/weftd/**/*.py")]:
        for kind in ast.walk(ast.parse(path.read_text())):
            if isinstance(kind, ast.ClassDef) and any(ast.unparse(base) == "Message" for base in kind.bases):
                subjects = [
                    ast.literal_eval(line.value)
                    for line in kind.body
                    if isinstance(line, ast.AnnAssign) and line.value and ast.unparse(line.target) == "subject"
                ]
                assert len(subjects) == 1, f"{kind.name} has {len(subjects)} subjects"
                assert kind.name not in found, f"two messages are called {kind.name}"
                found[kind.name] = subjects[0]
    return found


def table_of_messages() -> dict[str, list[str]]:
    """By subject."""
    return {names(row[0])[0]: row[1:] for row in rows(page("messages.md"), under="# Messages between services")}


def test_every_message_is_listed_with_its_subject_and_no_other_is() -> None:
    listed = {names(cells[0])[0]: subject for subject, cells in table_of_messages().items() if subject != "weft.submit"}
    assert listed == messages()
    assert all(all(cells) for cells in table_of_messages().values())


USERS: dict[str, Permissions] = {
    **{user: may for user, may in SERVICE_PERMISSIONS.items() if user != "operator"},  # it hears everything
    **{user.removesuffix("-x"): may for user, may in node_permissions("x").items()},
}


def allows(patterns: tuple[str, ...], subject: str) -> bool:
    """Does one of a user's permissions let every such subject through? A node's user has its own `x` for {node_id}."""
    plain = re.sub(r"\{\w+\}", "x", subject)
    matches = (re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+") for pattern in patterns)
    return any(re.fullmatch(match, plain) for match in matches)


@pytest.mark.parametrize("subject", table_of_messages())
def test_the_sender_and_the_takers_of_a_message_may_be_that(subject: str) -> None:
    _, says, hears, _ = table_of_messages()[subject]
    said = {user for user, may in USERS.items() if allows(may.publish, subject.replace("{service}", user))}
    assert set(says.split(", ")) == said
    assert set(hears.split(", ")) <= {user for user, may in USERS.items() if allows(may.subscribe, subject)}


@pytest.mark.parametrize("service", ["gateway", "scheduler", "scorer", "reallocator", "router"])
def test_a_service_may_hear_only_what_it_listens_to(service: str) -> None:
    heard = [subject for subject, (_, _, hears, _) in table_of_messages().items() if service in hears.split(", ")]
    unused = [
        pattern
        for pattern in SERVICE_PERMISSIONS[service].subscribe
        if not any(allows((pattern,), subject) for subject in heard)
    ]
    assert unused == []


LISTENING = ("Listen", "Answer", "self._bus.subscribe")


def listeners() -> dict[str, set[str]]:
    """Which services hear each message, by what their modules listen to, answer or subscribe to."""
    found: dict[str, set[str]] = {}
    for path in ROOT.glob("services/weftd/**/*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            match call:
                case ast.Call(func=func, args=[ast.Name(id=kind), *_]) if ast.unparse(func) in LISTENING:
                    found.setdefault(kind, set()).add(path.relative_to(ROOT / "services/weftd").parts[0])
                case _:
                    pass
    return found


def test_the_takers_of_a_message_listen_to_it() -> None:
    said = {names(cells[0])[0]: set(cells[2].split(", ")) - {"integrator"} for cells in table_of_messages().values()}
    said.pop("SubmitAnswered")
    assert said == listeners()


@pytest.mark.parametrize("page", ["faults.md", "promises.md", "security.md"])
def test_a_page_that_names_its_tests_names_tests_that_exist(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / page).read_text())
    assert len(named) > 20
    for path, test in named:
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"


def test_every_promise_names_a_test() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", page("promises.md"), flags=re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 14))
    assert all("`tests/" in tests for _, _, tests in rows)


# decisions and measurements

SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]
RECORDS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))


def test_every_decision_record_has_the_same_form() -> None:
    status = r"Status: (proposed|accepted|superseded by \d+|removed)\b"
    form = re.compile(r"# \d+ · [A-Z].+\n\nDate: \d{4}-\d{2}-\d{2}\n\n" + status)
    wrong = {
        path.name: headings
        for path in RECORDS
        if (headings := re.findall(r"^## (.+)$", path.read_text(), flags=re.MULTILINE)) != SECTIONS
        or not form.match(path.read_text())
    }
    assert not wrong


def test_the_index_lists_every_decision_record() -> None:
    listed = re.findall(r"^\| \[(\d+)\]\((\d{4})(-\S+\.md)\) \|", page("decisions/README.md"), flags=re.MULTILINE)
    assert [f"{number}{name}" for _, number, name in listed] == [path.name for path in RECORDS]
    assert all(int(shown) == int(number) for shown, number, _ in listed)


def test_a_page_of_measurements_has_at_most_sixty_lines() -> None:
    assert not [path.name for path in (ROOT / "docs/measurements").glob("*.md") if path.read_text().count("\n") > 60]
