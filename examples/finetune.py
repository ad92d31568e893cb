"""Fine-tuning with the Trainer of Hugging Face, which saves when it is stopped and goes on from there.

The model is a tiny BERT that is made on the spot; `from_pretrained` takes its place.

weft run --venv --gpus 1 --checkpoints stop -- python examples/finetune.py
"""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import weft
from weft.integrations.transformers import WeftCallback, last_checkpoint

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
TINY = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.arange(8) + index, "labels": torch.tensor(index % 2)}


def main() -> None:
    torch.manual_seed(1)
    arguments = TrainingArguments(
        output_dir=str(weft.checkpoint_dir),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        logging_steps=10,
        save_steps=100,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(TINY), args=arguments, train_dataset=Rows(), callbacks=[WeftCallback()]
    )
    if (found := last_checkpoint()) is not None:
        print("resumes from", found, flush=True)
    trainer.train(resume_from_checkpoint=found)
    trainer.save_model(str(weft.results_dir / "model"))
    print(f"{trainer.state.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
