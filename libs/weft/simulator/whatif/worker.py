"""`python -m weft.simulator.whatif`: one look ahead in a process of its own, which may be ended at any time.

It reads one `Task` from stdin, pickled by the process that started it, and writes the fates, encoded, to stdout.
"""

import os
import pickle
import sys

import msgspec
from msgspec import Struct

from weft.simulator.whatif.look_ahead import LookAhead, WhatIfOutcome
from weft.simulator.whatif.present import Present

NICE = 10  # whatever else the machine has to do comes first


class Task(Struct, frozen=True, kw_only=True):
    present: Present
    until_s: float
    grain: float


def encoded(task: Task) -> bytes:
    return pickle.dumps(task, protocol=pickle.HIGHEST_PROTOCOL)


def outcomes_of(answer: bytes) -> dict[str, WhatIfOutcome]:
    return msgspec.msgpack.decode(answer, type=dict[str, WhatIfOutcome])


def main() -> None:
    os.nice(NICE)
    task = pickle.load(sys.stdin.buffer)
    assert isinstance(task, Task), "only the process that started this one writes to it"
    outcomes = LookAhead(task.present, until_s=task.until_s, grain=task.grain).outcomes()
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcomes))
