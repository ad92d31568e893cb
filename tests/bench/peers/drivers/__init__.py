"""Programs that run in a peer's own environment: a JSON line in for each thing to do, one out for what it took.

They import nothing of Weft. `line.py` lies beside each of them.
"""
