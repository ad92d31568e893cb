"""Copies the output of plain processes from their pipes (pipes.py) into their logs, in a thread for all runs.

On a full disk the bytes stay in the pipe, the job waits for room, and the copy goes on when there is some. When the run
is over, its output waits OUTPUT_SECONDS_MAX for room; then it is dropped, and counted.
"""

import asyncio
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from weftd.executor.runs import RunKey
from weftd.executor.runtime.process.pipes import RunPipes, move, open_log, waiting
from weftd.executor.stacks import write_stacks

logger = logging.getLogger(__name__)

TURN_BYTES = 1 << 20  # of one run, before the next has its turn
OUTPUT_SECONDS_MAX = 30.0  # after the end of a run, for room on the disk
AGAIN_SECONDS = 0.25  # between two tries on a full disk
STOP_SECONDS_MAX = 2.0


class _Output:
    def __init__(self, key: RunKey, pipes: RunPipes, path: str) -> None:
        self.key, self.pipes, self.path = key, pipes, path
        self.lock = threading.Lock()  # held while bytes are moved, and to close the pipe
        self.log = -1  # opened with the first byte
        self.blocked_at: float | None = None  # since when its disk takes nothing, in seconds since the epoch
        self.give_up_at: float | None = None  # by the monotonic clock

    def is_clean(self) -> bool:
        """True if all bytes are in the log; False if that cannot be seen at once, because some are being moved."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return waiting(self.pipes.output) == 0
        finally:
            self.lock.release()

    def is_over(self) -> bool:
        """True if nobody can write to the pipe any more. An event does not show that: it may be one of an earlier pipe
        with the same descriptor. Takes the lock."""
        with self.lock:
            if self.pipes.output < 0:
                return True
            poll = select.poll()
            poll.register(self.pipes.output, 0)
            return any(event & select.POLLHUP for _, event in poll.poll(0))

    def waiting(self) -> int:
        """How many bytes are in the pipe. Takes the lock."""
        with self.lock:
            return 0 if self.pipes.output < 0 else waiting(self.pipes.output)

    def move(self, limit: int) -> int:
        """Raises OSError. Takes the lock."""
        with self.lock:
            if self.pipes.output < 0:
                return 0
            if self.log < 0:
                self.log = open_log(self.path)
            return move(self.pipes.output, self.log, limit=limit)


class _Asked:
    """To move `left` bytes more of a run's output, then to call `then`. None: all that is in the pipe at first."""

    def __init__(self, output: _Output, then: Callable[[], None]) -> None:
        self.output, self.then = output, then
        self.left: int | None = None


class Outputs:
    def __init__(self) -> None:
        self._outputs: dict[RunKey, _Output] = {}
        self._by_fd: dict[int, _Output] = {}
        self._blocked: dict[RunKey, _Output] = {}  # of the thread: to be tried again, as nothing could be moved
        self._asked: deque[_Asked] = deque()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    def copy(self, key: RunKey, pipes: RunPipes, log: str) -> None:
        """Copy this run's output into its log, until `close`."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="outputs", daemon=True)
            self._thread.start()
        output = self._outputs[key] = self._by_fd[pipes.output] = _Output(key, pipes, log)
        self._epoll.register(output.pipes.output, select.EPOLLIN)

    def when_copied(self, key: RunKey, then: Callable[[], None]) -> None:
        """Call `then` once all that the run has written up to now is in its log, at once if it is; at the latest
        OUTPUT_SECONDS_MAX after the first call for this run."""
        output = self._outputs.get(key)
        if output is None or output.is_clean():
            then()
            return
        if output.give_up_at is None:
            output.give_up_at = time.monotonic() + OUTPUT_SECONDS_MAX
        self._asked.append(_Asked(output, then))
        os.eventfd_write(self._wake, 1)

    def write_stacks(self, key: RunKey, text: str) -> None:
        """Put this text into the run's output. Raises OSError."""
        output = self._outputs.get(key)
        if output is None:
            return
        with output.lock:
            if output.pipes.output >= 0:
                write_stacks(output.pipes.output, text)

    def let_go(self, key: RunKey) -> None:
        """Let the run's shim exit."""
        output = self._outputs.get(key)
        if output is not None:
            output.pipes.let_go()

    def blocked_at(self, key: RunKey) -> float | None:
        """Since when the run's output waits for room on the disk, in seconds since the epoch; None if it does not."""
        output = self._outputs.get(key)
        return None if output is None else output.blocked_at

    def close(self, key: RunKey) -> int:
        """Forget a run; returns how many bytes of its output were still in the pipe, and are lost."""
        output = self._outputs.pop(key, None)
        if output is None:
            return 0
        with output.lock:
            self._by_fd.pop(output.pipes.output, None)
            with suppress(OSError):  # The thread has done so.
                self._epoll.unregister(output.pipes.output)
            lost = waiting(output.pipes.output)
            output.pipes.close()
            if output.log >= 0:
                os.close(output.log)
        return lost

    def stop(self) -> None:
        """End the thread. The shims keep the bytes in the pipes for the next executor."""
        if self._stopping:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS_MAX)
            if self._thread.is_alive():  # It waits for a disk that hangs.
                return
        for key in list(self._outputs):
            self.close(key)
        self._epoll.close()
        os.close(self._wake)

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        again_at = 0.0
        while not self._stopping:
            pause = max(0.0, again_at - time.monotonic()) if self._blocked or self._asked else None
            for fd, _ in self._epoll.poll(pause):
                if fd == self._wake:
                    os.eventfd_read(self._wake)
                elif (output := self._by_fd.get(fd)) is not None:
                    moved = self._moves(output, TURN_BYTES)
                    if moved is None or (not moved and output.is_over()):
                        self._set_aside(output)
            if self._blocked and time.monotonic() >= again_at:
                self._try_again()
                again_at = time.monotonic() + AGAIN_SECONDS
            self._answer()

    def _moves(self, output: _Output, limit: int) -> int | None:
        """Move bytes; returns their number, or None if that has to be tried again. Notes whether the disk takes
        them."""
        try:
            moved = output.move(limit)
        except BlockingIOError:  # The guard appends to the log.
            self._blocked[output.key] = output
            return None
        except OSError as error:
            if output.blocked_at is None:
                output.blocked_at = time.time()
                logger.warning("the output of %s waits: %s", output.key, error)
            self._blocked[output.key] = output
            return None
        output.blocked_at = None
        return moved

    def _set_aside(self, output: _Output) -> None:
        """No longer wait for it: its disk takes nothing, or nobody can write to its pipe any more."""
        with output.lock, suppress(OSError):
            if output.pipes.output >= 0:
                self._epoll.unregister(output.pipes.output)

    def _try_again(self) -> None:
        for key, output in list(self._blocked.items()):
            if output.pipes.output < 0 or self._moves(output, TURN_BYTES) is not None:
                del self._blocked[key]
                with output.lock, suppress(OSError):
                    if output.pipes.output >= 0:
                        self._epoll.register(output.pipes.output, select.EPOLLIN)

    def _answer(self) -> None:
        for _ in range(len(self._asked)):
            asked = self._asked.popleft()
            if asked.left is None:
                asked.left = asked.output.waiting()
            if asked.output.key not in self._blocked:
                moved = self._moves(asked.output, asked.left)
                if moved is not None:
                    asked.left -= moved or asked.left  # None moved: the pipe is empty.
            give_up_at = asked.output.give_up_at
            if asked.left <= 0 or (give_up_at is not None and time.monotonic() > give_up_at):
                self._call(asked.then)
            else:
                self._asked.append(asked)

    def _call(self, then: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The loop may be closed by now.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(then)
