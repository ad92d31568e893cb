"""The lines before a translated script: the variables of Slurm, and functions in place of its commands.

Programs that detect Slurm (Lightning, JAX, submitit) read many of its variables together. So all are set, and they
agree: each replica is a node with one task. Job ids are numbers, which such programs compute ports from.
"""

import re
import shlex

_PRELUDE = r"""
# Added by weft migrate-from: every replica runs this script, where Slurm ran it once and srun ran each task.
# To a program that detects Slurm each replica is a node with one task.
_weft_number() { printf %s "$1" | cksum | cut -d ' ' -f 1; }
_weft_hosts=$(printf %s "${TF_CONFIG:-}" | sed -n 's/.*"worker":\[\([^]]*\)\].*/\1/p')
_weft_hosts=$(printf %s "$_weft_hosts" | sed 's/"//g; s/:[0-9]*,/,/g; s/:[0-9]*$//')
_weft_hosts=${_weft_hosts:-${WEFT_ADDRESS:-127.0.0.1}} _weft_times=
[ "$WEFT_WORLD_SIZE" = 1 ] || _weft_times="(x$WEFT_WORLD_SIZE)"
export SLURM_JOB_ID="$(_weft_number "$WEFT_JOB_ID")" SLURM_JOB_NAME=@name@ SLURM_CLUSTER_NAME=weft SLURM_STEP_ID=0
export SLURM_JOBID="$SLURM_JOB_ID" SLURM_STEPID=0 SLURM_RESTART_COUNT="$WEFT_EPOCH" SLURM_SUBMIT_DIR="$PWD"
export SLURM_NNODES="$WEFT_WORLD_SIZE" SLURM_JOB_NUM_NODES="$WEFT_WORLD_SIZE" SLURM_STEP_NUM_NODES="$WEFT_WORLD_SIZE"
export SLURM_NTASKS="$WEFT_WORLD_SIZE" SLURM_NPROCS="$WEFT_WORLD_SIZE" SLURM_STEP_NUM_TASKS="$WEFT_WORLD_SIZE"
export SLURM_NTASKS_PER_NODE=1 SLURM_TASKS_PER_NODE="1$_weft_times" SLURM_STEP_TASKS_PER_NODE="1$_weft_times"
export SLURM_PROCID="$WEFT_RANK" SLURM_NODEID="$WEFT_RANK" SLURM_LOCALID=0
export SLURM_JOB_NODELIST="$_weft_hosts" SLURM_NODELIST="$_weft_hosts" SLURM_STEP_NODELIST="$_weft_hosts"
export SLURMD_NODENAME="$(printf %s "$_weft_hosts" | cut -d , -f "$((WEFT_RANK + 1))")"
export SLURM_LAUNCH_NODE_IPADDR="${_weft_hosts%%,*}" SLURM_SRUN_COMM_HOST="${_weft_hosts%%,*}"
export SLURM_CPUS_PER_TASK=@cpus@ SLURM_CPUS_ON_NODE=@cpus@ SLURM_JOB_CPUS_PER_NODE="@cpus@$_weft_times"
export SLURM_GPUS_ON_NODE=@gpus@ SLURM_JOB_GPUS="$WEFT_GPUS" SLURM_STEP_GPUS="$WEFT_GPUS"
[ -z "${MASTER_PORT:-}" ] || export JAX_COORDINATOR_PORT="$MASTER_PORT"
srun() {  # takes its own options away, with their values
  while [ "${1#-}" != "$1" ]; do
    case "$1" in
      --*=*|--label|--unbuffered|--exclusive|--overlap|--kill-on-bad-exit|--pty|-[lukKQvsXOE]|-[a-zA-Z]?*) ;;
      *) [ $# -gt 1 ] && shift ;;
    esac
    shift
  done
  "$@"
}
scontrol() {  # show hostnames
  [ "${1:-} ${2:-}" = "show hostnames" ] || { echo "scontrol: no such command here" >&2; return 1; }
  printf '%s\n' "${3:-$SLURM_JOB_NODELIST}" | tr , '\n'
}
"""
_ARRAY = r"""
export SLURM_ARRAY_JOB_ID="$(_weft_number "$WEFT_ARRAY_ID")" SLURM_ARRAY_TASK_ID="$WEFT_ARRAY_INDEX"
export SLURM_ARRAY_TASK_COUNT="$WEFT_ARRAY_COUNT" SLURM_ARRAY_TASK_MIN="$WEFT_ARRAY_MIN"
export SLURM_ARRAY_TASK_MAX="$WEFT_ARRAY_MAX"
"""
_VARIABLE = re.compile(r"\bSLURMD?_[A-Z0-9_]+")
_SET = frozenset(_VARIABLE.findall(_PRELUDE))
_SET_IN_ARRAYS = _SET | frozenset(_VARIABLE.findall(_ARRAY))


def prelude(*, name: str, cpus: float, gpus: int, of_array: bool) -> str:
    """The lines for a job of this name; `cpus` and `gpus`: of one replica."""
    values = {"name": shlex.quote(name), "cpus": f"{cpus:g}", "gpus": str(gpus)}
    lines = (_PRELUDE + (_ARRAY if of_array else "")).replace("\n\n", "\n").lstrip("\n")
    return re.sub("@(name|cpus|gpus)@", lambda found: values[found[1]], lines)


def unset_in(lines: list[str], *, of_array: bool) -> list[tuple[int, str]]:
    """The number of a line and the variable of Slurm that it is the first to name, for those that are not set."""
    known = set(_SET_IN_ARRAYS if of_array else _SET)
    found: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        if line.lstrip().startswith("#"):
            continue
        for match in _VARIABLE.finditer(line[:2000]):
            if match[0] not in known:
                known.add(match[0])
                if not line[match.end() :].startswith("="):  # set by the script itself
                    found.append((number, match[0]))
    return found
