"""What a job of the chaos runs: it traces itself, where Weft does not look, and numbers what it says.

Run as `python -I -S program.py`, with CHAOS_FOLDER, CHAOS_KEY and what it should do in its environment. One line of
the trace is one event: `event boot-seconds job epoch rank instance` and more words. What stdout took of its log, and
nothing else, is also in a file of its own.
"""

import os
import signal
import sys
import time

BEAT_SECONDS = 0.1
LINE_BYTES = 100


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Job:
    def __init__(self) -> None:
        env = os.environ
        self.folder, self.key = env["CHAOS_FOLDER"], env["CHAOS_KEY"]
        self.who = f"{env['WEFT_JOB_ID']} {env['WEFT_EPOCH']} {env['WEFT_RANK']} {os.getpid()}-{time.time_ns()}"
        self.epoch = int(env["WEFT_EPOCH"])
        self.name = self.who.replace(" ", ".")
        self.seconds = float(env.get("CHAOS_SECONDS", "1"))
        self.status = int(env.get("CHAOS_STATUS", "0"))
        self.well_from = int(env.get("CHAOS_WELL_FROM", "0"))  # before this epoch it fails
        self.stubborn = env.get("CHAOS_STUBBORN") == "1"
        self.polite = env.get("CHAOS_POLITE") == "1"  # exits 0 when it is told to stop, as if it were done
        self.lines = int(env.get("CHAOS_LINES", "1"))  # for each beat
        self.said = 0
        self.told_to_end = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.trace_fd = os.open(f"{self.folder}/traces/{self.key}", flags, 0o600)
        self.copy_fd = os.open(f"{self.folder}/said/{self.name}", flags, 0o600)

    def trace(self, event: str, *more: object) -> None:
        words = " ".join(str(word) for word in (event, f"{now():.3f}", self.who, *more))
        os.write(self.trace_fd, f"{words}\n".encode())

    def begin(self) -> None:
        signal.signal(signal.SIGTERM, self.hear)
        node = os.environ["WEFT_PROGRESS"].partition("/nodes/")[2].partition("/")[0] or "engine"
        self.trace("start", node, os.environ["WEFT_GPUS"] or "-", os.environ["WEFT_WORLD_SIZE"])

    def hear(self, number: int, frame: object) -> None:
        self.told_to_end = True

    def say(self) -> None:
        for _ in range(self.lines):
            line = f"{self.said:08d} {self.name} ".ljust(LINE_BYTES - 1, ".").encode() + b"\n"
            try:
                taken = os.write(1, line)
            except OSError as error:
                self.trace("refused", error.errno)
                return
            os.write(self.copy_fd, line[:taken])
            self.said += 1

    def work(self) -> int:
        until = now() + self.seconds
        while now() < until:
            self.trace("beat")
            self.say()
            if self.told_to_end and self.polite:
                self.trace("interrupted")
                return 0
            if self.told_to_end and not self.stubborn:
                return 128 + signal.SIGTERM
            time.sleep(BEAT_SECONDS)
        return 1 if self.epoch < self.well_from else self.status


if __name__ == "__main__":
    job = Job()
    job.begin()
    status = job.work()
    job.trace("end", status)
    sys.exit(status)
