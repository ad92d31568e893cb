"""Work that any number of ranks share, as a job under Weft that grows and shrinks while it runs.

Every rank does pieces of work, and brings each to rank 0 over TCP, which counts them. A piece takes time but no
processor: it is emulated. Rank 0 reads which ranks are there from the file that WEFT_MEMBERS names, and ends the work
once ranks have joined and some of them have left again, or at a number of ranks. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time

PIECE_SECONDS = 0.1
ANSWER_SECONDS_MAX = 5.0
SECONDS_MAX = 180.0  # it waits for a change of its size no longer


class Desk(socketserver.StreamRequestHandler):
    """Takes a line for each piece that a rank has done, and answers if there is more to do."""

    pieces = itertools.count(1)
    over = False

    def handle(self) -> None:
        for _ in self.rfile:
            next(Desk.pieces)
            self.wfile.write(b"over\n" if Desk.over else b"more\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def members() -> tuple[int, int]:
    """The number of changes of the ranks, and the number of ranks, as written by the node."""
    with open(os.environ["WEFT_MEMBERS"], encoding="utf-8") as file:
        found = json.load(file)
    return found["changes"], len(found["ranks"])


def lead(port: int, args: argparse.Namespace) -> int:
    """Rank 0: count the pieces, do some as well, and report the progress."""
    threading.Thread(target=Server(("", port), Desk).serve_forever, daemon=True).start()
    seen = most = 0
    known, until = -1, time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        if is_over(seen, most, args):
            until = min(until, time.monotonic() + args.linger)
        time.sleep(PIECE_SECONDS)
        piece = next(Desk.pieces)
        changes, seen = members()
        if changes != known:
            known, most = changes, max(most, seen)
            print(f"members: {seen} (piece {piece})", flush=True)
        with open(os.environ.get("WEFT_PROGRESS", os.devnull), "a", encoding="utf-8") as progress:
            progress.write(f"step={piece} members={seen}\n")
    Desk.over = True
    time.sleep(3 * PIECE_SECONDS)  # for the other ranks to hear that it is over
    print(f"{next(Desk.pieces) - 1} pieces are done", flush=True)
    return 0


def is_over(seen: int, most: int, args: argparse.Namespace) -> bool:
    """Return True if the ranks that are there, of the most that there were, end the work."""
    up_to, down_to = int(args.up_to or 0), int(args.down_to or most)
    return seen >= up_to if up_to else seen < most and seen <= down_to and most >= int(args.after or 0)


def follow(address: str, port: int) -> int:
    """Any other rank: do a piece, bring it to rank 0, until the work is over."""
    while True:
        try:
            with socket.create_connection((address, port), timeout=ANSWER_SECONDS_MAX) as desk:
                lines = desk.makefile("rwb")
                answer = b"more\n"
                while answer == b"more\n":
                    time.sleep(PIECE_SECONDS)
                    lines.write(b"done\n")
                    lines.flush()
                    answer = lines.readline()
                return 0
        except OSError:
            time.sleep(PIECE_SECONDS)  # rank 0 does not listen yet


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--up-to", type=int, metavar="N", help="end once there are N ranks")
    parser.add_argument("--down-to", type=int, metavar="N", help="end once there are N ranks, after there were more")
    parser.add_argument("--after", type=int, metavar="N", help="end no sooner than after there were N ranks")
    parser.add_argument("--linger", type=float, default=0.0, metavar="SECONDS", help="seconds to run before the end")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # a rank that has to leave may go at any time
    port = int(os.environ.get("MASTER_PORT", "0"))
    if int(os.environ.get("WEFT_RANK", "0")) == 0:
        return lead(port, args)
    return follow(os.environ.get("MASTER_ADDR", "127.0.0.1"), port)


if __name__ == "__main__":
    sys.exit(main())
