"""A recording of a node's GPUs: a file of JSON lines, the first of which describes the recording."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from libs.domain.cluster import Gpu
from libs.messages.signals import GpuSample

FORMAT: Final = 1
BYTES_MAX: Final = 256 * 2**20
"""The largest file that is read; an hour of eight busy GPUs is some 60 MB."""


class RecordingError(Exception):
    """A recording is invalid. The message has the file, the line and the reason."""


class RecordingHeader(Struct, frozen=True, kw_only=True):
    """The first line. `provider` and `driver` as in GpuSample; `period` in seconds."""

    recording: int  # the format
    provider: str
    driver: str
    period: float
    gpus: tuple[Gpu, ...]
    near: tuple[tuple[int, int, str], ...] = ()  # the indices of two GPUs, and the nearest part that they share


class RecordedMoment(Struct, frozen=True, kw_only=True):
    """Each further line: one sample of each GPU, in the header's order, `at` seconds after the first."""

    at: float
    samples: tuple[GpuSample, ...]


class Recording(Struct, frozen=True, kw_only=True):
    header: RecordingHeader
    moments: tuple[RecordedMoment, ...]


def line(record: RecordingHeader | RecordedMoment) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def load(path: Path) -> Recording:
    """Read a whole recording. Raises RecordingError."""
    try:
        if path.stat().st_size > BYTES_MAX:
            raise RecordingError(f"{path}: larger than {BYTES_MAX} bytes")
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from error
    if not lines:
        raise RecordingError(f"{path}:1: empty, where a recording of GPUs was expected")
    header = _header(path, lines[0])
    moments = tuple(_moments(path, header, lines[1:]))
    if not moments:
        raise RecordingError(f"{path}:2: the recording has no samples")
    for number, (before, after) in enumerate(pairwise(moments), 3):
        if after.at <= before.at:
            raise RecordingError(f"{path}:{number}: its time, {after.at}, is not after {before.at}")
    return Recording(header=header, moments=moments)


def _header(path: Path, first: bytes) -> RecordingHeader:
    try:
        header = msgspec.json.decode(first, type=RecordingHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordingError(f"{path}:1: not the first line of a recording of GPUs: {error}") from error
    if header.recording != FORMAT:
        raise RecordingError(f"{path}:1: a recording of format {header.recording}, and {FORMAT} is known here")
    if not header.gpus or header.period <= 0:
        raise RecordingError(f"{path}:1: it needs at least one GPU and a period above 0")
    return header


def _moments(path: Path, header: RecordingHeader, lines: list[bytes]) -> Iterator[RecordedMoment]:
    expected = [gpu.uuid for gpu in header.gpus]
    decoder = msgspec.json.Decoder(RecordedMoment)
    for number, content in enumerate(lines, 2):
        if not content.endswith(b"\n"):
            raise RecordingError(f"{path}:{number}: cut off: the line does not end")
        try:
            moment = decoder.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordingError(f"{path}:{number}: {error}") from error
        if [sample.uuid for sample in moment.samples] != expected:
            raise RecordingError(f"{path}:{number}: not one sample of each GPU that the first line names")
        yield moment
