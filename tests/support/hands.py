"""An executor's hands for a test that gives orders itself: nothing is fetched, and every run is permitted."""

import asyncio
from collections.abc import Awaitable, Callable

from weft.messages.nodes import StartRun
from weftd.executor.actions import Actions
from weftd.executor.runs import Runtime
from weftd.executor.thinking.core import Action, Resize


async def _as_it_is(order: StartRun) -> StartRun:
    return order


async def _nothing(_: StartRun) -> None:
    pass


async def _all_well(_: StartRun) -> str:
    return ""


def made_hands(
    runtime: Runtime,
    tasks: asyncio.TaskGroup,
    *,
    done: Callable[[], None],
    failed: Callable[[Action], None] = lambda _: None,
    with_secrets: Callable[[StartRun], Awaitable[StartRun]] = _as_it_is,
    not_applied: Callable[[Resize, str], None] = lambda _, __: None,
    preflight: Callable[[StartRun], Awaitable[str]] = _all_well,
) -> Actions:
    return Actions(
        runtime,
        tasks,
        with_secrets=with_secrets,
        preflight=preflight,
        bring_files=_nothing,
        bring_checkpoint=_nothing,
        bring_data=_as_it_is,
        bring_image=_as_it_is,
        permits=lambda _: True,
        done=lambda _: done(),
        failed=failed,
        not_applied=not_applied,
        shown=lambda _, __: None,
    )
