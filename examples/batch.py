"""Batch inference: a model is applied to many texts, by jobs that each take several of them."""

import weft

TEXTS = [f"{number} is a {'good' if number % 3 else 'bad'} number" for number in range(40)]
GOOD = {"good": 1.0, "bad": -1.0}  # the model: load yours at the top of the module, once for each job


@weft.function(gpus=1, cpus=0.1)
def score(text: str) -> float:
    return sum(GOOD.get(word, 0.0) for word in text.split())


def main() -> None:
    scores = list(score.map(TEXTS, chunk=10, at_once=2))
    for text, value in zip(TEXTS[:3], scores[:3], strict=True):
        print(f"{value:+.0f} {text}")
    print(f"{sum(value > 0 for value in scores)} of {len(scores)} are good")


if __name__ == "__main__":
    main()
