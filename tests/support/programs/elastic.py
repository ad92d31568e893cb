"""Work that any number of ranks share, as a job under Weft that grows and shrinks while it runs.

Rank 0 hands out numbered pieces of work over TCP and counts those that come back; the other ranks fetch pieces, do them
and bring them back. A rank that leaves brings back nothing: its piece is handed out again. Rank 0 reads which ranks are
there from the file that WEFT_MEMBERS names. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time

LOOK_SECONDS = 0.2
PIECE_SECONDS_MAX = 5.0  # then a piece counts as lost, and is handed out again


class Work:
    """The pieces: those not handed out, those under way with when they were handed out, and those that are done."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.waiting = [*range(pieces, 0, -1)]
        self.under_way: dict[int, float] = {}
        self.done: set[int] = set()
        self.lock = threading.Lock()

    def take(self) -> int | None:
        """A piece to do; None if there is none left to hand out."""
        with self.lock:
            late = time.monotonic() - PIECE_SECONDS_MAX
            lost = [piece for piece, at in self.under_way.items() if at < late]
            for piece in lost:
                del self.under_way[piece]
            self.waiting += lost
            if not self.waiting:
                return None
            piece = self.waiting.pop()
            self.under_way[piece] = time.monotonic()
            return piece

    def bring(self, piece: int) -> None:
        with self.lock:
            self.under_way.pop(piece, None)
            self.done.add(piece)


class Book:
    """The checkpoint: a line for each time that the work was saved or gone on with, with the pieces done until then."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "pieces") if folder else ""
        self.done = 0
        if self.path and os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                saved = [line.split() for line in file if line.startswith("saved")]
            self.done = int(saved[-1][1]) if saved else 0
            self.write("resumed", self.done)
            print(f"resumed at piece {self.done}", flush=True)

    def write(self, what: str, done: int) -> None:
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{what} {done}\n")


def members() -> dict[str, object]:
    """The ranks that are there, as the node wrote it; this rank alone if there is no such file."""
    try:
        with open(os.environ.get("WEFT_MEMBERS", ""), encoding="utf-8") as file:
            found: dict[str, object] = json.load(file)
            return found
    except OSError:
        return {"changes": 0, "ranks": [{"rank": int(os.environ.get("WEFT_RANK", "0"))}]}


def do(seconds: float, *, idle: bool) -> None:
    """One piece of work: so much processor time, or only so long."""
    if idle:
        time.sleep(seconds)
        return
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))


def lead(args: argparse.Namespace) -> int:
    """Rank 0: hand out, do pieces as well, and report the progress, until all are done."""
    book = Book(os.environ.get("WEFT_CHECKPOINT_DIR", ""))
    work = Work(max(0, args.pieces - book.done))

    def save(*_: object) -> None:
        book.write("saved", book.done + len(work.done))
        os._exit(0)

    signal.signal(signal.SIGTERM, save)

    class Desk(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                brought = line.strip()
                if brought:
                    work.bring(int(brought))
                piece = work.take()
                over = len(work.done) >= work.pieces
                answer = b"over" if over else b"wait" if piece is None else str(piece).encode()
                self.wfile.write(answer + b"\n")

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    server = socketserver.ThreadingTCPServer(("", args.port), Desk)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    changes: object = None
    seen = 0
    while len(work.done) < work.pieces:
        now = members()
        ranks = now["ranks"]
        if now["changes"] != changes and isinstance(ranks, list):
            changes, seen = now["changes"], len(ranks)
            print(f"members: {len(ranks)} (piece {len(work.done)})", flush=True)
        piece = work.take()
        if piece is None:
            time.sleep(LOOK_SECONDS)
        else:
            do(args.seconds, idle=args.idle)
            work.bring(piece)
        with open(os.environ.get("WEFT_PROGRESS", os.devnull), "a", encoding="utf-8") as progress:
            done = book.done + len(work.done)
            progress.write(f"step={done} steps={book.done + work.pieces} checkpoint={book.done} members={seen}\n")
    print(f"all {book.done + work.pieces} pieces are done", flush=True)
    time.sleep(2 * LOOK_SECONDS)  # for the other ranks to hear that it is over
    return 0


def follow(args: argparse.Namespace) -> int:
    """Any other rank: fetch a piece, do it, bring it back."""
    where = (os.environ.get("MASTER_ADDR", "127.0.0.1"), args.port)
    done = 0
    print(f"joins at {time.time():.3f}", flush=True)
    while True:
        try:
            with socket.create_connection(where, timeout=PIECE_SECONDS_MAX) as desk:
                lines = desk.makefile("rwb")
                brought = b""
                while True:
                    lines.write(brought + b"\n")
                    lines.flush()
                    answer = lines.readline().strip()
                    if answer in (b"over", b""):
                        print(f"did {done} pieces", flush=True)
                        return 0
                    if answer == b"wait":
                        brought = b""
                        time.sleep(LOOK_SECONDS)
                        continue
                    do(args.seconds, idle=args.idle)
                    brought, done = answer, done + 1
        except OSError:
            time.sleep(LOOK_SECONDS)  # rank 0 does not listen yet


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", action="store_true", help="a piece takes time, but no processor: emulated work")
    parser.add_argument("--pieces", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.1, metavar="N", help="seconds of CPU time for one piece")
    parser.add_argument("--port", type=int, default=int(os.environ.get("MASTER_PORT", "0")))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # rank 0 saves its work first
    return lead(args) if int(os.environ.get("WEFT_RANK", "0")) == 0 else follow(args)


if __name__ == "__main__":
    sys.exit(main())
