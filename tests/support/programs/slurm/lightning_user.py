"""A training of a person who uses Lightning's automatic requeue on Slurm: its folder is the argument."""

import sys
import time
from pathlib import Path

import lightning
import torch

folder = Path(sys.argv[1])


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters())

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def on_train_start(self) -> None:
        if self.trainer.global_step > 0:
            (folder / "went-on-at").write_text(str(self.trainer.global_step))
            self.trainer.should_stop = True

    def on_train_batch_end(self, *_: object) -> None:
        (folder / "trains").touch()
        time.sleep(0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    default_root_dir=folder,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
    logger=False,
    max_epochs=10_000,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.zeros(8, 1)))
