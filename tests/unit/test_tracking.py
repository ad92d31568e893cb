"""The pages of experiment trackers in a log."""

import pytest

from weft.client.tracking import PAGES_MAX, pages_in

PAGE = "https://wandb.ai/ada/mnist/runs/ab12cd"


@pytest.mark.parametrize(
    ("line", "tracker", "url"),
    [
        (f"\x1b[34m\x1b[1mwandb\x1b[0m: 🚀 View run at \x1b[34m\x1b[4m{PAGE}\x1b[0m", "W&B", PAGE),
        (f"wandb: 🚀 View run quick-sun-3 at: {PAGE}", "W&B", PAGE),
        (
            "🏃 View run able-fox at: http://mlflow:5000/#/experiments/1/runs/0f",
            "MLflow",
            "http://mlflow:5000/#/experiments/1/runs/0f",
        ),
    ],
)
def test_the_page_of_a_run_is_found(line: str, tracker: str, url: str) -> None:
    (page,) = pages_in(f"begins\n{line}\n{line}\nstep 1\n".encode())
    assert (page.tracker, page.url) == (tracker, url)


@pytest.mark.parametrize(
    "line",
    [
        "see https://wandb.ai/ada",
        "wandb: ⭐️ View project at https://wandb.ai/ada/mnist",
        "wandb: View run at javascript:alert(1)",
        f"wandb: View run at https://{'a' * 400}",
        "wandb: View run at https://a b",
    ],
)
def test_other_addresses_are_left_alone(line: str) -> None:
    assert pages_in(line.encode()) == ()


def test_a_log_names_a_few_pages_at_most() -> None:
    log = "\n".join(f"wandb: View run at https://wandb.ai/{number}" for number in range(100))
    assert len(pages_in(log.encode())) == PAGES_MAX
