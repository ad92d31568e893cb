"""Settings come from the environment, and what is wrong with them is named."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from weft.service import Connections, SettingsError, load
from weft.service.config import read_secret


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    log_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 7
    logs: str = ""

    def __post_init__(self) -> None:
        if self.logs == "none":
            raise ValueError("logs is not none")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    connections: Connections
    limits: Limits = Limits()
    pool: str
    tick_seconds: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    admin_port: int | None = None
    emulated: bool = False
    home: Path = Path("here")
    gpus: tuple[int, ...] = ()
    weights: dict[str, float] = {}

    def __post_init__(self) -> None:
        if self.admin_port == 1 and self.emulated:
            raise ValueError("port 1 is not for the emulated")


def load_from(**environ: str) -> Config:
    return load(Config, prefix="SCHEDULER_", environ=environ)


def faults_of(**environ: str) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        load_from(**environ)
    return str(refused.value).splitlines()


def test_own_settings_come_from_the_prefix_and_shared_ones_from_weft() -> None:
    config = load_from(
        SCHEDULER_POOL="a",
        SCHEDULER_TICK_SECONDS="0.25",
        SCHEDULER_ADMIN_PORT="9100",
        SCHEDULER_EMULATED="1",
        SCHEDULER_HOME="/srv/weft",
        SCHEDULER_GPUS="0, 2,3",
        SCHEDULER_WEIGHTS='{"locality": 0.5}',
        WEFT_NATS_URL="nats://nats:4222",
        WEFT_NATS_USER="scheduler",
        WEFT_SOMETHING_ELSE="is not ours",
        PATH="neither",
    )
    assert config == Config(
        connections=Connections(nats_url="nats://nats:4222", nats_user="scheduler"),
        pool="a",
        tick_seconds=0.25,
        admin_port=9100,
        emulated=True,
        home=Path("/srv/weft"),
        gpus=(0, 2, 3),
        weights={"locality": 0.5},
    )


def test_a_group_of_settings_is_read_from_the_same_prefix() -> None:
    config = load_from(SCHEDULER_POOL="a", SCHEDULER_LOG_BYTES_MAX="9", SCHEDULER_LOGS="here")
    assert config.limits == Limits(log_bytes_max=9, logs="here")
    assert faults_of(SCHEDULER_POOL="a", SCHEDULER_LIMITS="9") == ["SCHEDULER_LIMITS is not a setting"]
    assert faults_of(SCHEDULER_POOL="a", SCHEDULER_LOGS="none") == ["logs is not none"]
    assert faults_of(SCHEDULER_POOL="a", SCHEDULER_LOG_BYTES_MAX="-1") == [
        "SCHEDULER_LOG_BYTES_MAX: Expected `int` >= 0"
    ]


def test_what_is_not_set_or_empty_has_its_default() -> None:
    assert load_from(SCHEDULER_POOL="a", SCHEDULER_TICK_SECONDS="", WEFT_NATS_URL="") == Config(
        connections=Connections(), pool="a"
    )


def test_a_setting_that_does_not_exist_is_refused_by_name() -> None:
    assert faults_of(SCHEDULER_POOL="a", SCHEDULER_TICK="2") == ["SCHEDULER_TICK is not a setting"]
    assert faults_of(SCHEDULER_POOL="a", SCHEDULER_CONNECTIONS="2") == ["SCHEDULER_CONNECTIONS is not a setting"]


def test_everything_that_is_wrong_is_said_at_once_and_no_value_is_shown() -> None:
    faults = faults_of(
        SCHEDULER_TICK_SECONDS="hunter2", SCHEDULER_ADMIN_PORT="x", SCHEDULER_WEIGHTS="{", SCHEDULER_NONE="hunter2"
    )
    assert [fault.split()[0].rstrip(":") for fault in faults] == [
        "SCHEDULER_POOL",
        "SCHEDULER_TICK_SECONDS",
        "SCHEDULER_ADMIN_PORT",
        "SCHEDULER_WEIGHTS",
        "SCHEDULER_NONE",
    ]
    assert "float" in faults[1]
    assert not any("hunter2" in fault for fault in faults)


def test_bounds_and_settings_that_do_not_fit_together_are_refused() -> None:
    assert faults_of(SCHEDULER_POOL="a", SCHEDULER_TICK_SECONDS="0") == [
        "SCHEDULER_TICK_SECONDS: Expected `float` > 0.0"
    ]
    assert faults_of(SCHEDULER_POOL="a", SCHEDULER_ADMIN_PORT="1", SCHEDULER_EMULATED="true") == [
        "port 1 is not for the emulated"
    ]


def test_several_nats_servers_are_separated_by_commas_and_a_bad_one_is_named_by_its_place() -> None:
    url = "nats://nats-1:4222, nats://10.0.0.2:4222,nats://nats-3"
    assert load_from(SCHEDULER_POOL="a", WEFT_NATS_URL=url).connections.nats_url == url
    for bad in ("nats://nats-1:4222,,nats://nats-3", "nats-1,http://me:hunter2@nats-2", "nats://nats-1,nats://n:port"):
        (fault,) = faults_of(SCHEDULER_POOL="a", WEFT_NATS_URL=bad)
        assert fault.startswith("WEFT_NATS_URL: address 2 of "), fault
        assert "hunter2" not in fault
    (fault,) = faults_of(SCHEDULER_POOL="a", WEFT_NATS_URL="http://nats-1")
    assert fault.startswith("WEFT_NATS_URL: it is not nats://HOST:PORT")


def test_several_postgres_hosts_need_to_be_told_that_one_takes_writes() -> None:
    dsn = "postgresql://weft_gateway@pg-1:5432,pg-2:5432/weft"
    assert load_from(SCHEDULER_POOL="a", WEFT_PG_DSN=f"{dsn}?target_session_attrs=read-write").connections.pg_dsn
    assert load_from(SCHEDULER_POOL="a", WEFT_PG_DSN="postgresql://pg-1/weft").connections.pg_dsn
    for bad in (dsn, f"{dsn}?target_session_attrs=any"):
        assert faults_of(SCHEDULER_POOL="a", WEFT_PG_DSN=bad) == [
            "WEFT_PG_DSN names several hosts: it needs ?target_session_attrs=read-write"
        ]
    (fault,) = faults_of(SCHEDULER_POOL="a", WEFT_PG_DSN="postgresql://pg-1,/weft?target_session_attrs=read-write")
    assert fault.startswith("WEFT_PG_DSN: one of its hosts is empty")


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "nats"
    file.write_text("hunter2\n")
    connections = load_from(SCHEDULER_POOL="a", WEFT_NATS_PASSWORD_FILE=str(file)).connections
    assert connections.nats_password() == "hunter2"
    assert connections.pg_password() == ""
    assert "hunter2" not in repr(connections)


def test_a_secret_that_is_missing_or_empty_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="missing"):
        read_secret(str(tmp_path / "missing"))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SettingsError, match="empty is empty"):
        read_secret(str(tmp_path / "empty"))
