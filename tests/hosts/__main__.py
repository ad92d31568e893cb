"""`make hosts N=3`: hosts to try things on, each with a Docker engine of its own, until Ctrl-C."""

import argparse
import shlex
import signal
import sys

from tests.hosts.host import LaboratoryError
from tests.hosts.laboratory import HOSTS_MAX, Laboratory, why_no_laboratory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__)
    parser.add_argument("--count", type=int, default=3, help="number of hosts (default: 3)")
    parser.add_argument(
        "--images",
        nargs="*",
        default=[],
        metavar="IMAGE",
        help="images of this machine's engine to load into each host",
    )
    asked = parser.parse_args()
    if not 1 <= asked.count <= HOSTS_MAX:
        parser.error(f"--count: between 1 and {HOSTS_MAX}, not {asked.count}")
    if why := why_no_laboratory():
        print(f"no laboratory of hosts here: {why}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with Laboratory(asked.count) as laboratory:
            if asked.images:
                laboratory.load(asked.images)
            _tell(laboratory)
            while True:
                signal.pause()
    except KeyboardInterrupt:
        print("\nall hosts are off, and nothing of them is left")
        return 0
    except LaboratoryError as error:
        print(f"hosts: {error}", file=sys.stderr)
        return 1


def _tell(laboratory: Laboratory) -> None:
    print(f"{len(laboratory.hosts)} hosts are up; this machine is {laboratory.address} to them. A shell on each:\n")
    for host in laboratory.hosts:
        shell = (
            "env",
            f"HOME={host.folder}/home",
            "DOCKER_HOST=unix:///run/docker.sock",
            "bash",
            "-c",
            "cd; exec bash",
        )
        print(f"  {host.name}  {host.address}\n    sudo {shlex.join(host.inside(*shell))}")
    print("\ndocs/hosts.md makes a cluster of them. Their disks are removed at the end.")
    print("Ctrl-C switches all of them off.", flush=True)


if __name__ == "__main__":
    sys.exit(main())
