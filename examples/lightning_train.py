"""Training with Lightning, which saves when it is stopped and goes on from there.

weft run --venv --gpus 1 --checkpoints stop -- python examples/lightning_train.py
"""

import sys

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from weft.integrations.lightning import WeftCallback, last_checkpoint

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300


class Tiny(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    seed_everything(1)
    data = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=4)
    trainer = Trainer(
        max_steps=STEPS,
        callbacks=[WeftCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if (found := last_checkpoint()) is not None:
        print("resumes from", found, flush=True)
    trainer.fit(Tiny(), data, ckpt_path=found)
    print(f"{trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
