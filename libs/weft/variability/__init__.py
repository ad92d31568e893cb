"""How GPUs of one model differ: bins of scores, classes of jobs, estimates that age, curves of throughput."""
