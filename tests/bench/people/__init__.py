"""People on one machine: `python -m tests.bench people [PART …] [--quick] [--seed N]`.

*ssh*: OpenSSH's client in a job of a whole cluster: its first prompt, the echo of a key, and rsync of a random file
beside rsync over a plain SSH server on this machine, in turns. *sign_ins*: whole sign-ins with an identity provider,
16 at once; provider and gateway are in one process. *revocation*: a person has a shell, an SSH connection, logs,
events and a stream through the router open, and is kept out. *slurm*: `squeue` and `sacct` over 20,000 jobs.

The last line is one JSON object with the aims.
"""
