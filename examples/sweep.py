"""A sweep: one job for each learning rate as one array, and the one with the smallest loss."""

import weft


@weft.function(gpus=1, cpus=0.1)
def train(rate: float) -> None:
    weight = 0.0
    for step in range(1, 51):
        weight -= rate * (weight - 3.0)
        weft.step(step, of=50, loss=(weight - 3.0) ** 2)


def main() -> None:
    study = train.sweep({"rate": [0.001, 0.01, 0.1, 0.5]})  # with n=64: {"rate": {"min": 1e-4, "max": 1, "log": True}}
    for row in study.wait(600).table(metric="loss").rows:
        print(f"rate {row.values['rate']}: {row.state}, loss {row.last}")
    best = study.best(metric="loss")
    print(f"the best rate is {best.values['rate'] if best else None}")


if __name__ == "__main__":
    main()
