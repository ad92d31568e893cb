"""Trains a tiny BERT with the Trainer of Hugging Face on the CPU."""

import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8) + index, "labels": torch.tensor(index % 2)}


config = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
)
torch.manual_seed(1)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=3,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Rows())
    trainer.train()
    total = sum(float(part.detach().sum()) for part in trainer.model.parameters())
    sys.stdout.write(
        f"rank {arguments.process_index} of {arguments.world_size} weights {total:.6f}\n"
    )  # in one piece: ranks share the pipe
