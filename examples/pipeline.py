"""A pipeline: three jobs, each of which begins when the ones before it have succeeded."""

import sys

import weft

PREPARE = "print('prepared 100 rows')"
TRAIN = "import os; open(os.environ['WEFT_RESULTS'] + '/model.txt', 'w').write('weights')"
EVALUATE = "print('accuracy 0.9')"


def main() -> None:
    prepare = weft.run([sys.executable, "-c", PREPARE], name="prepare", cpus=0.1)
    train = weft.run([sys.executable, "-c", TRAIN], name="train-model", cpus=0.1, gpus=1, after=[{"job": prepare.id}])
    evaluate = weft.run([sys.executable, "-c", EVALUATE], name="evaluate", cpus=0.1, after=[{"job": train.id}])
    for job in weft.as_completed([prepare, train, evaluate], timeout=600):
        job.result()
        print(f"{job.name}: {job.state}", *job.logs())
    print("the model:", *(file.path for file in train.files()))


if __name__ == "__main__":
    main()
