"""What a quiet tenant notices while another tenant does the costliest things that it may.

    python -m tests.bench fairness [--quick] [--seed N] [--only NAME,...]

| module | what it does |
|---|---|
| `hostile`, `__main__` | the hostile tenant, in a process of its own: what it sends, drawn from the seed |
| `quiet` | the quiet tenant: submissions, starts and reads at a fixed rate, whatever becomes of the earlier ones |
| `processes` | how much memory every process of the cluster has |
| `ground` | the cluster: two tenants, and a past of many events |
| `aims` | what all of it means. Pure |
| `measure` | rest, attack, rest, attack, ...: the table, and the line of JSON |
"""
