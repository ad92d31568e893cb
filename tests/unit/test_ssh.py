"""Host names and the configuration for SSH clients, and the SFTP program against requests that no good client sends."""

import argparse
import struct
from pathlib import Path

import pytest

from weftd.cli.sessions.sftp_program import (
    CLOSE,
    EXTENDED,
    FAILURE,
    LSTAT,
    MKDIR,
    NO_SUCH_FILE,
    OPEN,
    READ,
    RENAME,
    STATUS,
    UNSUPPORTED,
    Packet,
    Server,
    text,
)
from weftd.cli.sessions.ssh_config import configuration
from weftd.cli.sessions.ssh_proxy import host

BAD_MESSAGE = 5


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("train.weft", ("train", 0, "")),
        ("j-4y41vnxxp7.weft", ("j-4y41vnxxp7", 0, "")),
        ("TRAIN.weft", ("train", 0, "")),
        ("3.train.weft", ("train", 3, "")),
        ("3.a-4y41_7.weft", ("a-4y41_7", 3, "")),
        ("2.ps.train.weft", ("train", 2, "ps")),
        ("ps.train.weft", ("train", 0, "ps")),
        ("7.weft", ("7", 0, "")),
        ("train", ("train", 0, "")),
    ],
)
def test_a_host_name_means_a_job_its_rank_and_its_role(name: str, wanted: tuple[str, int, str]) -> None:
    found = host(name)
    assert (found.job, found.rank, found.role, found.host) == (*wanted, name.lower())


@pytest.mark.parametrize("name", [".weft", "1.2.3.train.weft", "99999.train.weft", "a b.weft", "-x.weft", "..weft", ""])
def test_another_host_name_is_refused(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected JOB\.weft or RANK\.JOB\.weft"):
        host(name)


def test_the_configuration_names_jobs_and_survives_odd_folders() -> None:
    text_ = configuration(Path("/home/a b/50%"), ["train", "eval"], {"WEFT_URL": "http://there:1"})
    lines = [line.strip() for line in text_.splitlines()]
    assert "Host train.weft eval.weft *.weft" in lines
    assert 'IdentityFile "/home/a b/50%%/user_key"' in lines
    proxy = next(line for line in lines if line.startswith("ProxyCommand"))
    assert proxy.startswith("ProxyCommand env WEFT_URL=http://there:1 ")
    assert proxy.endswith(" ssh-proxy --keys '/home/a b/50%%' %h")
    assert {"StrictHostKeyChecking yes", "ForwardAgent no", "IdentitiesOnly yes"} <= set(lines)
    assert "Host *.weft" in configuration(Path("/x"), [], {}).splitlines()


def code(answer: bytes) -> int:
    assert answer[0] == STATUS
    return int.from_bytes(answer[1:5], "big")


@pytest.mark.parametrize(
    ("kind", "body", "wanted"),
    [
        (99, b"", UNSUPPORTED),
        (EXTENDED, text(b"no-such@openssh.com"), UNSUPPORTED),
        (READ, text(b"1") + struct.pack(">QI", 0, 10), FAILURE),
        (CLOSE, text(b"none"), FAILURE),
        (LSTAT, b"\xff\xff\xff\xffshort", BAD_MESSAGE),
        (LSTAT, b"", BAD_MESSAGE),
        (LSTAT, text(b"a\0b"), BAD_MESSAGE),
        (LSTAT, text(b"/no/such/file"), NO_SUCH_FILE),
        (OPEN, text(b"/"), BAD_MESSAGE),
    ],
)
def test_a_bad_request_is_answered_with_a_status(kind: int, body: bytes, wanted: int) -> None:
    assert code(Server().answer(kind, Packet(body))) == wanted


def test_a_name_that_is_no_text_is_served_and_one_that_is_taken_is_not_replaced(tmp_path: Path) -> None:
    server, odd = Server(), bytes(tmp_path) + b"/\xff\xfe"
    assert code(server.answer(MKDIR, Packet(text(odd) + struct.pack(">I", 0)))) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["\udcff\udcfe"]
    (tmp_path / "taken").write_text("kept")
    (tmp_path / "new").write_text("new")
    names = text(bytes(tmp_path) + b"/new") + text(bytes(tmp_path) + b"/taken")
    assert code(server.answer(RENAME, Packet(names))) == FAILURE
    assert (tmp_path / "taken").read_text() == "kept"
