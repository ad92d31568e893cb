"""Eight jobs at once, each with a part of the work; every answer is printed as soon as its job has ended."""

import sys

import weft

PARTS = 8
PROGRAM = """
import sys
first = int(sys.argv[1])
print(sum(number * number for number in range(first, first + 1000)))
"""


def main() -> None:
    jobs = [
        weft.run([sys.executable, "-c", PROGRAM, str(part * 1000)], name=f"part-{part}", cpus=0.1)
        for part in range(PARTS)
    ]
    total = 0
    for job in weft.as_completed(jobs, timeout=600):
        job.result()  # raises JobFailed, with the last lines of the job
        (answer,) = job.logs()
        print(f"{job.name}: {answer}")
        total += int(answer)
    print(f"the sum of the squares below {PARTS * 1000} is {total}")


if __name__ == "__main__":
    main()
