"""Two checkouts are compared by what their benches print, whatever else the lines say."""

from tests.bench.against import figures_of

PRINTED = """\
submit (HTTP, durable) at 50/s: p50 2.9 ms, p99 111.0 ms
no-op jobs submitted, run and finished (2000, 64 emulated GPUs): 204 jobs/s; submit while busy p50 22.0 ms,\
 p99 142.0 ms (312/s)   (aim: > 93 jobs/s; p50 2 ms, p99 200 ms)
no-op jobs finished with 10000 queued, over 30 s: 276 jobs/s   (aim: > 54 jobs/s)
durable placements: 4,782/s
Weft on this machine
│ submit (HTTP, durable) at 50/s │ p50 2.9 ms │
"""


def test_every_number_with_a_unit_is_found_and_no_aim() -> None:
    noop = "no-op jobs submitted, run and finished (2000, 64 emulated GPUs)"
    assert figures_of(PRINTED) == {
        "submit (HTTP, durable) at 50/s: p50 ms": 2.9,
        "submit (HTTP, durable) at 50/s: p99 ms": 111.0,
        f"{noop}: jobs/s": 204.0,
        f"{noop}: p50 ms": 22.0,
        f"{noop}: p99 ms": 142.0,
        f"{noop}: /s": 312.0,
        "no-op jobs finished with 10000 queued, over 30 s: jobs/s": 276.0,
        "durable placements: /s": 4782.0,
    }
