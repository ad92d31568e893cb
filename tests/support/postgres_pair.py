"""A real Postgres and its standby, set up by the commands of docs/failover.md, and what happens to them."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.places import HERE, Place
from weft.credentials import Credentials
from weft.servers import postgres
from weft.servers.account import make_folder, reachable_folder, readable_copy, server_account
from weft.servers.errors import ServerFailedError
from weft.servers.find import find_postgres
from weft.servers.postgres import DATABASE, OWNER, PostgresSetup
from weft.servers.process import wait_until, working_in
from weftd.cli.local.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "failover.md"
BLOCK = re.compile(r"```sh\n# (?P<title>[^\n]+)\n(?P<commands>.*?)```", re.DOTALL)
COMMAND_SECONDS_MAX = 120
GONE_SECONDS_MAX = 30.0
STANDBY = "standby"
STANDBY_PASSWORD = "a-password-of-the-standby"
# What docs/failover.md has beside its commands: the other hosts of the network may come in.
HOST_ACCESS = "host all all samenet scram-sha-256\nhost replication weft_standby samenet scram-sha-256\n"


def commands(title: str) -> str:
    """The commands of that block of the page."""
    found = {match["title"]: match["commands"] for match in BLOCK.finditer(PAGE.read_text())}
    return found[title]


class PostgresPair:
    """Two servers, 0 and 1. `primary` is the number of the one that was made or promoted last.

    `link_port`: where a standby reaches the primary from its next copy or rejoining on, if not at its own port.
    """

    def __init__(self, home: Path, credentials: Credentials, *, places: Sequence[Place] = (HERE, HERE)) -> None:
        self.places = places
        self.primary = 0
        self.link_port: int | None = None
        self.ports = [free_port(), free_port()]
        self._credentials = credentials
        account = server_account(home / "postgres-0")
        program = find_postgres()
        programs = readable_copy(program.path, program.version, account)
        root = reachable_folder(home, account)
        self.setups = [
            PostgresSetup(
                programs=programs,
                folder=root / f"pg-{number}",
                log=home / f"postgres-{number}.log",
                account=account,
                listens="127.0.0.1" if place is HERE else f"127.0.0.1,{place.address}",
            )
            for number, place in enumerate(places)
        ]

    @property
    def dsn(self) -> str:
        """The owner's, with both hosts."""
        hosts = ",".join(f"{place.address}:{port}" for place, port in zip(self.places, self.ports, strict=True))
        return f"postgresql://{OWNER}@{hosts}/{DATABASE}?target_session_attrs=read-write"

    def dsn_of(self, number: int) -> str:
        return f"postgresql://{OWNER}@{self.places[number].address}:{self.ports[number]}/{DATABASE}"

    @property
    def standby(self) -> int:
        return 1 - self.primary

    async def start(self, *, synchronous: bool) -> None:
        """A primary with its standby, which has all that the primary has."""
        first = self.setups[0]
        make_folder(first.folder.parent, 0o711, first.account)
        await asyncio.to_thread(postgres.initialise, first, self._credentials.postgres_password("owner"))
        if self.places[0] is not HERE:
            with (first.data / "pg_hba.conf").open("a") as access:
                access.write(HOST_ACCESS)
        await self.run(0)
        await self.do("make the role of the standby")
        await self.follow(synchronous=synchronous)

    async def follow(self, *, synchronous: bool) -> None:
        """Make the other server a standby of the primary, from nothing."""
        make_folder(self.setups[self.standby].folder, 0o700, self.setups[self.standby].account)
        await self.do("copy the primary")
        await self.run(self.standby)
        await self.until_following()
        if synchronous:
            await self.do("have commits wait for the standby")

    async def stop(self) -> None:
        """Also the data go."""
        for number, setup in enumerate(self.setups):
            await self.send(number, signal.SIGCONT)
            await asyncio.to_thread(postgres.stop, setup.folder)
            await asyncio.to_thread(shutil.rmtree, setup.folder, ignore_errors=True)

    async def run(self, number: int) -> None:
        setup, port = self.setups[number], self.ports[number]
        await asyncio.to_thread(self.places[number].there, lambda: postgres.start(setup, port=port, remembered_port=0))

    async def kill(self, number: int) -> None:
        """Power off: nothing is left of it, and nothing was said."""
        setup = self.setups[number]
        await self.send(number, signal.SIGKILL)

        def gone() -> bool:
            return postgres.running(setup.folder) is None and not working_in(setup.data)

        if not await asyncio.to_thread(wait_until, gone, GONE_SECONDS_MAX):
            raise TimeoutError(f"Postgres {number} did not end")

    async def send(self, number: int, how: signal.Signals) -> None:
        for pid in working_in(self.setups[number].data):
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue

    async def promote(self) -> None:
        """Make the standby the primary; the other one is not touched."""
        await self.do("promote the standby")
        self.primary = self.standby

    async def rejoin(self) -> None:
        """Make the old primary, which does not run, a standby of the new one."""
        # Where no process reaps the killed server its pid is taken for a living one; after a power cut there is none.
        (self.setups[self.standby].data / "postmaster.pid").unlink(missing_ok=True)
        await self.do("keep the old primary from taking writes")
        await self.do("make the old primary a standby")
        await self.run(self.standby)
        await self.until_following()
        await self.do("drop the slots of before")

    async def until_following(self) -> None:
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            while f"{STANDBY}|streaming" not in await self.do("look at the standby"):  # noqa: ASYNC110 - it is a server
                await asyncio.sleep(0.1)

    async def do(self, title: str) -> str:
        """Run that block of the page as the account of Postgres. Raises ServerFailedError with what it printed."""
        return await asyncio.to_thread(self._do, title)

    def _do(self, title: str) -> str:
        setup = self.setups[0]
        passwords = setup.folder.parent / "pgpass"
        owner = self._credentials.postgres_password("owner")
        passwords.write_text(f"*:*:*:{OWNER}:{owner}\n*:*:*:weft_standby:{STANDBY_PASSWORD}\n")
        passwords.chmod(0o600)
        if setup.account is not None:
            os.chown(passwords, setup.account.uid, setup.account.gid)
        at = self.standby if title == "drop the slots of before" else self.primary
        follows = title in ("copy the primary", "make the old primary a standby")
        environment = {
            "PATH": f"{setup.programs}:{os.environ['PATH']}",
            "LC_ALL": "C",
            "PGHOST": self.places[at].address,
            "PGPORT": str(self.link_port if follows and self.link_port else self.ports[self.primary]),
            "PGUSER": OWNER,
            "PGDATABASE": DATABASE,
            "PGPASSFILE": str(passwords),
            "STANDBY_NAME": STANDBY,
            "STANDBY_DATA": str(self.setups[self.standby].data),
            "OLD_DATA": str(self.setups[self.standby].data),
            "OLD_PORT": str(self.ports[self.standby]),
        }
        done = subprocess.run(
            ["sh", "-euc", commands(title)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
            cwd="/",
            env=environment,
            start_new_session=True,
            **(setup.account.as_user() if setup.account else {}),
        )
        if done.returncode:
            raise ServerFailedError(f"{title}: {done.stdout}")
        return done.stdout
