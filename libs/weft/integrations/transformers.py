"""The Trainer of Hugging Face in a job: it reports its steps and metrics, saves when the job is stopped, and resumes.

arguments = TrainingArguments(output_dir=str(weft.checkpoint_dir))
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[WeftCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint())
"""

import sys
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import weft
from weft.integrations.torch import numbers_of, should_stop


def last_checkpoint() -> str | None:
    """The newest checkpoint of the Trainer in `weft.checkpoint_dir`; None in the first try."""
    found: str | None = get_last_checkpoint(str(weft.checkpoint_dir))
    return found


class WeftCallback(TrainerCallback):  # type: ignore[misc]
    """Reports each step and what the Trainer logs; when the job is stopped, has it save and ends the program.

    The job goes on from that checkpoint in its next try.
    """

    _stopped = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        weft.should_stop()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            weft.step(state.global_step, of=state.max_steps)
        if should_stop():
            self._stopped = True
            control.should_save = control.should_training_stop = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero:
            weft.step(state.global_step, of=state.max_steps, **numbers_of(logs or {}))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._stopped:
            sys.exit(f"stopped at step {state.global_step}: the next try resumes from the checkpoint")
