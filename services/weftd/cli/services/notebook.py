"""`weft notebook`: JupyterLab as a job, on a GPU, a share of one, or none; prints its URL once it answers.

Its way in is the router of services, for which the URL has a one-time code; so JupyterLab asks for no token. An editor,
or another Jupyter (--gateway-url), runs its kernels with the URL without the code, and your token. The job needs the
program `jupyter`: of this shell's PATH if the node has it at the same place, else of the node's own PATH, or of the
--image.
"""

import argparse
import asyncio
import os
import shutil
from typing import Any

import msgspec

from weft.client import Client, Refused
from weft.client.failure import last_words
from weft.client.place import PATIENT_SECONDS
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.job import JobState
from weft.domain.spec import JobSpec
from weft.messages.http import JobView, Submitted
from weft.messages.http.services import EndpointsView
from weftd.cli import connection, page
from weftd.cli.attachments import env_along, env_option, secret_files_along, secret_option, secrets_along, venv_option
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean, span
from weftd.cli.jobs.sync import pack, store, sync_option
from weftd.cli.jobs.wait import seconds
from weftd.cli.rendering.jobs import failure_text
from weftd.cli.services.endpoints import address
from weftd.cli.spec import MODEL_HELP, models_of, option_of, volume_of

LOOK_SECONDS = 0.5
WAIT_SECONDS_MAX = 600.0
NOT_FOUND = 127  # what a shell reports for a program that is not there
PORT = 8888  # in a container

# $1: jupyter as the submitting shell has it; $2: the address to listen at, empty: by where the node is reached.
# A node that is reached on loopback alone needs no more; another one is reached from its routers.
SCRIPT = """
jupyter=$1 ip=$2
[ -n "$jupyter" ] && [ -x "$jupyter" ] || jupyter=$(command -v jupyter) || {
  echo "weft notebook: there is no jupyter here: PATH is $PATH" >&2
  exit 127
}
if [ -z "$ip" ]; then
  case "${WEFT_ADDRESS:-127.0.0.1}" in 127.*|localhost|::1) ip=127.0.0.1 ;; *) ip=0.0.0.0 ;; esac
fi
config=${WEFT_PROGRESS%/*}
if [ -n "$config" ] && printf '%s' 'from jupyter_server.auth.identity import PasswordIdentityProvider


class BehindRouter(PasswordIdentityProvider):
    # The router of Weft has checked the token of a request, and says how it came: by a cookie, then a page of another
    # site could have sent it, and the XSRF cookie is needed as ever; or by a token, which no such page has. Without the
    # router (`weft port-forward`), a request that no browser sent needs no XSRF cookie either.
    def is_token_authenticated(self, handler):
        handler.current_user
        headers = handler.request.headers
        by = headers.get("X-Weft-Auth")
        if by:
            return by == "token"
        return not any(headers.get(name) for name in ("Origin", "Referer", "Cookie", "Sec-Fetch-Site"))


c.ServerApp.identity_provider_class = BehindRouter
' >"$config/jupyter_server_config.py"; then
  export JUPYTER_CONFIG_PATH="$config${JUPYTER_CONFIG_PATH:+:$JUPYTER_CONFIG_PATH}"
fi
exec "$jupyter" lab --no-browser --allow-root --ip="$ip" --port="$WEFT_PORT" --ServerApp.port_retries=0 \\
  --ServerApp.base_url="$WEFT_SERVICE_PATH" --IdentityProvider.token= --ServerApp.allow_remote_access=True
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "notebook",
        help="start JupyterLab as a job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--name", dest="job_name", metavar="NAME", default="notebook", help="name of the job (default: notebook)"
    )
    parser.add_argument("--image", metavar="I", help="container image with jupyter (default: a process of the node)")
    parser.add_argument("--gpus", type=int, metavar="N", help="whole GPUs (default: 0)")
    parser.add_argument("--gpu-model", metavar="M", help=MODEL_HELP)
    parser.add_argument(
        "--share", type=float, metavar="PART", help="part of a GPU's time, such as 0.25; needs --gpu-memory"
    )
    parser.add_argument(
        "--gpu-memory", metavar="SIZE", help="memory of its share, or minimum memory of each whole GPU, such as 8GiB"
    )
    parser.add_argument("--cpus", type=float, metavar="N", help="CPU cores (default: 1)")
    parser.add_argument("--memory", metavar="SIZE", default="2GiB", help="memory (default: 2GiB)")
    parser.add_argument("--workdir", metavar="DIR", help="working directory (default: this folder, or the image's own)")
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="NAME|FOLDER[:TARGET][:ro]",
        help="a volume that nodes offer, or a folder of the node; repeatable",
    )
    env_option(parser)
    venv_option(parser)
    secret_option(parser)
    sync_option(parser)
    parser.add_argument("--time-limit", metavar="TIME", help="stop it after this long, such as 8h")
    parser.add_argument("--priority", type=int, metavar="N", help="higher goes first (default: 0)")
    parser.add_argument("--pool", metavar="P", help="default: default")
    parser.add_argument(
        "--wait",
        type=seconds,
        default=WAIT_SECONDS_MAX,
        metavar="TIME",
        help="maximum wait for its first answer (default: 10m; 0: do not wait)",
    )
    page.notes_option(parser)
    connection.options(parser)
    parser.set_defaults(func=notebook)


async def notebook(args: argparse.Namespace) -> int:
    if args.share is not None and args.gpu_memory is None:
        raise CliError("needs --gpu-memory", field="--share", status=2)
    if args.gpu_memory is not None and args.share is None and not args.gpus:
        raise CliError("needs --gpus or --share", field="--gpu-memory", status=2)
    packed = pack(args.sync) if args.sync is not None else None
    context = None if packed is None else packed.digest
    spec = notebook_spec(args, cwd=os.getcwd(), jupyter=shutil.which("jupyter") or "", context=context)
    async with connection.connected(args, patience=PATIENT_SECONDS) as client:
        if packed is not None:
            await store(client, packed)
        try:
            submitted = await client.submit(spec)
        except Refused as error:
            raise CliError(error.reason, field=option_of(error.field)) from error
        page.notes_on(args, submitted.notes)
        url = await address(client, await _answering(client, submitted, args.wait))
    page.answered(args, {"id": submitted.id, "url": url}, url)
    page.note(f"{submitted.name}: `weft logs -f {submitted.id}` follows it, `weft cancel {submitted.id}` ends it")
    return 0


def notebook_spec(args: argparse.Namespace, *, cwd: str, jupyter: str, context: str | None = None) -> JobSpec:
    """The job that these options ask for; `jupyter`: the program as this shell finds it; `context`: the digest of
    packed files. Raises `CliError`."""
    share = None if args.share is None else {"request": args.share, "memory": args.gpu_memory}
    worker = {"gpus": args.gpus, "share": share, "cpus": args.cpus, "memory": args.memory}
    asked: dict[str, Any] = {
        "name": args.job_name,
        "kind": "notebook",
        "image": args.image,
        "command": [
            "/bin/sh",
            "-c",
            SCRIPT,
            "notebook",
            "" if args.image else jupyter,
            "0.0.0.0" if args.image else "",
        ],
        "workdir": args.workdir or (None if args.image or context else cwd),
        "context": context,
        "env": env_along(args, os.environ, contained=args.image is not None),
        "secrets": secrets_along(args) or None,
        "secret_files": secret_files_along(args) or None,
        "volumes": [volume_of(text, cwd) for text in args.volume],
        "roles": {"worker": _given(worker)},
        "service": {"port": PORT, "path": "/s/{job}/"},
        "time_limit": args.time_limit,
        "priority": args.priority,
        "pool": args.pool,
        "gpu_model": models_of(args.gpu_model),
        "gpu_memory": args.gpu_memory if share is None else None,
    }
    try:
        return decode_spec(msgspec.json.encode(_given(asked)))
    except SpecError as error:
        raise CliError(error.reason, field=option_of(error.field)) from error


def _given(asked: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in asked.items() if value is not None}


async def _answering(client: Client, submitted: Submitted, wait: float) -> EndpointsView:
    """The endpoints of the notebook once it takes requests. Raises `CliError` if it ends before, or `wait` is over."""
    told = ""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    while True:
        view = await client.endpoints(submitted.id)
        if any(each.ready for each in view.endpoints) or not wait:
            return view
        job = await client.job(submitted.id)
        if job.state.final:
            raise CliError(await _why_ended(client, job))
        if loop.time() >= until:
            why = _state(job)
            raise CliError(
                f"{job.name} ({job.id}) did not answer within {span(wait)}: {why}; `weft open {job.id}` prints its URL"
            )
        if told != (told := _state(job)):
            page.note(told)
        await asyncio.sleep(LOOK_SECONDS)


def _state(job: JobView) -> str:
    if job.state is JobState.QUEUED and job.waiting_for is not None:
        return f"it waits: {job.waiting_for.sentence or job.waiting_for.code}"
    return f"it is {job.state}"


async def _why_ended(client: Client, job: JobView) -> str:
    if job.exit_code == NOT_FOUND:
        return (
            f"there is no jupyter in the environment of the job {job.id}: install it on the node (pip install"
            " jupyterlab) where its PATH, or this shell's, finds it; or name an --image that has it"
        )
    words = await last_words(client, job)
    last = "".join(f"\n  {clean(line)}" for line in words.lines) if words is not None else ""
    return f"{job.name} ({job.id}) {job.state}: {failure_text(job) or 'it ended'}{last}"
