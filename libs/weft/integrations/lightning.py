"""Lightning in a job: the trainer reports its steps and metrics, saves when the job is stopped, and resumes.

trainer = Trainer(callbacks=[WeftCallback()])
trainer.fit(model, data, ckpt_path=last_checkpoint())
"""

import signal
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

import weft
from weft.integrations.torch import numbers_of, should_stop

NAME = "last.ckpt"


def last_checkpoint() -> str | None:
    """The path for `fit(ckpt_path=…)`: what the callback saved in an earlier try; None in the first.

    It is on the node of process 0: with several nodes WEFT_CHECKPOINT_DIR is on a shared file system.
    """
    path = weft.checkpoint_dir / NAME
    return str(path) if path.exists() else None


class WeftCallback(Callback):  # type: ignore[misc]
    """Reports every `every`th step, and saves `last.ckpt` into `weft.checkpoint_dir` when the job is stopped.

    After that the program ends, as Lightning does after SIGTERM, and the job goes on from there in its next try.
    """

    def __init__(self, *, every: int = 1) -> None:
        self._every = every

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weft.should_stop()
        self._handler = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's own handler, set since `on_fit_start`, stops each process where it is, without a checkpoint."""
        signal.signal(signal.SIGTERM, self._handler)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_global_zero and trainer.global_step % self._every == 0:
            most = trainer.estimated_stepping_batches
            of = int(most) if 0 <= most < float("inf") else None
            weft.step(trainer.global_step, of=of, **numbers_of(trainer.callback_metrics))
        if should_stop():
            trainer.save_checkpoint(weft.checkpoint_dir / NAME)  # all processes: it may be in parts
            raise SIGTERMException
