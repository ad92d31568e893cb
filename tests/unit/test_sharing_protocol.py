"""The C side and the Python side of sharing agree: the same numbers, at the same places."""

import re
import struct
from pathlib import Path

import pytest

from weft.emulation import device
from weft.emulation.native import SOURCES as EMULATED_SOURCES
from weft.sharing import pages, wire
from weft.sharing.native import SOURCES
from weft.sharing.pages import Flag
from weft.sharing.wire import Op, ShareMessage


def constants(path: Path) -> dict[str, int]:
    found = re.findall(r"^#define (\w+) (0x[0-9a-f]+|\d+)u?(?:ll)?\b", path.read_text(), re.MULTILINE)
    return {name: int(value, 0) for name, value in found}


def offsets(path: Path, struct_name: str) -> dict[str, int]:
    """Where each field of a C struct lies, from its types in order."""
    body = re.search(rf"struct {struct_name} \{{(.*?)\n\}};", path.read_text(), re.DOTALL)
    assert body is not None
    text = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    at, places = 0, {}
    for width, names in re.findall(r"(?:_Atomic )?uint(32|64|8)_t ([^;]+);", text):
        for name in names.split(","):
            size = int(width) // 8
            assert at % size == 0
            plain, _, count = name.strip().partition("[")
            places[plain] = at
            at += size * (int(count.rstrip("]")) if count.rstrip("]").isdecimal() else 1)
    return places


C = constants(SOURCES / "protocol.h")


@pytest.mark.parametrize("op", list(Op))
def test_every_message_has_the_same_number(op: Op) -> None:
    assert C[f"WEFT_{op.name}"] == op


@pytest.mark.parametrize("flag", list(Flag))
def test_every_flag_has_the_same_bit(flag: Flag) -> None:
    assert C[f"WEFT_FLAG_{flag.name}"] == flag


def test_the_pages_have_the_same_size_magic_version_and_entries() -> None:
    assert C["WEFT_PAGE_BYTES"] == pages.PAGE_BYTES
    assert C["WEFT_LIMITS_MAGIC"] == pages.LIMITS_MAGIC
    assert C["WEFT_USE_MAGIC"] == pages.USE_MAGIC
    assert C["WEFT_VERSION"] == pages.VERSION
    assert C["WEFT_ENTRIES"] == pages.ENTRIES


def test_each_field_of_limits_lies_where_the_hook_reads_it() -> None:
    limits = pages.SlotLimits(
        flags=Flag.GATED, memory_limit=11, device_memory=12, in_flight_us=13, context_mib=14, beat_ns=15, changes=16
    )
    data = pages.limits_bytes(limits)
    places = offsets(SOURCES / "protocol.h", "weft_limits")
    fields = {"changes": 16, "flags": Flag.GATED, "in_flight_us": 13, "context_bytes_mib": 14}
    assert {name: struct.unpack_from("<I", data, places[name])[0] for name in fields} == fields
    fields = {"magic": pages.LIMITS_MAGIC, "memory_limit": 11, "device_memory": 12, "arbiter_beat": 15}
    assert {name: struct.unpack_from("<Q", data, places[name])[0] for name in fields} == fields


def test_each_field_of_use_is_read_where_the_hook_writes_it() -> None:
    page = bytearray(pages.empty_use_bytes())
    names = ("launches", "blocked_ns", "busy_us", "denied", "waits_given_up", "longest_kernel_us")
    places = offsets(SOURCES / "protocol.h", "weft_use")
    for number, name in enumerate(names, 1):
        struct.pack_into("<Q", page, places[name], number)
    entry = offsets(SOURCES / "protocol.h", "weft_entry")
    at = pages.ENTRIES_AT + pages.ENTRY_BYTES
    for number, (name, form) in enumerate((("pid", "<I"), ("generation", "<I"), ("memory_used", "<Q")), 1):
        struct.pack_into(form, page, at + entry[name], number)
    use = pages.read_use(bytes(page))
    assert use is not None
    assert (use.launches, use.blocked_ns, use.busy_us, use.denied, use.waits_given_up) == (1, 2, 3, 4, 5)
    assert use.longest_kernel_us == 6
    [found] = use.entries
    assert (found.place, found.pid, found.generation, found.memory) == (1, 1, 2, 3)


def test_each_field_of_a_message_lies_where_the_hook_reads_it() -> None:
    data = wire.encode(ShareMessage(Op.GRANT, 1, 2, 3, 4))
    places = offsets(SOURCES / "protocol.h", "weft_message")
    assert len(data) == wire.BYTES
    assert {name: data[at] for name, at in places.items()} == {"op": Op.GRANT, "pid": 1, "turn": 2, "a": 3, "b": 4}


def test_the_emulated_device_has_the_same_file() -> None:
    constant = constants(EMULATED_SOURCES / "emulated.h")
    assert constant["EMULATED_MAGIC"] == device.MAGIC
    assert constant["EMULATED_VERSION"] == device.VERSION
    assert constant["EMULATED_PROCESSES"] == device.PROCESSES
