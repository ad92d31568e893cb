"""What holds for every runtime: the fake, processes with and without cgroups, and containers."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import closing
from pathlib import Path

import docker
import pytest
from msgspec.structs import replace

from tests.support.odd_folders import make_deep, swept
from tests.support.rig import BEHAVIOURS, MEBIBYTE, Rig
from tests.support.runs import find, in_state, killed_for_memory, logged, processes_of, until, whole_log
from weft.emulation.slowdowns import slow_down
from weft.messages.nodes import EndReason, RunState
from weftd.executor.files.home import Home
from weftd.executor.files.secrets import SecretFiles
from weftd.executor.runs import Limits, RunKey, Runtime


async def test_a_run_starts_ends_and_says_what_it_wrote(rig: Rig) -> None:
    asked = rig.order("ends well")
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, key, RunState.EXITED)
    assert (run.exit_code, run.reason) == (0, EndReason.EXIT)
    assert sorted((await whole_log(rig.runtime, key)).split()) == [b"err", b"out"]


async def test_an_exit_status_is_told_as_it_was(rig: Rig) -> None:
    asked = rig.order("fails with 3")
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (run.exit_code, run.reason) == (3, EndReason.EXIT)
    assert run.started_at is not None
    assert run.ended_at is not None
    assert run.ended_at >= run.started_at


async def test_a_log_is_whole_after_the_end_and_after_removal(rig: Rig) -> None:
    asked = rig.order("writes much")
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await in_state(rig.runtime, key, RunState.EXITED)
    expected = BEHAVIOURS["writes much"][1].output
    assert await whole_log(rig.runtime, key) == expected
    await rig.runtime.remove(key)
    assert await whole_log(rig.runtime, key) == expected


async def test_a_log_is_whole_though_the_executor_restarts_while_it_is_written(rig: Rig) -> None:
    rig.needs("commands")
    lines, width = 400, 20_000  # longer than the pieces in which an engine keeps a line
    script = f"""
    i=0
    while [ $i -lt {lines} ]; do
      printf '%0{width}d\\n' $i
      i=$((i+1))
      [ $((i % 20)) -gt 0 ] || sleep 0.1
    done
    """
    asked = rig.shell(("sh", "-c", script))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    runtime = rig.runtime
    for part in (b"10", b"100", b"200"):
        await until_logged(runtime, key, int(part) * (width + 1))
        runtime = await rig.reopen()
    await in_state(runtime, key, RunState.EXITED)
    expected = b"".join(b"%0*d\n" % (width, number) for number in range(lines))
    assert await whole_log(runtime, key) == expected


async def until_logged(runtime: Runtime, key: RunKey, size: int) -> None:
    async with asyncio.timeout(30):
        while not (await runtime.read_log(key, offset=size - 1, limit=1)).data:  # noqa: ASYNC110 - as a reader would
            await asyncio.sleep(0.02)


async def test_a_second_start_adopts(rig: Rig) -> None:
    asked = rig.order("stays")
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    assert [run.key for run in await rig.runtime.runs()] == [key]
    await rig.runtime.signal(key, kill=True)
    await in_state(rig.runtime, key, RunState.EXITED)
    assert await whole_log(rig.runtime, key) == b"up\n"


async def test_the_next_executor_adopts_what_runs(rig: Rig) -> None:
    asked = rig.order("finishes on SIGTERM", grace=7.0)
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    runtime = await rig.reopen()
    run = await in_state(runtime, key, RunState.RUNNING)
    assert run.grace == 7.0
    await runtime.start(asked)
    await runtime.signal(key, kill=False)
    run = await in_state(runtime, key, RunState.EXITED)
    assert (run.exit_code, run.reason) == (0, EndReason.EXIT)
    assert (await whole_log(runtime, key)).startswith(b"up\n")


async def test_the_next_executor_learns_of_an_end_it_did_not_see(rig: Rig) -> None:
    asked = rig.order("fails with 3")
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await in_state(rig.runtime, key, RunState.EXITED)
    runtime = await rig.reopen()
    run = await in_state(runtime, key, RunState.EXITED)
    assert (run.exit_code, run.reason) == (3, EndReason.EXIT)
    assert await whole_log(runtime, key) == b"so far\n"


async def test_a_run_that_ignores_sigterm_is_killed(rig: Rig) -> None:
    asked = rig.order("ignores SIGTERM")
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    await rig.runtime.signal(key, kill=False)
    run = await find(rig.runtime, key)
    assert run is not None
    assert run.live
    await rig.runtime.signal(key, kill=True)
    run = await in_state(rig.runtime, key, RunState.EXITED)
    assert run.exit_code == 137


async def test_a_run_is_removed_only_after_its_end(rig: Rig) -> None:
    asked = rig.order("stays")
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up")
    await rig.runtime.remove(key)
    assert await find(rig.runtime, key) is not None
    await rig.runtime.signal(key, kill=True)
    await in_state(rig.runtime, key, RunState.EXITED)
    await rig.runtime.remove(key)
    assert await find(rig.runtime, key) is None
    assert (await rig.runtime.read_log(key, offset=0, limit=10)).data == b"up\n"


async def test_nothing_starts_that_is_no_longer_permitted(rig: Rig) -> None:
    asked = rig.order("stays")
    await rig.runtime.start(asked, permitted=lambda: False)
    assert await find(rig.runtime, RunKey.of(asked)) is None


async def test_a_log_nobody_wrote_is_missing(rig: Rig) -> None:
    assert (await rig.runtime.read_log(RunKey("job-never", 1, 0), offset=0, limit=10)).missing


async def test_signals_to_a_run_that_is_not_there_are_left_alone(rig: Rig) -> None:
    key = RunKey("job-never", 1, 0)
    await rig.runtime.signal(key, kill=False)
    await rig.runtime.signal(key, kill=True)
    await rig.runtime.remove(key)
    assert await rig.runtime.resize(key, Limits(cpus=1.0)) == "it does not run"


async def test_changed_returns_when_a_run_ends(rig: Rig) -> None:
    asked = rig.order("ends well")
    await rig.runtime.start(asked)
    async with asyncio.timeout(30):
        while (run := await find(rig.runtime, RunKey.of(asked))) is None or run.live:
            await rig.runtime.changed()


async def test_killing_takes_grandchildren_with_it(rig: Rig, tmp_path: Path) -> None:
    rig.needs("commands")
    script = "setsid sh -c 'echo deep; exec sleep 345' & (sleep 345 & sleep 345); wait"
    asked = rig.shell(("sh", "-c", script))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"deep")
    await until(lambda: len(processes_of(asked)) >= 3)
    await rig.runtime.signal(key, kill=True)
    await in_state(rig.runtime, key, RunState.EXITED)
    await until(lambda: not processes_of(asked))


async def test_what_a_run_leaves_behind_ends_with_it(rig: Rig) -> None:
    rig.needs("commands")
    asked = rig.shell(("sh", "-c", "sleep 345 & setsid sleep 345 & echo gone"))
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert run.exit_code == 0
    await until(lambda: not processes_of(asked))


async def test_a_run_finds_the_contract_in_its_environment(rig: Rig) -> None:
    rig.needs("commands")
    os.environ["WEFT_NATS_PASSWORD"] = "of the executor"
    asked = rig.shell(
        ("env",),
        rank=1,
        world_size=2,
        epoch=4,
        gpus=(1,),
        env={"MINE": "kept", "NODE_RANK": "mine"},
        master_port=23456,
        peers={"worker": ("127.0.0.1", "127.0.0.1")},
    )
    try:
        await rig.runtime.start(replace(asked, rank=0, gpus=(0,)))  # who makes what the others meet by
        await rig.runtime.start(asked)
    finally:
        del os.environ["WEFT_NATS_PASSWORD"]
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    log = (await whole_log(rig.runtime, RunKey.of(asked))).decode()
    env = dict(line.split("=", 1) for line in log.splitlines() if "=" in line)
    assert env["WEFT_JOB_ID"] == asked.job_id
    assert (env["WEFT_EPOCH"], env["RANK"], env["WORLD_SIZE"], env["MASTER_PORT"]) == ("4", "1", "2", "23456")
    assert (env["MINE"], env["NODE_RANK"], env["GROUP_RANK"]) == ("kept", "mine", "1")
    assert (env["CUDA_VISIBLE_DEVICES"], env["WEFT_GPUS_EMULATED"]) == ("", "1")
    assert "WEFT_NATS_PASSWORD" not in env


async def test_a_value_of_the_image_replaces_a_default_of_weft(rig: Rig) -> None:
    if not rig.docker:
        pytest.skip("processes have no image")
    name = f"weft-test-defaults:{rig.node.node_id}"
    asked = rig.shell(("env",), cpus=2.0)
    text = f"FROM {asked.image}\nENV OMP_NUM_THREADS=7 PYTHONUNBUFFERED= WEFT_RANK=9\n"
    with closing(docker.from_env()) as engine:
        engine.images.build(fileobj=io.BytesIO(text.encode()), tag=name, network_mode="none", rm=True)
        try:
            for image, threads in ((name, "7"), (asked.image, "2")):
                run = replace(asked, image=image, rank=int(threads))
                await rig.runtime.start(run)
                await in_state(rig.runtime, RunKey.of(run), RunState.EXITED)
                lines = (await whole_log(rig.runtime, RunKey.of(run))).decode().splitlines()
                assert {f"OMP_NUM_THREADS={threads}", f"WEFT_RANK={threads}"} <= set(lines)
                assert ("MKL_NUM_THREADS=2" in lines) == (image == asked.image)
                await rig.runtime.remove(RunKey.of(run))
        finally:
            engine.images.remove(name, force=True)


@pytest.mark.parametrize("workdir", ["/tmp", None])
async def test_a_run_starts_in_its_workdir_or_its_checkpoints_or_its_images_folder(
    rig: Rig, workdir: str | None
) -> None:
    rig.needs("commands")
    asked = rig.shell(("pwd",), workdir=workdir)
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    own = "/" if rig.docker else f"{rig.node.checkpoints}/{asked.job_id}"
    assert (await whole_log(rig.runtime, RunKey.of(asked))).decode() == f"{workdir or own}\n"


async def test_standard_input_is_empty(rig: Rig) -> None:
    rig.needs("commands")
    asked = rig.shell(("sh", "-c", 'read line; echo "status $? line $line"'))
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (await whole_log(rig.runtime, RunKey.of(asked))).decode() == "status 1 line \n"


async def test_a_run_on_an_emulated_gpu_reads_its_slowdown_anew_each_time(rig: Rig, tmp_path: Path) -> None:
    rig.needs("commands")
    folder = Home(tmp_path / "home").emulated
    slow_down(folder, 1, 1.33)
    script = 'cat "$WEFT_EMULATED_SLOWDOWNS/1" && touch "$WEFT_CHECKPOINT_DIR/read" && '
    script += 'while [ "$(cat "$WEFT_EMULATED_SLOWDOWNS/1")" != 1 ]; do sleep 0.05; done; echo recovered'
    asked = rig.shell(("sh", "-c", script), gpus=(1,))
    await rig.runtime.start(asked)
    read = Path(rig.node.checkpoints) / asked.job_id / "read"
    await until(read.exists)
    slow_down(folder, 1, 1.0)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (await whole_log(rig.runtime, RunKey.of(asked))).decode().splitlines() == ["1.33", "recovered"]


async def test_a_run_reads_its_secrets_from_files_and_another_run_has_none_of_them(rig: Rig) -> None:
    rig.needs("commands")
    script = 'cat "$TOKEN_FILE"; echo x 2>&- >"$TOKEN_FILE.more" || echo unwritten; ls "$(dirname "$TOKEN_FILE")"'
    asked = rig.shell(("sh", "-c", script), secret_files={"TOKEN_FILE": "t"})
    files = SecretFiles(rig.home.secret_files, contained=rig.docker)
    files.write(RunKey.of(asked), {"TOKEN_FILE": "a value\n"})
    other = rig.shell(("sh", "-c", "ls /weft/secrets; env | grep -c TOKEN_FILE"))
    for each in (asked, other):
        await rig.runtime.start(each)
        await in_state(rig.runtime, RunKey.of(each), RunState.EXITED)
    said = (await whole_log(rig.runtime, RunKey.of(asked))).decode().splitlines()
    assert said[0] == "a value"
    assert said[-1 if rig.docker else 1].startswith("TOKEN_FILE")
    assert ("unwritten" in said) == rig.docker, "a plain process is the owner of its folder"
    told = (await whole_log(rig.runtime, RunKey.of(other))).decode().splitlines()
    assert "0" in told, "an engine does not keep the order of two streams"
    files.close()


async def test_a_run_can_write_its_progress_and_its_checkpoints(rig: Rig, tmp_path: Path) -> None:
    rig.needs("commands")
    script = 'echo step=5 >>"$WEFT_PROGRESS" && echo weights >"$WEFT_CHECKPOINT_DIR/last" && sleep 345'
    asked = rig.shell(("sh", "-c", script))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    told = Path(Home(tmp_path / "home").progress(key))
    await until(lambda: told.exists() and told.read_text() == "step=5\n")
    saved = Path(rig.node.checkpoints) / asked.job_id / "last"
    await until(lambda: saved.exists() and saved.read_text() == "weights\n")


async def test_a_run_writes_its_results_where_its_node_keeps_them(rig: Rig) -> None:
    rig.needs("commands")
    asked = rig.shell(("sh", "-c", 'echo 0.5 >"$WEFT_RESULTS/score"'))
    await rig.runtime.start(asked)
    assert (await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)).exit_code == 0
    await rig.runtime.remove(RunKey.of(asked))
    assert (Path(rig.node.results) / asked.job_id / "score").read_text() == "0.5\n"


async def test_no_other_user_of_the_host_reads_what_a_job_saved(rig: Rig) -> None:
    rig.needs("commands")
    if os.geteuid() != 0:
        pytest.skip("only root can look as another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        rig.node.checkpoints = f"{folder}/checkpoints"
        os.mkdir(rig.node.checkpoints, 0o755)  # as it was made before
        asked = rig.shell(("sh", "-c", 'umask 0; echo weights >"$WEFT_CHECKPOINT_DIR/last"'))
        await rig.runtime.start(asked)
        assert (await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)).exit_code == 0
        saved = f"{rig.node.checkpoints}/{asked.job_id}"
        tries = [["ls", folder], ["ls", saved], ["cat", f"{saved}/last"], ["touch", f"{saved}/new"]]
        seen = [await asyncio.to_thread(subprocess.run, words, capture_output=True, user=65534) for words in tries]
        assert [found.returncode == 0 for found in seen] == [True, False, False, False]
        assert await asyncio.to_thread(Path(saved, "last").read_text) == "weights\n"


async def test_whatever_a_run_made_in_its_own_folder_goes_with_it(rig: Rig, tmp_path: Path) -> None:
    rig.needs("commands")
    script = 'cd "$(dirname "$WEFT_PROGRESS")" && mkdir -p deep/er && touch deep/er/file && ln -s / root'
    asked = rig.shell(("sh", "-c", script))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    assert (await in_state(rig.runtime, key, RunState.EXITED)).exit_code == 0
    await rig.runtime.remove(key)
    assert await find(rig.runtime, key) is None
    assert not os.path.exists(Home(tmp_path / "home").run(key))  # noqa: ASYNC240 - one look


async def test_a_run_folder_of_any_depth_is_removed_by_this_executor_and_by_the_next(rig: Rig, tmp_path: Path) -> None:
    rig.needs("commands")
    home = Home(tmp_path / "home")
    with swept(home.runs, home.discarded):
        asked = rig.shell(("sh", "-c", 'cd "$(dirname "$WEFT_PROGRESS")"; mkdir run.json.new exit.d; echo up'))
        key = RunKey.of(asked)
        await rig.runtime.start(asked)
        await in_state(rig.runtime, key, RunState.EXITED)
        make_deep(Path(home.run(key)) / "deep", 1500)
        make_deep(Path(home.run(RunKey("job-before", 1, 0))), 1500)
        await rig.runtime.remove(key)
        assert not os.path.exists(home.run(key))  # noqa: ASYNC240 - one look
        rig.runtime = await rig.reopen()
        assert await find(rig.runtime, key) is None
        await until(lambda: not os.listdir(home.runs) and not os.listdir(home.discarded))


async def test_memory_beyond_the_limit_ends_the_run_as_oom(rig: Rig) -> None:
    rig.needs("oom", "memory")

    async def begin() -> RunKey:
        asked = rig.order("uses too much memory", memory=48 * MEBIBYTE)
        await rig.runtime.start(asked)
        return RunKey.of(asked)

    key = await killed_for_memory(rig.runtime, begin, engine=rig.docker)
    assert await whole_log(rig.runtime, key) == b"up\n" or rig.name not in ("fake", "simulated")


async def test_a_read_only_root_is_not_written_to(rig: Rig) -> None:
    rig.needs("commands", "read_only")
    asked = rig.shell(("sh", "-c", "touch /new || echo kept; touch /tmp/new && echo scratch"), read_only=True)
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    log = await whole_log(rig.runtime, RunKey.of(asked))
    assert b"kept" in log
    assert b"scratch" in log


async def test_a_gang_in_containers_meets_by_name(rig: Rig) -> None:
    if rig.name != "docker":
        pytest.skip("processes share their host's network")
    peers = {"worker": (rig.node.address, rig.node.address)}
    gang = {"job_id": f"job-{uuid.uuid4().hex[:8]}", "world_size": 2, "master_port": 2345, "peers": peers}
    first = rig.shell(("sh", "-c", 'echo met | nc -l -p "$MASTER_PORT"'), **gang)
    second = rig.shell(
        (
            "sh",
            "-c",
            'for i in 1 2 3 4 5 6 7 8 9; do nc "$MASTER_ADDR" "$MASTER_PORT" </dev/null && exit; sleep 0.3; done',
        ),
        rank=1,
        **gang,
    )
    await rig.runtime.start(first)
    await rig.runtime.start(second)
    await in_state(rig.runtime, RunKey.of(second), RunState.EXITED)
    assert await whole_log(rig.runtime, RunKey.of(second)) == b"met\n"


async def test_a_container_has_no_privileges(rig: Rig) -> None:
    if rig.name != "docker":
        pytest.skip("processes have those of the executor")
    asked = rig.shell(("cat", "/proc/self/status"))
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    status = (await whole_log(rig.runtime, RunKey.of(asked))).decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (int(fields["CapEff"], 16), int(fields["CapBnd"], 16), fields["NoNewPrivs"]) == (0, 0, "1")


async def test_an_executor_killed_at_any_point_of_a_start_neither_loses_nor_doubles_the_run(
    rig: Rig, tmp_path: Path
) -> None:
    """A helper starts runs as fast as it can and is killed in the middle; then we adopt, and start all of them."""
    if not rig.name.startswith("process"):
        pytest.skip("the engine keeps containers by name")
    count = tmp_path / "count"
    count.mkdir()
    helper = Path(__file__).parent.parent / "support" / "start_many.py"
    for attempt in range(6):
        await rig.runtime.close()
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(helper), str(tmp_path), rig.node.node_id, rig.name, str(attempt)
        )
        await until((count / f"job-{attempt}-3").exists, every=0.001)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        rig.runtime = await rig.reopen()
        script = f'mkdir "{count}/$WEFT_JOB_ID" || echo again >>"{count}/twice"'
        for number in range(60):
            asked = rig.shell(("sh", "-c", script), job_id=f"job-{attempt}-{number}")
            await rig.runtime.start(asked)
        for number in range(60):
            key = RunKey(f"job-{attempt}-{number}", 1, 0)
            run = await in_state(rig.runtime, key, RunState.EXITED)
            assert (run.exit_code, run.reason) == (0, EndReason.EXIT)
            assert (count / key.job_id).exists()
            await rig.runtime.remove(key)
    assert not (count / "twice").exists()


async def test_a_run_works_in_the_files_that_went_along(rig: Rig) -> None:
    rig.needs("commands")
    asked = replace(rig.shell(("sh", "-c", "cat here && echo more >there && pwd")), context="0" * 64)
    files = Path(rig.home.context(RunKey.of(asked)))
    os.makedirs(files)
    os.chmod(files, 0o777)
    (files / "here").write_text("text\n")
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    log = (await whole_log(rig.runtime, RunKey.of(asked))).decode()
    assert log == f"text\n{'/workspace' if rig.docker else files}\n"
    assert (files / "there").read_text() == "more\n"


@pytest.mark.parametrize(("entrypoint", "log"), [(("echo", "from"), b"from echo words\n"), ((), b"words\n")])
async def test_an_entrypoint_comes_before_the_command(rig: Rig, entrypoint: tuple[str, ...], log: bytes) -> None:
    rig.needs("commands")
    asked = rig.shell(("echo", "words"), entrypoint=entrypoint)
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert await whole_log(rig.runtime, RunKey.of(asked)) == log
