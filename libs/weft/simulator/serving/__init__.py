"""Services in the simulator: requests that arrive, replicas that answer them, and an autoscaler that decides how many.

`rates.py`: when requests arrive; `file.py`: services read from a file; `queueing.py`: the requests of one service,
one by one; `served.py`: one service over time; `over_time.py`: all of them beside the jobs, with loans;
`outcome.py`: what came of it; `fixed.py`: services of fixed size, to compare with.
"""
