"""`weft tensorboard`: TensorBoard here, on the event files that jobs wrote, while they run and after their end."""

import argparse
import asyncio
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path

from weft.client import Client, ClientError, Refused
from weft.client.files import local_path
from weft.messages.files import JobFile
from weft.messages.http import JobView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError

LOOK_SECONDS = 5.0
PATIENCE_SECONDS = 3600.0  # a gateway that is away for so long does not end it
JOBS_MAX = 32
FILES_MAX = 1000  # event files of one job
STOP_SECONDS_MAX = 10.0
PORT = 6006
_EVENTS = "tfevents"  # in the name of each file that TensorBoard reads


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "tensorboard",
        help="show the TensorBoard files of jobs",
        description="Copy the TensorBoard files that jobs wrote to $WEFT_RESULTS or $WEFT_CHECKPOINT_DIR, and show them"
        " with the TensorBoard of this machine until Ctrl-C. The files of a job that runs are copied again every 5"
        " seconds if they have changed.",
        epilog="weft tensorboard train\nweft tensorboard train-1 train-2 --port 7007",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB", help="id of the job, or its name (then the newest of that name)"
    )
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="rank whose node has the files (default: 0)")
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"port at 127.0.0.1 (default: {PORT})")
    connection.options(parser)
    parser.set_defaults(func=tensorboard)


async def tensorboard(args: argparse.Namespace) -> int:
    if len(args.jobs) > JOBS_MAX:
        raise CliError(f"{len(args.jobs)} jobs; at most {JOBS_MAX}", status=2)
    program = _program()
    with tempfile.TemporaryDirectory(prefix="weft-tensorboard-") as folder:
        async with connection.connected(args, patience=PATIENCE_SECONDS) as client:
            mirrors = [Mirror(client, await client.job(job), Path(folder), args.rank) for job in args.jobs]
            for mirror in mirrors:
                await mirror.look()
            if all(mirror.ended and not mirror.has for mirror in mirrors):
                names = ", ".join(mirror.name for mirror in mirrors)
                raise CliError(f"{names}: no TensorBoard files below $WEFT_RESULTS or $WEFT_CHECKPOINT_DIR")
            # --load_fast=false: the fast reader keeps files open, and would not see the copies that replace them
            options = ["--logdir", folder, "--host", "127.0.0.1", "--port", str(args.port), "--load_fast=false"]
            process = await asyncio.create_subprocess_exec(*program, *options, "--reload_interval", "5")
            looking = asyncio.create_task(_look_again(mirrors))
            try:
                return await process.wait()
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
                await _end(process)


class Mirror:
    """A copy of the event files of one job, in a folder of its name. `ended`: it writes no more."""

    def __init__(self, client: Client, job: JobView, folder: Path, rank: int) -> None:
        self._client, self._job, self._rank = client, job, rank
        name = job.name if not (folder / job.name).exists() else job.id
        self._folder = folder / name
        self._folder.mkdir()
        self.has: dict[str, JobFile] = {}
        self.ended = False

    @property
    def name(self) -> str:
        return self._job.name

    async def look(self) -> None:
        """Copy new files. The next look asks a node again that does not answer now."""
        job = await self._client.job(self._job.id)
        with suppress(Refused):  # it is on no node yet, or wrote nothing so far
            async with aclosing(self._event_files()) as files:
                async for file in files:
                    if self.has.get(file.path) == file:
                        continue
                    where = local_path(file, "", self._folder)
                    where.parent.mkdir(parents=True, exist_ok=True)
                    await self._client.fetch_file(job.id, file.path, where, rank=self._rank)
                    self.has[file.path] = file
        self.ended = job.state.final

    async def _event_files(self) -> AsyncGenerator[JobFile, None]:
        count = 0
        async with aclosing(self._client.file_pages(self._job.id, rank=self._rank)) as pages:
            async for each in pages:
                for file in each.files:
                    if _EVENTS in Path(file.path).name and count < FILES_MAX:
                        count += 1
                        yield file


async def _look_again(mirrors: list[Mirror]) -> None:
    while not all(mirror.ended for mirror in mirrors):
        await asyncio.sleep(LOOK_SECONDS)
        for mirror in mirrors:
            try:
                if not mirror.ended:
                    await mirror.look()
            except ClientError as error:
                page.remark(f"weft: {mirror.name}: {error}")
                return


def _program() -> list[str]:
    """TensorBoard of this environment, else of the PATH. Raises CliError."""
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    if found := shutil.which("tensorboard"):
        return [found]
    raise CliError("there is no tensorboard here: pip install tensorboard")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
