"""The lines before a translated script: the variables of Slurm, and functions in place of its commands.

Programs that detect Slurm (Lightning, JAX, submitit) read many of its variables together. So all are set, and they
agree: each replica is a node with one task. The number of a job is its id in base 36 (weftd.cli.slurm.numbers): such
programs compute ports from it, and the commands of `weft slurm` show the same number.
"""

import re
import shlex

from weftd.cli.migration.slurm_values import NoValueError

_PRELUDE = r"""
# Added by Weft: every replica runs this script, where Slurm ran it once and srun ran each task.
# To a program that detects Slurm each replica is a node with one task.
_weft_number() {  # the number of an id such as j-0123456789: its characters are digits in base 36
  _weft_rest=${1#?-} _weft_sum=0
  _weft_rest=${_weft_rest%%-*}
  while [ -n "$_weft_rest" ]; do
    _weft_digits=0123456789abcdefghijklmnopqrstuvwxyz
    _weft_digits=${_weft_digits%%"${_weft_rest%"${_weft_rest#?}"}"*}
    _weft_sum=$((_weft_sum * 36 + ${#_weft_digits})) _weft_rest=${_weft_rest#?}
  done
  printf %s "$_weft_sum"
}
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
  _weft_step "$@"
}
scontrol() {  # show hostnames; anything else is for the command of that name, if there is one
  [ "${1:-} ${2:-}" = "show hostnames" ] || { command scontrol "$@"; return; }
  printf '%s\n' "${3:-$SLURM_JOB_NODELIST}" | tr , '\n'
}
"""
_STEP = r"""
_weft_step() { "$@"; }
"""
_STEP_WITH_SIGNAL = r"""
_weft_step() {  # in the background, so that this shell can pass the signal on at once
  "$@" <&0 &
  _weft_child=$! _weft_status=0 _weft_again=
  while :; do  # a signal ends `wait` before the step has ended
    _weft_signalled=
    wait "$_weft_child" && _weft_new=0 || _weft_new=$?
    [ "$_weft_new$_weft_again" = 127again ] || _weft_status=$_weft_new
    [ -n "$_weft_signalled" ] || break
    _weft_again=again
  done
  _weft_child=
  return "$_weft_status"
}
_weft_child=
trap '_weft_signalled=1; [ -z "$_weft_child" ] || kill -s @signal@ "$_weft_child"' @signal@
"""
_ARRAY = r"""
export SLURM_ARRAY_JOB_ID="$(_weft_number "$WEFT_ARRAY_ID")" SLURM_ARRAY_TASK_ID="$WEFT_ARRAY_INDEX"
export SLURM_JOB_ID="$((SLURM_ARRAY_JOB_ID + WEFT_ARRAY_INDEX + 1))"
export SLURM_JOBID="$SLURM_JOB_ID"
export SLURM_ARRAY_TASK_COUNT="$WEFT_ARRAY_COUNT" SLURM_ARRAY_TASK_MIN="$WEFT_ARRAY_MIN"
export SLURM_ARRAY_TASK_MAX="$WEFT_ARRAY_MAX"
"""
_VARIABLE = re.compile(r"\bSLURMD?_[A-Z0-9_]+")
_SET = frozenset(_VARIABLE.findall(_PRELUDE))
_SET_IN_ARRAYS = _SET | frozenset(_VARIABLE.findall(_ARRAY))


def prelude(*, name: str, cpus: float, gpus: int, of_array: bool, signal: str = "") -> str:
    """The lines for a job of this name; `cpus` and `gpus`: of one replica. `signal`: such as USR1, which the script
    passes on to what `srun` runs."""
    values = {"name": shlex.quote(name), "cpus": f"{cpus:g}", "gpus": str(gpus), "signal": signal}
    step = _STEP_WITH_SIGNAL if signal else _STEP
    lines = (_PRELUDE + step + (_ARRAY if of_array else "")).replace("\n\n", "\n").lstrip("\n")
    return re.sub("@(name|cpus|gpus|signal)@", lambda found: values[found[1]], lines)


_FIELDS = {
    "A": "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}",
    "J": "${SLURM_JOB_ID}.${SLURM_STEP_ID}",
    "N": "${SLURMD_NODENAME%%.*}",
    "a": "${SLURM_ARRAY_TASK_ID:-4294967294}",
    "j": "${SLURM_JOB_ID}",
    "n": "${SLURM_NODEID}",
    "t": "${SLURM_PROCID}",
    "x": "${SLURM_JOB_NAME}",
    "%": "%",
}


def file_of(pattern: str, *, user: str) -> str:
    """A word of the shell for the file that a pattern such as `slurm-%A_%a.out` names. Raises NoValueError."""

    def field(found: re.Match[str]) -> str:
        if found[2] == "u":
            return _in_quotes(user)
        if found[2] not in _FIELDS:
            raise NoValueError(
                f"expected a file name with {', '.join(f'%{name}' for name in 'jAaxNutn')}, not {found[0]}"
            )
        text = _FIELDS[found[2]]
        return f"$(printf '%0{found[1]}d' \"{text}\")" if found[1] and found[2] in "Aajnt" else text

    parts = re.split(r"(%[0-9]{0,2}.)", pattern)
    return '"' + "".join(_FIELD.sub(field, part) if part[:1] == "%" else _in_quotes(part) for part in parts) + '"'


_FIELD = re.compile(r"%([0-9]{0,2})(.)")


def _in_quotes(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)


def redirections(output: str, error: str) -> str:
    """The lines that append what the script writes to files; each is a word of `file_of`, or empty: the job's log.

    The folder of a file is made: a job may start before the program that submitted it makes a folder of its number.
    """
    lines = ""
    for file in filter(None, (output, error)):
        lines += f'_weft_file={file}\ncase "$_weft_file" in */*) mkdir -p "${{_weft_file%/*}}" ;; esac\n'
    if output:
        where = f"echo output: {output}\nexec >>{output} "
        return f"{lines}{where}{f'2>>{error}' if error else '2>&1'} || exit 1\n"
    return f"{lines}exec 2>>{error} || exit 1\n" if error else ""


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
