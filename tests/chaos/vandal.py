"""What a job of the hostile tenant runs: `python -I -S vandal.py MISDEED`, one of `misdeeds.BY_JOBS`.

It touches the folder of its own run and kills its own shim, and nothing else.
"""

import os
import shutil
import signal
import sys
from contextlib import suppress

DEPTH = 1500  # more than Python recurses
NAMES = 20_000


def deep_folder() -> None:
    for _ in range(DEPTH):
        os.mkdir("d", 0o700)
        os.chdir("d")


def wide_folder() -> None:
    with open("name", "w"):
        pass
    for number in range(NAMES):
        os.link("name", f"name-{number}")


def huge_exit() -> None:
    _exit_file("99999999999999\n")


def negative_exit() -> None:
    _exit_file("-1\n")


def fifo_exit() -> None:
    _no_exit_file()
    os.mkfifo("exit")


def folder_exit() -> None:
    _no_exit_file()
    os.makedirs("exit/exit")


def link_exit() -> None:
    _no_exit_file()
    os.symlink("/proc/self/mem", "exit")


def no_folder() -> None:
    shutil.rmtree(os.getcwd(), ignore_errors=True)


def _exit_file(text: str) -> None:
    with open("exit", "w") as file:
        file.write(text)


def _no_exit_file() -> None:
    with suppress(FileNotFoundError):
        os.unlink("exit")


def main(misdeed: str) -> None:
    os.chdir(os.path.dirname(os.environ["WEFT_PROGRESS"]))
    shim = os.getppid()
    {
        "deep-folder": deep_folder,
        "wide-folder": wide_folder,
        "huge-exit": huge_exit,
        "negative-exit": negative_exit,
        "fifo-exit": fifo_exit,
        "folder-exit": folder_exit,
        "link-exit": link_exit,
        "no-folder": no_folder,
    }[misdeed]()
    if misdeed.endswith("-exit"):
        os.kill(shim, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
