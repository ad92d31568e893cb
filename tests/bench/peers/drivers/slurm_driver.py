"""Slurm of Debian: munged, slurmctld and slurmd of one node with 64 CPUs and 64 GPUs, all in one folder.

`sbatch` is a process for each job, as it is for people; an array is one `sbatch`. Accounting is a file of jobs.
"""

import ctypes
import os
import pathlib
import socket
import subprocess
import tempfile
import time

from line import NO_OP, SLOTS, at_rest, one_by_one, serve

CONF = """ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldPort={ctl}
SlurmdPort={node}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,default_queue_depth=10000,sched_min_interval=100000
JobCompType=jobcomp/filetxt
JobCompLoc={home}/jobcomp
MaxArraySize=20001
MaxJobCount=100000
MessageTimeout=60
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={slots} RealMemory=1000 Gres=gpu:{slots} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PR_SET_CHILD_SUBREAPER = 36


def reap():
    """Wait for the steps of jobs that have ended: the CPU time that they used counts for this process then."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def main(home):
    conf, host = home / "slurm.conf", socket.gethostname().split(".")[0]
    conf.write_text(CONF.format(home=home, host=host, ctl=port(), node=port(), slots=SLOTS))
    (home / "gres.conf").write_text(f"NodeName={host} Name=gpu File={home}/gpu[0-{SLOTS - 1}]\n")
    for index in range(SLOTS):
        (home / f"gpu{index}").touch()  # slurmd counts the files of GPUs that are there
    for folder in ("state", "spool"):
        (home / folder).mkdir()
    key = home / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    os.environ["SLURM_CONF"] = str(conf)
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={home}/munge.socket"]
    munge += [f"--pid-file={home}/munge.pid", f"--seed-file={home}/munge.seed", f"--log-file={home}/munge.log"]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # slurmstepd leaves the family of slurmd
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(munge, **quiet)]
    while not (home / "munge.socket").exists():
        time.sleep(0.05)
    started += [
        subprocess.Popen([name, "-D", "-L", str(home / f"{name}.log")], **quiet) for name in ("slurmctld", "slurmd")
    ]
    try:
        ends = time.monotonic() + 60
        while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout:
            if time.monotonic() > ends:
                raise SystemExit(f"the node never became idle: {(home / 'slurmctld.log').read_text()[-2000:]}")
            time.sleep(0.2)
        script = home / "no-op"
        script.write_text(f"#!/bin/sh\nexec {NO_OP}\n")
        script.chmod(0o700)

        def submit(*options):
            typed = ["sbatch", "--parsable", "--gres=gpu:1", "-n1", "-o", "/dev/null", *options, str(script)]
            return subprocess.run(typed, check=True, capture_output=True, text=True).stdout.strip()

        def drained(_=None):
            while subprocess.run(["squeue", "-h"], check=True, capture_output=True).stdout.strip():
                reap()
                time.sleep(0.1)

        def singles(count):
            return one_by_one(count, submit, drained)

        def array(count):
            submit(f"--array=0-{count - 1}")
            drained()

        serve(lambda count: {**singles(count), "seen": at_rest(submit, drained, 5)}, array, durable=True)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


with tempfile.TemporaryDirectory(prefix="weft-slurm-") as folder:
    main(pathlib.Path(folder))
