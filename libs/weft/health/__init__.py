"""The health of GPUs and nodes: which sign of sickness leads to which state, and how each state ends. Pure.

catalogue.py  the signs that nodes report (Xids, and levels such as an uncorrectable ECC error), and what each leads to
state.py      the state machine of one GPU or node: `healthy → suspect → quarantined → probation → healthy`, or `broken`
lemons.py     nodes on which runs fail more often than elsewhere
pool.py       the states of a whole node, within the bound of its pool

The time is an argument: the same readings at the same times lead to the same states.
"""
