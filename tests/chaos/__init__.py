"""Chaos on real servers: a whole cluster under faults drawn from a seed, audited from the outside.

    python -m tests.chaos --seconds 60 --seed 7

| module | what it does |
|---|---|
| `program` | what every job runs: it traces itself and numbers its log |
| `wishes`, `customers` | which jobs are wanted when, drawn from the seed; who submits them, and what was acknowledged |
| `serving`, `services` | which services are wanted and how they change; requests to them; what is seen of them |
| `faults`, `deeds` | which faults come when, drawn from the seed; how each is done and undone |
| `misdeeds`, `hostile`, `vandal` | what a hostile tenant does when, drawn from the seed; how; what its jobs do |
| `rogue`, `enemies` | a node that lies, with its own NATS user; both enemies together |
| `world`, `member`, `stores`, `failover` | the cluster: its links, its processes, its servers, those that fail over |
| `hosts`, `front` | the same over hosts of a laboratory (`--hosts 3`); the one address before their gateways |
| `traces`, `evidence` | what the jobs wrote; what the API says afterwards |
| `audit`, `audit_services` | what is wrong with it |
| `story` | what one needs to debug a finding |
"""
