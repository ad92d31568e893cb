"""The secrets of a run: what its node asks for, puts into the run's environment, and does when it gets none."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from libs.bus.memory import MemoryBus
from libs.messages.nodes import EndReason, ReadSecrets, SecretsRead, StartRun
from services.executor.hands import Hands
from services.executor.runs import RuntimeUnavailableError
from services.executor.runtime.fake import FakeHost, FakeRuntime, Program
from services.executor.secrets import MissingSecretsError, with_secrets
from services.executor.thinking.core import Action, Start
from tests.support.runs import order
from tests.support.virtual_time import run_virtually

NAMED = structs.replace(order("job-1"), env={"A": "a"}, secrets={"TOKEN": "t", "KEY": "k"})


async def nothing(_: StartRun) -> None:
    pass


async def filled(*given: SecretsRead) -> tuple[StartRun, list[ReadSecrets]]:
    """The order as it is started, and what the node asked; nobody answers if nothing is given."""
    asked: list[ReadSecrets] = []

    async def read(ask: ReadSecrets) -> SecretsRead:
        asked.append(ask)
        return given[0]

    bus = MemoryBus()
    if given:
        await bus.answer(ReadSecrets, read)
    return await with_secrets(NAMED, bus, node_id="node-1"), asked


def test_the_values_are_in_the_environment_of_that_run() -> None:
    started, [asked] = run_virtually(filled(SecretsRead(values={"TOKEN": "1", "KEY": "2", "PATH": "unasked"})))
    assert started.env == {"A": "a", "TOKEN": "1", "KEY": "2"}
    assert NAMED.env == {"A": "a"}
    assert asked == ReadSecrets(node_id="node-1", job_id="job-1", epoch=NAMED.epoch, rank=NAMED.rank)


def test_without_an_answer_the_start_is_tried_again() -> None:
    for given in ((), (SecretsRead(refused="not here"),)):
        with pytest.raises(RuntimeUnavailableError, match="secrets"):
            run_virtually(filled(*given))


def test_a_secret_that_is_not_stored_is_named() -> None:
    for told in (SecretsRead(values={"TOKEN": "1"}, missing=("k",)), SecretsRead(values={"TOKEN": "1"})):
        with pytest.raises(MissingSecretsError, match=r"no such secret: k$"):
            run_virtually(filled(told))
    with pytest.raises(MissingSecretsError, match=r"no such secrets: k, t$"):
        run_virtually(filled(SecretsRead()))


async def carried_out(answers: Callable[[StartRun], Awaitable[StartRun]]) -> tuple[FakeHost, list[Action]]:
    """One start, until it is done or has failed once."""
    host = FakeHost(lambda _: Program(), now=lambda: 0.0)
    failed: list[Action] = []
    done = asyncio.Event()

    def fail(action: Action) -> None:
        failed.append(action)
        done.set()

    async with asyncio.TaskGroup() as tasks:
        hands = Hands(
            FakeRuntime(host),
            tasks,
            with_secrets=answers,
            bring_files=nothing,
            permits=lambda _: True,
            done=done.set,
            failed=fail,
            not_applied=lambda _, __: None,
            shown=lambda _, __: None,
        )
        hands.take([Start(NAMED)])
        await done.wait()
        hands.drop()
    return host, failed


def test_a_run_whose_secret_is_missing_ends_and_says_why() -> None:
    async def missing(_: StartRun) -> StartRun:
        raise MissingSecretsError("no such secret: k")

    host, failed = run_virtually(carried_out(missing))
    [run] = host.runs()
    assert (run.reason, run.detail, failed) == (EndReason.START_FAILED, "no such secret: k", [])


def test_a_run_whose_secrets_nobody_gives_now_is_not_there() -> None:
    async def away(_: StartRun) -> StartRun:
        raise RuntimeUnavailableError("no gateway gives its secrets")

    host, failed = run_virtually(carried_out(away))
    assert (host.runs(), failed) == ([], [Start(NAMED)])
