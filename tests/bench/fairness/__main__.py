"""One attack, as a process of its own: its target on stdin, `ready` and then its answers as JSON on stdout."""

import asyncio
import os
import signal
import sys
from collections import Counter

import msgspec

from tests.bench.fairness.hostile import Target, attack

NICE = 10  # it stands for another machine's processor


async def main() -> None:
    target = msgspec.json.decode(sys.stdin.buffer.readline(), type=Target)
    os.nice(NICE)
    answers: Counter[str] = Counter()

    def leave() -> None:
        """At once: to cancel thousands of requests in order takes longer than anybody waits."""
        print(msgspec.json.encode(dict(answers)).decode(), flush=True)
        os._exit(0)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)
    await attack(target, lambda: print("ready", flush=True), answers)
    leave()


asyncio.run(main())
