"""TLS by configuration: whom we believe, who is refused, and certificates that are renewed while we run."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from tests.support.builders import spec
from tests.support.gateway import Place, RunningGateway, place, until
from tests.support.tls import Authority, Pair, TlsNats, tls_postgres
from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.client import Client, ClientError
from weft.credentials import Credentials, provision
from weft.service import Connections, SettingsError, load
from weft.service.keys import ServerCertificate, nats_keys, pg_keys
from weft.store import StoreUnavailableError
from weft.store.migrate import ROLES, migrate
from weft.store.postgres import PostgresStore
from weftd.gateway import service as gateway_service
from weftd.gateway.settings import GatewaySettings

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return provision(tmp_path_factory.mktemp("tls") / "credentials", nodes=["node-1"])


def connections(**settings: object) -> Connections:
    """As a service has them from its environment."""
    environ = {f"WEFT_{name.upper()}": str(value) for name, value in settings.items()}
    return load(GatewaySettings, prefix="GATEWAY_", environ=environ).connections


# NATS


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory, authority: Authority, credentials: Credentials) -> Iterator[TlsNats]:
    server = TlsNats(
        tmp_path_factory.mktemp("nats"),
        credentials,
        authority.issue("127.0.0.1", into="nats"),
        ca_file=authority.ca_file,
    )
    yield server
    server.kill()


def to_nats(url: str, credentials: Credentials, **settings: object) -> Connections:
    password = credentials.nats_password_file("scheduler")
    return connections(nats_url=url, nats_user="scheduler", nats_password_file=password, **settings)


async def opened(to: Connections, *, seconds: float = SECONDS_MAX) -> None:
    async with NatsBus.connect(to.nats_url, name="test", **nats_keys(to), connect_seconds_max=seconds) as bus:
        assert bus.connected
        assert await bus.ensure_stream()


async def test_a_bus_over_tls_is_a_bus(nats: TlsNats, authority: Authority, credentials: Credentials) -> None:
    await opened(to_nats(nats.url, credentials, nats_ca_file=authority.ca_file))


async def test_a_nats_that_another_authority_vouches_for_is_refused(
    nats: TlsNats, stranger: Authority, credentials: Credentials
) -> None:
    with pytest.raises(BusError, match="certificate verify failed"):
        await opened(to_nats(nats.url, credentials, nats_ca_file=stranger.ca_file), seconds=3)


async def test_a_nats_under_another_name_is_refused(
    nats: TlsNats, authority: Authority, credentials: Credentials
) -> None:
    url = nats.url.replace("127.0.0.1", "localhost")  # its certificate is for the address alone
    with pytest.raises(BusError, match=r"(?i)hostname mismatch"):
        await opened(to_nats(url, credentials, nats_ca_file=authority.ca_file), seconds=3)


async def test_without_an_authority_nothing_is_believed(nats: TlsNats, credentials: Credentials) -> None:
    for url in (nats.url, nats.url.replace("nats://", "tls://")):
        with pytest.raises(BusError, match="certificate verify failed"):
            await opened(to_nats(url, credentials), seconds=3)


async def test_our_password_is_not_told_to_a_server_that_offers_no_tls(
    authority: Authority, credentials: Credentials
) -> None:
    """As one in the middle would be: it answers as NATS does, and asks for no TLS."""
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.15.1","max_payload":1048576,"headers":true,"auth_required":true}\r\n')
        heard.extend(await reader.read(1000))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        for to in (
            to_nats(f"nats://127.0.0.1:{port}", credentials, nats_ca_file=authority.ca_file),
            to_nats(f"tls://127.0.0.1:{port}", credentials),
        ):
            with pytest.raises(BusError, match="offers no TLS"):
                await opened(to, seconds=3)
    assert heard == b""


async def test_a_nats_that_asks_who_we_are_is_shown_our_certificate(
    tmp_path: Path, authority: Authority, stranger: Authority, credentials: Credentials
) -> None:
    pair = authority.issue("127.0.0.1", into="nats-verifying")
    server = TlsNats(tmp_path / "nats", credentials, pair, ca_file=authority.ca_file, verify=True)
    ours, theirs = authority.issue("scheduler", into="ours"), stranger.issue("scheduler", into="theirs")
    try:
        to = to_nats(
            server.url, credentials, nats_ca_file=authority.ca_file, nats_cert_file=ours.cert, nats_key_file=ours.key
        )
        await opened(to)
        for shown in (
            {},
            {"nats_cert_file": theirs.cert, "nats_key_file": theirs.key},
        ):
            with pytest.raises(BusError):
                await opened(to_nats(server.url, credentials, nats_ca_file=authority.ca_file, **shown), seconds=3)
    finally:
        server.kill()


async def test_a_bus_comes_back_to_a_server_whose_authority_was_renewed(
    tmp_path: Path, credentials: Credentials
) -> None:
    """The file of authorities is read anew for each connection."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    believed = tmp_path / "ca.pem"
    believed.write_bytes(old.ca_file.read_bytes())
    pair = old.issue("127.0.0.1", into="server")
    server = TlsNats(tmp_path / "nats", credentials, pair, ca_file=old.ca_file)
    to = to_nats(server.url, credentials, nats_ca_file=believed)
    try:
        async with NatsBus.connect(to.nats_url, name="test", **nats_keys(to)) as bus:
            server.kill()
            renewed = new.issue("127.0.0.1", into="server")
            pair.cert.write_bytes(renewed.cert.read_bytes())
            pair.key.write_bytes(renewed.key.read_bytes())
            believed.write_bytes(b"half a file")  # what was believed last is believed on
            server.start()
            await until(lambda: not bus.connected)
            believed.write_bytes(old.ca_file.read_bytes() + new.ca_file.read_bytes())
            await until(lambda: bus.connected)
    finally:
        server.kill()


# Postgres


@pytest.fixture(scope="module")
async def postgres_port(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, credentials: Credentials
) -> AsyncIterator[int]:
    pair = authority.issue("127.0.0.1", into="postgres")
    owner = credentials.postgres_password("owner")
    async with tls_postgres(tmp_path_factory.mktemp("postgres"), pair, password=owner) as port:
        await migrate(
            f"postgresql://weft_owner@127.0.0.1:{port}/weft",
            user=None,
            password=owner,
            role_passwords={role: credentials.postgres_password(role) for role in ROLES},
            tls=ssl.create_default_context(cafile=authority.ca_file),
        )
        yield port


def to_postgres(
    port: int, credentials: Credentials, *, host: str = "127.0.0.1", query: str = "", **more: object
) -> Connections:
    return connections(
        pg_dsn=f"postgresql://weft_gateway@{host}:{port}/weft{query}",
        pg_password_file=credentials.postgres_password_file("gateway"),
        **more,
    )


async def stored(to: Connections) -> None:
    async with PostgresStore.connect(to.pg_dsn, **pg_keys(to), connections=2) as store:
        assert (await store.submit(spec(), job_id=f"j-{uuid4().hex[:12]}", tenant="alice", key=None, at=1.0)).created


async def test_a_store_over_tls_is_a_store(postgres_port: int, authority: Authority, credentials: Credentials) -> None:
    await stored(to_postgres(postgres_port, credentials, pg_ca_file=authority.ca_file))
    query = f"?sslmode=verify-full&sslrootcert={authority.ca_file}"
    await stored(to_postgres(postgres_port, credentials, query=query))  # a DSN may say it all


async def test_tls_is_demanded_of_each_of_several_hosts_under_its_own_name(
    postgres_port: int, authority: Authority, credentials: Credentials
) -> None:
    """`localhost` is the same server, under a name for which it has no certificate; at port 1 there is none."""
    writes = "?target_session_attrs=read-write"
    trusted = {"pg_ca_file": authority.ca_file, "query": writes}
    for hosts in (f"127.0.0.1:1,127.0.0.1:{postgres_port}", f"localhost:{postgres_port},127.0.0.1:{postgres_port}"):
        host, _, port = hosts.rpartition(":")
        await stored(to_postgres(int(port), credentials, host=host, **trusted))  # type: ignore[arg-type]
    host = f"localhost:1,localhost:{postgres_port},localhost"
    to = to_postgres(postgres_port, credentials, host=host, **trusted)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailableError, match=r"(?i)hostname mismatch"):
        await stored(to)


async def test_a_postgres_that_is_not_who_it_should_be_is_refused(
    postgres_port: int, authority: Authority, stranger: Authority, credentials: Credentials
) -> None:
    def to(**more: object) -> Connections:
        return to_postgres(postgres_port, credentials, **more)  # type: ignore[arg-type]

    for refused, why in (
        (to(pg_ca_file=stranger.ca_file), "certificate verify failed"),
        (to(pg_ca_file=authority.ca_file, host="localhost"), r"(?i)hostname mismatch"),
        (to(query=f"?sslmode=verify-full&sslrootcert={stranger.ca_file}"), "certificate verify failed"),
        (to(query="?sslmode=disable"), "rejects connection"),
    ):
        with pytest.raises(StoreUnavailableError, match=why):
            await stored(refused)


async def test_a_postgres_without_tls_is_refused_by_who_demands_it(servers: Place, authority: Authority) -> None:
    to = connections(
        pg_dsn=servers.stores.server.dsn,
        pg_password_file=servers.credentials.postgres_password_file("owner"),
        pg_ca_file=authority.ca_file,
    )
    with pytest.raises(StoreUnavailableError, match="rejected SSL upgrade"):
        await stored(to)


# the gateway


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture
async def gateway(
    servers: Place, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RunningGateway, Pair]]:
    pair = authority.issue("127.0.0.1", into="gateway")
    monkeypatch.setattr(gateway_service, "RENEW_SECONDS", 0.05)
    running = RunningGateway(servers, certificate=ServerCertificate(str(pair.cert), str(pair.key)))
    await running.start()
    yield running, pair
    await running.stop()


async def test_a_job_is_submitted_over_https(gateway: tuple[RunningGateway, Pair], authority: Authority) -> None:
    running, _ = gateway
    assert running.url.startswith("https://")
    async with running.client(ca_file=str(authority.ca_file)) as client:
        submitted = await client.submit(spec())
        assert (await client.job(submitted.id)).state == "queued"
        stream = client.follow_events(job=submitted.id)
        assert (await anext(stream)).type == "weft.jobs.submitted"
        await stream.aclose()


async def test_a_client_tells_its_token_to_nobody_it_does_not_believe(
    gateway: tuple[RunningGateway, Pair], stranger: Authority, authority: Authority
) -> None:
    running, _ = gateway
    for url, ca_file in (
        (running.url, stranger.ca_file),
        (running.url.replace("127.0.0.1", "localhost"), authority.ca_file),
        (running.url, ""),
    ):
        async with Client(url, "weft_x", ca_file=str(ca_file)) as client:
            with pytest.raises(ClientError, match="certificate is not trusted"):
                await asyncio.wait_for(client.cluster(), SECONDS_MAX)
            with pytest.raises(ClientError, match="certificate is not trusted"):
                await asyncio.wait_for(anext(client.follow_events()), SECONDS_MAX)


async def test_plain_http_gets_nothing_from_a_gateway_with_a_certificate(gateway: tuple[RunningGateway, Pair]) -> None:
    running, _ = gateway
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get(running.url.replace("https://", "http://"), timeout=aiohttp.ClientTimeout(total=SECONDS_MAX))


async def test_a_certificate_that_is_renewed_is_shown_without_a_restart(
    gateway: tuple[RunningGateway, Pair], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    running, pair = gateway
    context = ssl.create_default_context(cafile=authority.ca_file)

    async def serial() -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context)
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.transport.abort()
        return str(shown)

    before = await serial()
    async with running.client(ca_file=str(authority.ca_file)) as client:
        events = client.follow_events()
        first = asyncio.create_task(anext(events))
        pair.cert.write_bytes(authority.issue("127.0.0.1", into="next").cert.read_bytes())
        await until(lambda: "certificate failed" in caplog.text)
        assert await serial() == before  # while the files make no pair the old one is shown
        authority.issue("127.0.0.1", into="gateway")
        async with asyncio.timeout(SECONDS_MAX):
            while await serial() == before:  # noqa: ASYNC110 - it is another's to renew, and has no event
                await asyncio.sleep(0.05)
        submitted = await client.submit(spec())
        assert (await asyncio.wait_for(first, SECONDS_MAX)).subject == submitted.id  # who was connected stays so
        await events.aclose()


# settings


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: nats_keys(connections(nats_ca_file=f / "none")), r"cannot read .*none: No such file"),
        (lambda f: nats_keys(connections(nats_ca_file=f / "junk")), r"junk is not a file of certificates"),
        (lambda f: pg_keys(connections(pg_ca_file=f / "junk")), r"junk is not a file of certificates"),
        (lambda f: nats_keys(connections(nats_cert_file=f / "junk")), r"WEFT_NATS_CERT_FILE and WEFT_NATS_KEY_FILE"),
        (
            lambda f: nats_keys(connections(nats_cert_file=f / "junk", nats_key_file=f / "junk")),
            r"junk are no certificate and its key",
        ),
        (
            lambda f: connections(pg_ca_file=f / "junk", pg_dsn="postgresql://a@b/c?sslmode=disable"),
            r"WEFT_PG_CA_FILE demands TLS, and WEFT_PG_DSN says sslmode=disable",
        ),
        (lambda f: ServerCertificate(str(f / "none"), str(f / "junk")), r"cannot read .*none"),
        (
            lambda f: load(GatewaySettings, prefix="GATEWAY_", environ={"GATEWAY_TLS_CERT_FILE": "x"}),
            "a certificate and its key must be set together",
        ),
    ],
)
def test_wrong_files_are_one_clear_error_of_the_settings(
    make: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    (tmp_path / "junk").write_text("not a certificate")
    with pytest.raises(SettingsError, match=says) as refused:
        make(tmp_path)
    assert len(str(refused.value).splitlines()) == 1
