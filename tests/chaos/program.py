"""What a job of the chaos runs: it traces itself, where Weft does not look, and numbers what it says.

Run as `python -I -S program.py`, with CHAOS_FOLDER, CHAOS_KEY and what it should do in its environment. One line of
the trace is one event: `event boot-seconds job epoch rank instance` and more words. What stdout took of its log, and
nothing else, is also in a file of its own.

A job that may take another size works by steps: its rank 0 counts them, one for each member in each beat, and writes a
checkpoint of them, which every rank reads: all end when as many are done as were wanted.
"""

import json
import os
import signal
import sys
import time

BEAT_SECONDS = 0.1
CHECKPOINT_BEATS = 10
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
        self.steps = int(env.get("CHAOS_STEPS", "0"))
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
        signal.signal(signal.SIGUSR1, lambda *_: self.trace("signalled"))
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
        return self.take_steps() if self.steps else self.pass_time()

    def take_steps(self) -> int:
        leads = os.environ["WEFT_RANK"] == "0"
        done = self.checkpoint()
        self.trace("from", done)
        told: object = None
        while done < self.steps:
            self.trace("beat")
            self.say()
            members = self.members()
            if members["changes"] != told:
                told = members["changes"]
                self.trace("members", told, ",".join(str(rank) for rank in members["ranks"]))
            if leads:
                done += len(members["ranks"])
            if self.told_to_end:
                if leads:
                    self.write_checkpoint(done)
                self.trace("interrupted")
                return 0
            if leads and self.said % CHECKPOINT_BEATS == 0:
                self.write_checkpoint(done)
            done = done if leads else self.checkpoint()
            time.sleep(BEAT_SECONDS)
        if leads:
            self.write_checkpoint(done)
        self.trace("done", done)
        return 1 if self.epoch < self.well_from else self.status

    def members(self) -> "dict[str, object]":
        """How often they changed, and the ranks, as the node says it."""
        path = os.environ.get("WEFT_MEMBERS")
        if not path:
            return {"changes": 0, "ranks": list(range(int(os.environ["WEFT_WORLD_SIZE"])))}
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
        return {"changes": told["changes"], "ranks": [rank["rank"] for rank in told["ranks"]]}

    def checkpoint(self) -> int:
        try:
            with open(f"{self.folder}/steps/{self.key}", encoding="utf-8") as file:
                return int(file.read())
        except FileNotFoundError:
            return 0

    def write_checkpoint(self, done: int) -> None:
        path = f"{self.folder}/steps/{self.key}"
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(str(done))
        os.replace(f"{path}.{os.getpid()}", path)
        self.trace("checkpoint", done)

    def pass_time(self) -> int:
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
