"""`weft bench-gpu`: measure how fast GPUs are. A benchmark is a job that gives way to all others; its result becomes a
score if the scorer trusts the tenant."""

import argparse
import asyncio

from weft.client import Client
from weft.client.place import PATIENT_SECONDS
from weft.domain.cluster import Gpu
from weft.domain.spec import JobSpec
from weft.domain.text import plural
from weft.messages.http import GpuView, NodeView, Submitted
from weft.samples.benchmark_job import EMULATED_SECONDS, SECONDS, benchmark_spec
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import indexes
from weftd.cli.jobs.following import status_of
from weftd.cli.rendering.benchmarks import Benched, benchmarks_table

SECONDS_MAX = 3600.0

Place = tuple[NodeView, GpuView]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("bench-gpu", help="measure how fast GPUs are", description=__doc__)
    parser.add_argument(
        "node", nargs="?", metavar="NODE", help="measure idle GPUs of this node (default: every idle GPU)"
    )
    parser.add_argument("gpu", nargs="?", type=int, metavar="GPU", help="index of the only GPU to measure, idle or not")
    parser.add_argument(
        "--seconds",
        type=_seconds,
        metavar="N",
        help=f"seconds of steady computing (default: {SECONDS:g}; where a GPU is emulated, {EMULATED_SECONDS:g})",
    )
    parser.add_argument(
        "--wait", action="store_true", help="measure the GPUs of a node one after another, and show the results"
    )
    parser.add_argument("--image", help="Weft's own image, if jobs run in containers")
    connection.options(parser)
    parser.set_defaults(func=bench_gpu)


async def bench_gpu(args: argparse.Namespace) -> int:
    async with connection.connected(args, patience=PATIENT_SECONDS if args.wait else None) as client:
        places = chosen((await client.nodes()).nodes, args.node, args.gpu)
        specs = [(place, spec_for(*place, seconds=args.seconds, image=args.image)) for place in places]
        if args.wait:
            return await _measure(client, specs, args)
        for (node, gpu), spec in specs:
            _say(node, gpu, await client.submit(spec), args)
    page.note("measures all GPUs of a node at once, which may make them slower; --wait measures one after another")
    return 0


def chosen(nodes: tuple[NodeView, ...], node_id: str | None, index: int | None) -> list[Place]:
    """The GPUs to measure. Raises `CliError`."""
    if node_id is None:
        idle = [(node, gpu) for node in nodes for gpu in _idle(node)]
        if not idle:
            raise CliError("no GPU is idle" if any(node.gpus for node in nodes) else "there are no GPUs")
        return idle
    node = next((node for node in nodes if node.id == node_id), None)
    if node is None:
        raise CliError(f"there is no node {node_id}")
    if not node.ready or node.drained:
        raise CliError(f"{node_id} is {'drained' if node.ready else 'lost'} and starts no jobs")
    if index is None:
        if not (found := [(node, gpu) for gpu in _idle(node)]):
            raise CliError(f"no GPU of {node_id} is idle" if node.gpus else f"{node_id} has no GPUs")
        return found
    gpu = next((gpu for gpu in node.gpus if gpu.index == index), None)
    if gpu is None:
        has = f"its GPUs are {indexes(tuple(gpu.index for gpu in node.gpus))}" if node.gpus else "it has none"
        raise CliError(f"{node_id} has no GPU {index}; {has}")
    return [(node, gpu)]


def _idle(node: NodeView) -> list[GpuView]:
    return [gpu for gpu in node.gpus if gpu.held_by is None] if node.ready and not node.drained else []


def spec_for(node: NodeView, gpu: GpuView, *, seconds: float | None, image: str | None = None) -> JobSpec:
    """The benchmark of a GPU. Raises `CliError` if its node runs jobs in containers, and no image is given."""
    contained = node.runtime == "docker"
    if contained and not image:
        raise CliError(f"{node.id} runs jobs in containers: name Weft's image with --image")
    return benchmark_spec(
        Gpu(index=gpu.index, uuid=gpu.uuid, model=gpu.model, memory=gpu.memory, emulated=gpu.emulated),
        node_id=node.id,
        pool=node.pool,
        image=image if contained else None,
        driver=gpu.use.driver if gpu.use else "",
        power_limit_watts=gpu.use.power_limit_watts if gpu.use else None,
        seconds=seconds,
    )


async def _measure(client: Client, specs: list[tuple[Place, JobSpec]], args: argparse.Namespace) -> int:
    """Measure nodes concurrently, and the GPUs of each in turn."""
    by_node: dict[str, list[tuple[Place, JobSpec]]] = {}
    for place, spec in specs:
        by_node.setdefault(place[0].id, []).append((place, spec))
    if not args.json:
        page.note(f"measuring {plural(len(specs), 'GPU')} of {plural(len(by_node), 'node')}")
    benched: list[Benched] = []

    async def one_node(asked: list[tuple[Place, JobSpec]]) -> None:
        for (node, gpu), spec in asked:
            submitted = await client.submit(spec)
            if gpu.held_by is not None and not args.json:
                page.note(f"GPU {gpu.index} of {node.id} is held by {gpu.held_by.job_id}: {submitted.id} waits for it")
            job = await client.until_over(submitted.id)
            benched.append(Benched(node_id=node.id, gpu=gpu, job=job))
            if args.json:
                page.json_line(job)

    async with asyncio.TaskGroup() as tasks:
        for asked in by_node.values():
            tasks.create_task(one_node(asked))
    if not args.json:
        page.show(benchmarks_table(benched, page.context()))
    return max(status_of(one.job) for one in benched)


def _say(node: NodeView, gpu: GpuView, submitted: Submitted, args: argparse.Namespace) -> None:
    page.answered(args, submitted, f"{submitted.id} measures GPU {gpu.index} of {node.id}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"expected up to {SECONDS_MAX:g} seconds, got {text}")
    return seconds
