"""Trains a tiny model with Lightning on `--devices` × `--nodes` ranks of the CPU."""

import argparse
import sys

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Tiny(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--nodes", type=int, default=1)
args = parser.parse_args()
seed_everything(1)
data = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=4)
model = Tiny()
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=args.devices,
    num_nodes=args.nodes,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data)
total = sum(float(part.detach().sum()) for part in model.parameters())
sys.stdout.write(
    f"rank {trainer.global_rank} of {trainer.world_size} weights {total:.6f}\n"
)  # in one piece: ranks share the pipe
