"""`weft serve`: a language model as a service, by a recipe for its engine.

--print writes the job file instead: edit it, and submit it with `weft submit`. Clients reach the model at the router's
/v1, with your token as `api_key`. Triton speaks its own protocol: it is reached at its own address (`weft open`).
"""

import argparse
import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from weft.client import Refused
from weft.client.place import PATIENT_SECONDS
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs.submitted import submitted_line
from weftd.cli.migration.written import lines_of, name_of

PORT = 8000
# The model is fetched before the port of the service opens, so that no request comes before it is there.
OLLAMA = """\
ollama serve & server=$!
until ollama list >/dev/null 2>&1; do kill -0 $server || exit 1; sleep 0.2; done
ollama pull "$1" || exit 1
kill $server; wait $server
OLLAMA_HOST=0.0.0.0:$2 exec ollama serve
"""


class Recipe(Struct, frozen=True):
    """How an engine is started with a model. `concurrency`: requests that it takes at once; `openai`: it speaks
    OpenAI's API; `gpus`: needed by its image."""

    image: str
    entrypoint: tuple[str, ...]
    arguments: Callable[[str, str], tuple[str, ...]]
    ready: str
    concurrency: int
    openai: bool = True
    gpus: int = 1
    adapters: tuple[str, ...] = ()  # arguments with which it loads adapters while it runs; none: it cannot
    adapters_env: tuple[str, ...] = ()


RECIPES = {
    "vllm": Recipe(
        "vllm/vllm-openai:latest",
        ("vllm", "serve"),
        lambda model, name: (model, "--served-model-name", name, "--host", "0.0.0.0", "--port", str(PORT)),
        "/health",
        64,
        adapters=("--enable-lora",),
        adapters_env=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",),
    ),
    "sglang": Recipe(
        "lmsysorg/sglang:latest",
        ("python3", "-m", "sglang.launch_server"),
        lambda model, name: (
            *("--model-path", model, "--served-model-name", name, "--host", "0.0.0.0", "--port", str(PORT)),
            "--enable-metrics",
        ),
        "/health",
        64,
    ),
    "llama.cpp": Recipe(
        "ghcr.io/ggml-org/llama.cpp:server",
        ("/app/llama-server",),
        lambda model, name: (
            *("-m" if model.endswith(".gguf") else "-hf", model, "--alias", name),
            *("--host", "0.0.0.0", "--port", str(PORT), "--parallel", "4", "--metrics"),
        ),
        "/health",
        4,
        gpus=0,
    ),
    "ollama": Recipe(
        "ollama/ollama:latest",
        ("/bin/sh", "-c", OLLAMA, "ollama"),
        lambda model, name: (model, str(PORT)),
        "/api/version",
        4,
    ),
    "tei": Recipe(
        "ghcr.io/huggingface/text-embeddings-inference:cpu-latest",
        ("text-embeddings-router",),
        lambda model, name: ("--model-id", model, "--hostname", "0.0.0.0", "--port", str(PORT)),
        "/health",
        128,
        gpus=0,
    ),
    "triton": Recipe(
        "nvcr.io/nvidia/tritonserver:25.08-py3",
        ("tritonserver",),
        lambda model, name: (f"--model-repository={model}", f"--http-port={PORT}"),
        "/v2/health/ready",
        64,
        openai=False,
    ),
}

OPTIONS = {
    "name": "--name",
    "image": "--image",
    "service.model.name": "MODEL",
    "service.model.adapters": "--adapter",
    "roles.worker.gpus": "--gpus",
    "roles.worker.memory": "--memory",
    "roles.worker.replicas.max": "--max",
}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "serve",
        help="a language model as a service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("engine", choices=list(RECIPES), metavar="ENGINE", help=", ".join(RECIPES))
    parser.add_argument(
        "model", metavar="MODEL", help="name of the model at the engine: a repository, or a path in the container"
    )
    parser.add_argument("--print", dest="prints", action="store_true", help="print the job file, and submit nothing")
    parser.add_argument("--name", dest="job_name", metavar="NAME", help="name of the job (default: after the model)")
    parser.add_argument("--as", dest="served", metavar="NAME", help="name of the model for clients (default: MODEL)")
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="adapter (LoRA) that clients name as a model; repeat it",
    )
    parser.add_argument("--image", metavar="I", help="container image (default: the engine's own)")
    parser.add_argument("--gpus", type=int, metavar="N", help="whole GPUs of each replica (default: by the engine)")
    parser.add_argument("--memory", metavar="SIZE", default="16GiB", help="memory of each replica (default: 16GiB)")
    parser.add_argument("--max", type=int, default=1, metavar="N", help="replicas at most (default: 1)")
    page.notes_option(parser)
    connection.options(parser)
    parser.set_defaults(func=serve)


async def serve(args: argparse.Namespace) -> int:
    text = job_file(args)
    if args.prints:
        page.text(text.encode())
        return 0
    async with connection.connected(args, patience=PATIENT_SECONDS) as client:
        try:
            submitted = await client.submit(text.encode(), content="yaml")
        except Refused as error:
            raise CliError(error.reason, field=_option(error.field)) from error
    page.notes_on(args, submitted.notes)
    page.answered(args, submitted, submitted.id)
    page.note(submitted_line(submitted))
    return 0


def _option(field: str) -> str:
    """The option that sets a field of the job file, or a value in it."""
    return next((option for name, option in OPTIONS.items() if f"{field}.".startswith(f"{name}.")), field)


def _adapters(args: argparse.Namespace, recipe: Recipe) -> dict[str, str]:
    if not recipe.adapters:
        able = ", ".join(name for name, one in RECIPES.items() if one.adapters)
        raise CliError(f"{args.engine} loads no adapters by their names here: {able} does", field="--adapter", status=2)
    found: dict[str, str] = {}
    for text in args.adapter:
        name, given, source = text.partition("=")
        if not (name and given and source) or name in found:
            wrong = "is named twice" if name in found else "is not NAME=SOURCE, such as sql=/adapters/sql"
            raise CliError(f"{clean(text[:100])} {wrong}", field="--adapter", status=2)
        found[name] = source
    return found


def job_file(args: argparse.Namespace) -> str:
    """The YAML of the job that these options ask for. Raises `CliError`."""
    recipe = RECIPES[args.engine]
    served = args.served or args.model
    if args.served and args.engine in ("ollama", "tei"):
        raise CliError(f"{args.engine} serves a model under its own name only", field="--as", status=2)
    gpus = recipe.gpus if args.gpus is None else args.gpus
    service: dict[str, Any] = {"port": PORT, "ready": recipe.ready, "concurrency": recipe.concurrency}
    service |= {"timeout": "10m", "start": "30m"}
    if recipe.openai:
        service["model"] = {"name": served}
    arguments = recipe.arguments(args.model, served)
    if args.adapter:
        service["model"] = {"name": served, "adapters": _adapters(args, recipe)}
        arguments = (*arguments, *recipe.adapters)
    job: dict[str, Any] = {
        "name": args.job_name or name_of(re.split(r"[/:]", args.model.rstrip("/"))[-1], "model"),
        "kind": "inference",
        "image": args.image or recipe.image,
        "entrypoint": list(recipe.entrypoint),
        "command": list(arguments),
        **({"env": dict.fromkeys(recipe.adapters_env, "1")} if args.adapter else {}),
        "roles": {
            "worker": {
                "replicas": {"min": 0, "want": 1, "max": args.max},
                **({"gpus": gpus} if gpus else {}),
                "cpus": 4,
                "memory": args.memory,
            }
        },
        "service": service,
    }
    head = f"# A model served by {args.engine}: `weft submit FILE`. Every field: docs/job-file.md\n"
    text = head + "\n".join(lines_of(job)) + "\n"
    try:
        decode_spec(text.encode(), content="yaml")
    except SpecError as error:
        raise CliError(error.reason, field=_option(error.field), status=2) from error
    return text
