"""The secrets of a run: what its node asks for, puts into the run's environment, and does when it gets none."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.runtime import FakeHost, FakeRuntime, Program
from tests.support.hands import made_hands
from tests.support.runs import order, until
from tests.support.virtual_time import run_virtually
from weft.messages.nodes import EndReason, ReadSecrets, SecretsRead, StartRun
from weftd.executor.files.secrets import MissingSecretsError, SecretFiles, folder_in_memory, with_secrets
from weftd.executor.runs import RunKey, RuntimeUnavailableError
from weftd.executor.thinking.core import Action, Start

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
    files = SecretFiles(Path("/nowhere"))
    return await with_secrets(NAMED, bus, node_id="node-1", files=files), asked


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
    with pytest.raises(MissingSecretsError, match=r"no such secrets: k and t$"):
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
        actions = made_hands(FakeRuntime(host), tasks, with_secrets=answers, done=done.set, failed=fail)
        actions.take([Start(NAMED)])
        await done.wait()
        actions.drop()
    return host, failed


def test_a_run_whose_secret_is_missing_ends_and_says_why() -> None:
    async def missing(_: StartRun) -> StartRun:
        raise MissingSecretsError("no such secret: k")

    host, failed = run_virtually(carried_out(missing))
    [run] = host.runs()
    assert (run.reason, run.detail, failed) == (EndReason.START_FAILED, "no such secret: k", [])


def test_a_run_whose_secrets_nobody_gives_now_is_not_there() -> None:
    async def away(_: StartRun) -> StartRun:
        raise RuntimeUnavailableError("no gateway sends its secrets")

    host, failed = run_virtually(carried_out(away))
    assert (host.runs(), failed) == ([], [Start(NAMED)])


# as files


AS_FILES = structs.replace(order("job-1"), secrets={"KEY": "k"}, secret_files={"TOKEN_FILE": "t"})
KEY = RunKey.of(AS_FILES)


async def started(files: SecretFiles, *, values: dict[str, str] | None = None) -> StartRun:
    async def read(_: ReadSecrets) -> SecretsRead:
        return SecretsRead(values={"KEY": "1", "TOKEN_FILE": "two\n"} if values is None else values)

    bus = MemoryBus()
    await bus.answer(ReadSecrets, read)
    return await with_secrets(AS_FILES, bus, node_id="node-1", files=files)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


async def test_a_file_has_the_value_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path / "secrets")
    asked = await started(files)
    assert asked.env == {"KEY": "1"}, "the value of a file is in no variable"
    file = tmp_path / "secrets" / str(KEY) / "TOKEN_FILE"
    assert file.read_text() == "two\n"
    assert (mode(file), mode(file.parent), mode(tmp_path / "secrets")) == (0o400, 0o700, 0o700)
    files.close()


async def test_a_start_that_is_tried_again_has_the_new_value_and_what_lies_there_leads_nowhere(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path / "secrets")
    (tmp_path / "victim").write_text("mine")
    folder = tmp_path / "secrets" / str(KEY)
    folder.mkdir(parents=True)
    (folder / "TOKEN_FILE").symlink_to(tmp_path / "victim")
    await started(files)
    assert (folder / "TOKEN_FILE").read_text() == "two\n"
    await started(files, values={"KEY": "1", "TOKEN_FILE": "three"})
    assert (folder / "TOKEN_FILE").read_text() == "three"
    assert (tmp_path / "victim").read_text() == "mine"
    files.close()


async def test_the_files_go_when_no_run_has_them(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path / "secrets")
    await started(files)
    files.keep({KEY})
    folder = tmp_path / "secrets" / str(KEY)
    assert folder.is_dir()
    files.close()
    assert folder.is_dir(), "its run goes on without this executor"
    kept = os.open(folder / "TOKEN_FILE", os.O_RDONLY)
    files.keep(set())
    assert not folder.exists()
    assert os.fstat(kept).st_nlink == 0, "the value is gone at once, not when its folder is"
    os.close(kept)
    files.keep(set())
    again = SecretFiles(tmp_path / "secrets")
    await until(lambda: os.listdir(tmp_path / "secrets") in ([], ["discarded"]))
    await until(
        lambda: not (tmp_path / "secrets" / "discarded").exists() or not os.listdir(folder.parent / "discarded")
    )
    again.close()
    assert not (tmp_path / "secrets").exists()


async def test_a_containers_file_is_its_users_or_open_in_a_folder_that_others_cannot_reach(tmp_path: Path) -> None:
    for owner, expected in (("", 0o444), ("weft", 0o444), ("1000:1000", 0o400), ("1000", 0o400)):
        files = SecretFiles(tmp_path / f"of{owner}", contained=True, owner=owner)
        await started(files)
        file = tmp_path / f"of{owner}" / str(KEY) / "TOKEN_FILE"
        if os.geteuid() == 0 or not owner:
            assert mode(file) == expected, owner
        assert (mode(file.parent), mode(file.parent.parent)) == (0o755, 0o700)
        files.close()


async def test_a_folder_that_cannot_be_written_has_the_start_tried_again(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("a file where a folder should be")
    with pytest.raises(RuntimeUnavailableError, match="cannot be written"):
        await started(SecretFiles(tmp_path / "secrets"))


def test_a_folder_in_memory_is_the_executors_own_or_none(tmp_path: Path) -> None:
    folder = folder_in_memory(tmp_path / "home")
    if folder is None:
        pytest.skip("this machine has no shared memory")
    try:
        assert mode(folder) == 0o700
        assert folder_in_memory(tmp_path / "home") == folder
        folder.chmod(0o755)
        assert folder_in_memory(tmp_path / "home") is None, "others may look into it"
        folder.rmdir()
        folder.symlink_to(tmp_path)
        assert folder_in_memory(tmp_path / "home") is None, "it leads elsewhere"
        folder.unlink()
    finally:
        if folder.is_dir() and not folder.is_symlink():
            folder.rmdir()
