"""PyTorch in a job: stop together, and save and load checkpoints, with one process or with many.

state = load() or {"step": 0}
for step in range(state["step"], 1000):
    ...
    if should_stop() or step % 100 == 99:
        save({"step": step + 1, "model": model.state_dict()})
    if should_stop(): sys.exit("stopped")
"""

import math
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

import weft

NAME = "checkpoint.pt"


def should_stop() -> bool:
    """`weft.should_stop()` of any process of the group: all of them get the same answer.

    With several processes each calls it after the same step, which sends one number among them. The first call is in
    the main thread.
    """
    stop = weft.should_stop()
    if not _is_group():
        return stop
    on = torch.device("cuda") if distributed.get_backend() == "nccl" else torch.device("cpu")
    asked = torch.tensor([int(stop)], device=on)
    distributed.all_reduce(asked, op=distributed.ReduceOp.MAX)
    return bool(asked.item())


def save(state: Mapping[str, Any], name: str = NAME) -> None:
    """Write the checkpoint into `weft.checkpoint_dir`, whole or not at all: process 0 of the group does, for all."""
    if _rank() == 0:
        path = weft.checkpoint_dir / name
        unfinished = path.with_name(f".{path.name}.unfinished")
        torch.save(dict(state), unfinished)
        os.replace(unfinished, path)


def load(name: str = NAME) -> dict[str, Any] | None:
    """The checkpoint that `save` wrote, on the CPU; None if there is none.

    Process 0 of the group reads it and sends it to the others: its node alone needs to have it.
    """
    path = weft.checkpoint_dir / name
    state = torch.load(path, map_location="cpu") if _rank() == 0 and path.exists() else None
    if _is_group():
        sent = [state]
        distributed.broadcast_object_list(sent, src=0)
        (state,) = sent
    return state


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among the metrics, by names that `weft.step` takes: `train/loss` is `train_loss`."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        word = re.sub(r"^(?=[0-9])|[^A-Za-z0-9_]+", "_", name, flags=re.ASCII)
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):  # a text, or a tensor with several numbers
            continue
        if math.isfinite(number) and word not in ("step", "steps"):
            found[word] = number
    return found


def _is_group() -> bool:
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def _rank() -> int:
    return int(distributed.get_rank()) if _is_group() else 0
