"""`weft run`: a command as a job. Everything after `--` is the command, unchanged.

The job does not get the environment of this shell: no virtual environment, not its PATH. Take the virtual environment
along with --venv and variables with -e NAME, name the interpreter by its path, or use an --image.
"""

import argparse
import os
import stat
import sys
from typing import TextIO

from weft.client import Refused
from weft.client.place import PATIENT_SECONDS
from weft.domain.schedules import Overlap
from weft.domain.spec import Kind, ResizeHow, TuningMode
from weftd.cli import connection, page
from weftd.cli.attachments import env_option, secret_option, venv_option
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.submitted import follow_submitted, submitted_line
from weftd.cli.jobs.sync import pack, store, sync_option
from weftd.cli.spec import MODEL_HELP, option_of, spec_of

_EXAMPLES = """examples:
  weft run --gpus 1 -- "$(which python3)" train.py --epochs 10
  weft run --venv -e HF_TOKEN --gpus 1 -- python train.py
  weft run --sync . --gpus 1 -- python3 train.py
  weft run --array 1-40%%8 -- ./simulate.sh
  weft run --after ok:train --gpus 1 -- python3 evaluate.py
  weft run --schedule "0 3 * * *" --timezone Europe/Berlin -- ./nightly.sh
  weft run --gpus 2 --replicas 4 --follow -- torchrun train.py
  weft run --kind inference --service-port 8000 --ready /healthz --replicas-min 0 --replicas-max 4 -- ./serve
  weft run --image pytorch:2.9 --gpus 1 --volume /data/sets:/data:ro -- python /data/train.py
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "run",
        help="run a command as a job",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="weft run [options] -- command ...",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="command to run; optional with --image")
    _what(parser)
    _needs(parser)
    _how(parser)
    _many(parser)
    _recurs(parser)
    _serves(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="stream its log and exit with its status")
    parser.add_argument("--key", help="idempotency key: submitting again with it returns the same job")
    page.notes_option(parser)
    connection.options(parser)
    parser.set_defaults(func=run)


def _what(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what runs")
    group.add_argument("--image", metavar="I", help="container image (default: a process of the node)")
    group.add_argument(
        "--name", dest="job_name", metavar="NAME", help="name of the job (default: that of the script or program)"
    )
    group.add_argument("--kind", choices=[kind.value for kind in Kind], help="kind of the job (default: training)")
    env_option(group)
    venv_option(group)
    secret_option(group)
    sync_option(group)
    group.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="NAME|FOLDER[:TARGET][:ro]",
        help="a volume that nodes offer, or a folder of the node; repeatable",
    )
    group.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="PATH=s3://BUCKET/PATH",
        help="copy objects to the node before the start; the job reads them at PATH; repeatable",
    )
    group.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="PATH=s3://BUCKET/PATH",
        help="upload the files that the job writes at PATH to this place; repeatable",
    )
    group.add_argument("--object-store", metavar="NAME", help="secret with the keys of the object store")
    group.add_argument("--workdir", metavar="DIR", help="working directory (default: this folder, or the image's own)")
    group.add_argument("--label", action="append", default=[], metavar="K=V", help="repeat it")


def _needs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("resources of each replica")
    group.add_argument("--gpus", type=int, metavar="N", help="whole GPUs (default: 0)")
    group.add_argument("--gpu-model", metavar="M", help=MODEL_HELP)
    group.add_argument("--gpu-memory", metavar="SIZE", help="minimum memory of each GPU, such as 40GiB")
    group.add_argument(
        "--where", metavar="EXPRESSION", help="run only on nodes whose labels match: zone == 'a' && nvlink"
    )
    group.add_argument(
        "--tolerate",
        action="append",
        default=[],
        metavar="K[=V]",
        help="start on nodes with this taint too; repeatable",
    )
    group.add_argument("--replicas", type=int, metavar="N", help="number of replicas; they start together (default: 1)")
    group.add_argument("--replicas-min", type=int, metavar="N", help="minimum number of replicas that starts the job")
    group.add_argument(
        "--replicas-max", type=int, metavar="N", help="maximum number of replicas it may grow to: see --resize"
    )
    group.add_argument("--cpus", type=float, metavar="N", help="CPU cores (default: 1)")
    group.add_argument("--memory", metavar="SIZE", help="memory, such as 16GiB (default: 1GiB)")
    group.add_argument("--shm", metavar="SIZE", help="size of /dev/shm (default: half of the memory)")


def _how(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduling")
    group.add_argument("--priority", type=int, metavar="N", help="-1000 to 1000; higher goes first (default: 0)")
    group.add_argument("--no-preempt", action="store_true", help="never preempt the job")
    group.add_argument("--grace", metavar="TIME", help="time between SIGTERM and SIGKILL (default: 30s)")
    group.add_argument("--time-limit", metavar="TIME", help="stop it after this long, such as 1h30m")
    group.add_argument("--retries", type=int, metavar="N", help="number of further tries after a failure (default: 0)")
    group.add_argument(
        "--resize", choices=[how.value for how in ResizeHow], help="method to change its size while it runs"
    )
    group.add_argument(
        "--checkpoints", metavar="TIME", help="interval of its checkpoints, such as 10m; stop: only when it is stopped"
    )
    group.add_argument(
        "--from-checkpoint",
        metavar="JOB[:STEP]",
        help="start with the checkpoint of another job, or with that of a step, such as train:500",
    )
    group.add_argument(
        "--progress",
        metavar="PATTERN",
        help="pattern of the steps in its output, such as `epoch (?P<step>[0-9]+)`; default: step=7 in $WEFT_PROGRESS",
    )
    group.add_argument(
        "--tuning",
        choices=[mode.value for mode in TuningMode],
        help="adjust CPU, memory and network to its use, or only advise changes (default: the pool's)",
    )
    group.add_argument("--pool", metavar="P", help="default: default")


def _many(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("arrays, and jobs that wait for others")
    group.add_argument("--array", metavar="I", help="many jobs: indices such as 0-9,20-40:5, and %%N for N at once")
    group.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="[WHEN:]JOB",
        help="start after this job or array: WHEN is ok (the default), any, not_ok or started; each:WHEN:ARRAY is for"
        " the element with the same index; repeatable",
    )
    group.add_argument("--singleton", action="store_true", help="start after every earlier job of this name")


def _recurs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a job that runs again and again (weft schedules)")
    group.add_argument(
        "--schedule", metavar="TIMES", help='minute, hour, day, month, day of the week, such as "0 3 * * *", or @daily'
    )
    group.add_argument("--timezone", metavar="ZONE", help="zone of these times, such as Europe/Berlin (default: UTC)")
    group.add_argument(
        "--overlap",
        choices=[overlap.value for overlap in Overlap],
        help="act for a run that is due while an earlier run is not over (default: skip)",
    )
    group.add_argument(
        "--start-within", metavar="TIME", help="time after which a late run is left out, such as 10m (default: 1h)"
    )


def _serves(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a service (--kind inference); --replicas-min 0: no replica without requests")
    group.add_argument("--service-port", type=int, metavar="N", help="port on which a container listens (in WEFT_PORT)")
    group.add_argument("--ready", metavar="PATH", help="path that returns 200 once it is ready, such as /healthz")
    group.add_argument("--concurrency", type=int, metavar="N", help="concurrent requests of one replica (default: 100)")
    group.add_argument("--public", action="store_true", help="accept requests without a token")
    group.add_argument("--objective-latency", metavar="TIME", help="time to the first byte of an answer, such as 200ms")
    group.add_argument(
        "--objective-rate", type=float, metavar="N", help="requests per second up to which that latency holds"
    )
    group.add_argument(
        "--objective-percentile", type=float, metavar="N", help="percentile of the requests within it (default: 99)"
    )


async def run(args: argparse.Namespace) -> int:
    if args.json and args.follow:
        raise CliError("a log is no JSON: choose --json or --follow", status=2)
    packed = pack(args.sync) if args.sync is not None else None
    context = None if packed is None else packed.digest
    spec = spec_of(args, cwd=os.getcwd(), environment=os.environ, context=context)
    async with connection.connected(args, patience=PATIENT_SECONDS if args.follow else None) as client:
        if packed is not None:
            await store(client, packed)
        try:
            submitted = await client.submit(spec, key=args.key)
        except Refused as error:
            raise CliError(error.reason, field=option_of(error.field)) from error
        page.answered(args, submitted, submitted.id) if not args.follow else None
        page.notes_on(args, submitted.notes)
        if _ignores_input(args, sys.stdin):
            page.notes_on(args, ["standard input is not passed to the job: it reads nothing there"])
        if args.follow:
            return await follow_submitted(client, submitted)
    page.note(submitted_line(submitted))
    return 0


def _ignores_input(args: argparse.Namespace, stream: TextIO | None) -> bool:
    """Whether something is there to read that the job was probably meant to read: a pipe or file has data, and the
    command is followed or names its standard input."""
    if stream is None or not (args.follow or {"-", "/dev/stdin"}.intersection(args.command)):
        return False
    try:
        stdin = stream.fileno()
        mode = os.fstat(stdin).st_mode
        if stat.S_ISREG(mode):
            return os.fstat(stdin).st_size > os.lseek(stdin, 0, os.SEEK_CUR)
        if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
            return False
        import fcntl  # Windows has neither of the two
        import termios

        waiting = fcntl.ioctl(stdin, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) > 0
    except (ImportError, OSError, ValueError):  # closed, or no file
        return False
