"""What every day's work costs: `python -m tests.bench daily [PART …] [--quick] [--seed N]`; its last line is JSON.

Each module beside `measure.py` is one part. It has a docstring that says what is measured, and

    async def measure(home: Path, *, seed: int, quick: bool) -> dict[str, Aim]

with an empty folder of its own and nothing drawn but from the seed. Parts run in the order of their names.
"""
