"""Bounds for messages of nodes: a message outside of them is refused where it is decoded, and reaches no service.

They are far beyond any real node's reports. They exclude numbers that do not fit a column, an index or our arithmetic,
text of any length, and lists that would fill a process.
"""

from typing import Annotated

from msgspec import Meta

from weft.domain.cluster import GPUS_MAX
from weft.domain.spec import TOKEN_PATTERN

JOB_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)"
EPOCH_MAX = (1 << 31) - 1
RANK_MAX = (1 << 31) - 1  # a service gives new numbers for as long as it lives
EXIT_CODE_MAX = 255
DETAIL_CHARS_MAX = 8192
PROGRESS_NAMES_MAX = 256
RUNS_MAX = 65_536  # of one node, in one message
COUNT_MAX = 1 << 53
WHOLE_MAX = (1 << 63) - 1

Token = Annotated[str, Meta(pattern=TOKEN_PATTERN)]
JobId = Annotated[str, Meta(pattern=JOB_ID_PATTERN)]
JobIdOrNone = Annotated[str, Meta(pattern=r"^(|[A-Za-z0-9][A-Za-z0-9._-]{0,63})$(?!\n)")]  # empty: no job's
Word = Annotated[str, Meta(max_length=255)]
Text = Annotated[str, Meta(max_length=DETAIL_CHARS_MAX)]
Name = Annotated[str, Meta(max_length=1000)]  # of a number that a job reports, as long as a pattern can name it

Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
Rank = Annotated[int, Meta(ge=0, le=RANK_MAX)]
ExitCode = Annotated[int, Meta(ge=0, le=EXIT_CODE_MAX)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
GpuIndex = Annotated[int, Meta(ge=0, lt=GPUS_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Whole = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]  # of bytes, or of what a counter has counted since it began
LeaseNumber = Annotated[int, Meta(ge=0, le=1 << 62)]

FLOAT_MAX = 1.7976931348623157e308  # of IEEE 754 with 64 bits
Finite = Annotated[float, Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
Amount = Annotated[float, Meta(ge=0, le=FLOAT_MAX)]  # a rate, a time: finite and not negative
Part = Annotated[float, Meta(ge=0, le=1)]
Score = Annotated[float, Meta(gt=0, le=1e9)]
Time = Annotated[float, Meta(ge=0, le=1e11)]  # seconds since the epoch, UTC

Progress = Annotated[dict[Name, Finite], Meta(max_length=PROGRESS_NAMES_MAX)]
