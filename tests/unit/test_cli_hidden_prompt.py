"""The value of a secret as it is typed at its own terminal: what cannot be one is one error, and nothing is sent."""

import asyncio
import fcntl
import os
import pty
import termios

import pytest

from tests.support.person import WEFT, heed_ctrl_c
from tests.support.told_gateway import ToldGateway
from weft.messages.secrets import SecretView

SECONDS_MAX = 60.0
PROMPT = b"value of odd: "
STORED = SecretView(name="odd", created_at=0.0, updated_at=0.0)


async def set_by(gateway: ToldGateway, keys: bytes) -> tuple[int, bytes]:
    """The exit status of `weft secret set odd`, and what it shows after its prompt, if these keys are typed there."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)

    def begin() -> None:
        heed_ctrl_c()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    environment = {**os.environ, "WEFT_URL": gateway.url, "WEFT_TOKEN": "t", "LC_ALL": "C.UTF-8"}
    command = (*WEFT, "secret", "set", "odd")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True, preexec_fn=begin
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            seen = b""
            while PROMPT not in seen or termios.tcgetattr(theirs)[3] & termios.ECHO:
                seen += await asyncio.to_thread(os.read, ours, 65536) if PROMPT not in seen else b""
            for at in range(0, len(keys), 1000):  # the kernel has room for a line of 4,096
                os.write(ours, keys[at : at + 1000])
            status = await process.wait()
        assert termios.tcgetattr(theirs) == before, "it echoes again"
        os.write(theirs, b"\0")
        while not seen.endswith(b"\0"):
            seen += os.read(ours, 65536)
    finally:
        if process.returncode is None:
            process.kill()
        os.close(ours)
        os.close(theirs)
    return status, seen.partition(PROMPT)[2].strip(b"\r\n\0")


@pytest.mark.parametrize(
    ("keys", "status", "shown"),
    [
        (b"\xff\xfe\n", 1, b"weft: value: is no text in UTF-8"),
        (b"caf\xe9\n", 1, b"weft: value: is no text in UTF-8"),
        (b"\xed\xa0\x80\n", 1, b"weft: value: is no text in UTF-8"),  # half of a surrogate pair
        (b"\n", 1, b"weft: value: is empty"),
        (b"\x04", 1, b"weft: value: is empty"),  # Ctrl-D
        (b"\x03", 130, b""),  # Ctrl-C
        (b"x" * 4095 + b"\n", 1, b"weft: value: is more than the 4094 bytes that a terminal takes: use --from"),
        (b"x" * 9000 + b"\n", 1, b"weft: value: is more than the 4094 bytes that a terminal takes: use --from"),
    ],
    ids=["bytes", "latin-1", "surrogate", "empty", "Ctrl-D", "Ctrl-C", "line", "long"],
)
async def test_what_is_no_value_is_one_error_and_nothing_is_sent(
    gateway: ToldGateway, keys: bytes, status: int, shown: bytes
) -> None:
    assert await set_by(gateway, keys) == (status, shown)
    assert gateway.asked == []


async def test_a_value_is_sent_as_it_is_typed_and_not_shown(gateway: ToldGateway) -> None:
    gateway.answers["PUT /v1/secrets/odd"] = STORED
    assert await set_by(gateway, "é ✓".encode() + b"x" * 4000 + b"\n") == (0, b"odd is stored")
    assert gateway.bodies == ['{"value":"é ✓'.encode() + b"x" * 4000 + b'"}']
