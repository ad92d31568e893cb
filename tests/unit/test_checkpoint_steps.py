"""Which files of a checkpoint folder belong to a step."""

import pytest

from weft.domain.checkpoints import of_step


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", "500"),
        ("500", "500"),
        ("epoch=3-step=500.ckpt", "500"),
        ("step_00500.h5", "500"),
        ("model.0500", "500"),
        ("last", "last"),
        ("last.ckpt", "last.ckpt"),
        ("anything", ""),
    ],
)
def test_a_name_belongs_to_its_last_number_and_to_itself(name: str, step: str) -> None:
    assert of_step(name, step)


@pytest.mark.parametrize(
    ("name", "step"), [("checkpoint-5000", "500"), ("step-500-shard-3", "500"), ("last.ckpt", "last"), ("v5.pt", "500")]
)
def test_other_names_do_not(name: str, step: str) -> None:
    assert not of_step(name, step)
