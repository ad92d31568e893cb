"""A batch script of Slurm as a job: its #SBATCH options, and the script itself as the command."""

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from weft.domain.arrays import IndicesError, indices_of
from weft.domain.contract import ISOLATING, MEETING_NAMES, RANK_NAMES, TORCHRUN_PREFIX, WEFT_PREFIX
from weft.domain.spec import ENV_NAME_PATTERN, TOKEN_PATTERN, StopSignal
from weftd.cli.migration.slurm_options import SHORT, WITHOUT_VALUE
from weftd.cli.migration.slurm_prelude import file_of, prelude, redirections, unset_in
from weftd.cli.migration.slurm_values import (
    NoValueError,
    gpus_of,
    memory_bytes,
    number_of,
    range_of,
    seconds_of,
    size_of,
)
from weftd.cli.migration.written import Remark, Translated, name_of

NO_COUNTERPART = {
    "account": "a job belongs to the tenant of the token that submits it; `weft usage` sums up by tenant",
    "begin": "nothing delays a job; submit it when it may start",
    "clusters": "choose the cluster with --url or WEFT_URL",
    "constraint": "nodes have labels: write `where`, such as \"zone == 'a' && nvlink\" (docs/places.md)",
    "dependency": "names jobs of Slurm: name those of Weft in `after`, docs/arrays.md",
    "error": "stdout and stderr are one log, kept by the cluster: `weft logs`",
    "exclude": "no node can be excluded; pin chooses one",
    "exclusive": "a node is not taken whole; ask for all of its GPUs",
    "hold": "no job is held by hand; give it a low priority",
    "input": "a job has no standard input; read a file",
    "licenses": "licences are not counted",
    "mail-type": "a tenant's events come by mail or webhook: docs/telling.md",
    "mail-user": "a tenant's events come by mail or webhook: docs/telling.md",
    "nice": "set priority: -1000 to 1000, higher goes first",
    "output": "the cluster keeps the log: `weft logs`; redirect in the script to have a file",
    "partition": "nodes form pools: set pool, if your operator has more than `default`",
    "qos": "set priority, and whether it is preemptible",
    "reservation": "nothing is reserved ahead",
}
_GIB = 1 << 30
DEFAULT_POOL = "default"


class Submission(Struct, frozen=True, kw_only=True):
    """A script that `sbatch` submits at once. `words`: the options of its command line, each as `--name=value`;
    `arguments`: of the script; `environment`: of the shell, which goes along; `user`: its name there."""

    words: Sequence[str] = ()
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = {}
    user: str = ""


class _Script:
    """The job file that the options make, and remarks about them."""

    def __init__(self) -> None:
        self.options: dict[str, tuple[str, str]] = {}  # name → value, and where it is
        self.remarks: list[Remark] = []
        self.mistakes: list[Remark] = []

    def mistake(self, where: str, sentence: str) -> None:
        """A remark on an option or value without sense."""
        self.mistakes.append(Remark(where, sentence))
        self.remarks.append(self.mistakes[-1])

    def take(self, name: str, read: Callable[[str], Any], default: Any = None) -> Any:
        """The value of an option as `read` has it; a value that makes no sense is a remark."""
        if name not in self.options:
            return default
        value, where = self.options.pop(name)
        try:
            return read(value)
        except NoValueError as error:
            self.mistake(where, str(error))
            return default


def from_slurm(text: str, *, path: str, folder: str, submission: Submission | None = None) -> Translated:
    """`path`: of the script, for its name; `folder`: where Slurm would have run it. With a `submission`, a partition is
    a pool, the environment goes along and output goes to the files that Slurm would write."""
    script = _Script()
    lines = text.splitlines()
    for where, words in _directives(lines, script):
        _read_options(where, words, script)
    if submission is not None:
        _read_options("command line", list(submission.words), script)
    name = name_of(script.take("job-name", str, "") or path.rpartition("/")[2].rpartition(".")[0] or path)
    role = _role(script)
    many = _many(script)
    spec: dict[str, Any] = {"name": name}
    if (image := script.take("container-image", str)) is not None:
        spec["image"] = image.replace("#", "/")
    signal = _signal(script)
    head = prelude(
        name=name, cpus=role["cpus"], gpus=role.get("gpus", 0), of_array="array" in many, signal=signal.passed_on
    )
    if submission is not None:
        head += _redirected(script, submission)
    spec["command"] = _command(lines, head, script)
    if submission is not None:
        spec["command"] += [path, *submission.arguments]
    spec["workdir"] = script.take("chdir", lambda chosen: posixpath.join(folder, chosen), folder)
    spec |= _environment(script, None if submission is None else submission.environment, contained="image" in spec)
    spec["roles"] = {"worker": role}
    spec |= _treatment(script) | signal.treatment | many
    if submission is not None and (pool := script.take("partition", _pool)) is not None:
        spec["pool"] = pool
    _look_through(lines, script, of_array="array" in many)
    for left, (value, where) in script.options.items():
        script.remarks.append(
            Remark(where, NO_COUNTERPART.get(left, "has no counterpart" + (f" ({value[:60]})" if value else "")))
        )
    untranslated = {option: value for option, (value, _) in script.options.items()}
    return Translated(spec=spec, remarks=tuple(script.remarks), mistakes=tuple(script.mistakes), left=untranslated)


def _directives(lines: list[str], script: _Script) -> Iterator[tuple[str, list[str]]]:
    """The words of each #SBATCH line before the first command, as Slurm reads them."""
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            return
        if not line.startswith("#SBATCH"):
            continue
        where = f"line {number}"
        try:
            yield where, shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError as error:
            script.mistake(where, f"cannot be read: {error}")


def _read_options(where: str, words: list[str], script: _Script) -> None:
    """Options as `--name=value`, `--name value`, `-n value` and `-nvalue`."""
    while words:
        word = words.pop(0)
        if word == "hetjob":
            script.remarks.append(Remark(where, "hetjob: parts of a job are roles here; add one for each"))
            continue
        option, given, value = word.partition("=")
        if not option.startswith("--"):
            option, given, value = word[:2], word[2:], word[2:].removeprefix("=")
        name = SHORT.get(option, option.lstrip("-"))
        if not option.startswith("-") or not name:
            script.mistake(where, f"{word[:60]} is no option")
            continue
        if not given and name not in WITHOUT_VALUE and words and not words[0].startswith("-"):
            value = words.pop(0)
        script.options[name] = (value, f"{where}, --{name}")


def _role(script: _Script) -> dict[str, Any]:
    """Tasks become replicas; GPUs, CPUs and memory are divided among the tasks of a node."""
    least, nodes = script.take("nodes", range_of, (1, 1))
    per_node = script.take("ntasks-per-node", number_of)
    tasks = script.take("ntasks", number_of) or (per_node or 1) * nodes
    per_node = per_node or max(1, -(-tasks // nodes))
    if per_node > 1:
        script.remarks.append(
            Remark("tasks", f"{per_node} tasks per node: each becomes a replica, as a node with one task")
        )
    cpus = script.take("cpus-per-task", number_of, 1)
    gpus = _gpus(script, nodes=nodes, tasks=tasks, per_node=per_node)
    role: dict[str, Any] = {"replicas": {"want": tasks}}
    if least < nodes:
        role["replicas"] = {"min": least * per_node, "want": tasks}
    if gpus:
        role["gpus"] = gpus
    if (of_gpu := script.take("cpus-per-gpu", number_of)) is not None:
        cpus = of_gpu * max(1, gpus)
    role["cpus"] = cpus
    memory = script.take("mem", memory_bytes)
    each = memory // per_node if memory is not None else None
    if (of_cpu := script.take("mem-per-cpu", memory_bytes)) is not None:
        each = of_cpu * cpus
    if (of_gpu := script.take("mem-per-gpu", memory_bytes)) is not None:
        each = of_gpu * max(1, gpus)
    if each:
        role["memory"] = size_of(each)
    else:
        if memory == 0:
            script.remarks.append(Remark("--mem=0", "a job cannot ask for all memory of a node; give an amount"))
        script.remarks.append(Remark("memory", "a replica gets 4GiB, as the script does not say how much it needs"))
        role["memory"] = size_of(4 * _GIB)
    return role


def _gpus(script: _Script, *, nodes: int, tasks: int, per_node: int) -> int:
    """The GPUs of one task."""
    for name, among in (("gpus-per-task", 1), ("gpus-per-node", per_node), ("gres", per_node), ("gpus", tasks)):
        where = script.options.get(name, ("", ""))[1]
        found = script.take(name, gpus_of)
        if found is None:
            continue
        model, how_many = found
        if model:
            script.remarks.append(Remark(where, f"type {model}: set gpu_model to a name that `weft gpus` shows"))
        if how_many % among:
            script.remarks.append(Remark(where, f"{how_many} GPUs cannot be divided among {among} tasks: rounded up"))
        return int(-(-how_many // among))
    return 0


def _environment(script: _Script, shell: Mapping[str, str] | None, *, contained: bool) -> dict[str, Any]:
    """`--export`: given values become env. Variables of the shell go along only where a `shell` is given; a container
    (`contained`) has those of its image, and gets of the shell only those that are named."""
    if shell is None and "export" not in script.options:
        return {}
    value, where = script.options.pop("export", ("ALL", "--export"))
    env: dict[str, str] = {}
    secret: list[str] = []
    for part in value.split(","):
        name, given, text = part.partition("=")
        if given and re.match(ENV_NAME_PATTERN, name):
            env[name] = text
        elif part in ("", "NONE", "NIL") or (part == "ALL" and contained):
            continue
        elif shell is None:
            script.remarks.append(Remark(where, f"{part[:60]}: a job gets no variable of the shell; add it to env"))
        elif part == "ALL":
            everything, secret = along(shell)
            env = everything | env
        elif part in shell:
            env[part] = shell[part]
    stays = "looks like a secret and is not sent; --export=ALL,NAME sends it"
    script.remarks += [Remark(where, f"{name} {stays}") for name in secret if name not in env]
    return {"env": env} if env else {}


def along(shell: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables of a shell that go along with a job, and the names of those that stay as they may be secrets."""
    mine = {name: value for name, value in shell.items() if re.match(ENV_NAME_PATTERN, name) and _may_go(name, value)}
    secret = sorted(filter(_looks_secret, mine))
    return {name: value for name, value in mine.items() if name not in secret}, secret


_STAY = ISOLATING | RANK_NAMES | MEETING_NAMES | {"_", "DISPLAY", "OLDPWD", "PWD", "SHLVL", "TERM", "TMPDIR"}
_STAY_BEGIN = (
    WEFT_PREFIX,
    TORCHRUN_PREFIX,
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SSH_",
    "XDG_RUNTIME",
    "XDG_SESSION",
)
_looks_secret = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(API|PRIVATE|ACCESS)_?KEY", re.IGNORECASE).search
_VALUE_MAX = 32768


def _may_go(name: str, value: str) -> bool:
    return name not in _STAY and not name.startswith(_STAY_BEGIN) and len(value) <= _VALUE_MAX and value.isprintable()


def _redirected(script: _Script, submission: Submission) -> str:
    """The lines that send output to the files of `--output` and `--error`."""
    files = [script.take(name, lambda text: file_of(text, user=submission.user), "") for name in ("output", "error")]
    return redirections(*files)


def _pool(text: str) -> str:
    if not re.match(TOKEN_PATTERN, text):
        raise NoValueError(f"expected a pool, such as {DEFAULT_POOL}, not {text[:60]!r}")
    return text


def _many(script: _Script) -> dict[str, Any]:
    """An array, and the one dependency that names no job of Slurm."""
    spec: dict[str, Any] = {}
    if (indices := script.take("array", _indices)) is not None:
        spec["array"] = indices
    if script.options.get("dependency", ("", ""))[0] == "singleton":
        del script.options["dependency"]
        spec["singleton"] = True
    return spec


def _indices(text: str) -> str:
    """Indices in the form that Weft and Slurm share."""
    try:
        indices, _ = indices_of(text)
    except IndicesError as error:
        raise NoValueError(str(error)) from None
    if not indices:
        raise NoValueError("expected indices such as 0-9 or 1-40%8")
    return text


def _treatment(script: _Script) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    limit = script.take("time", seconds_of)
    if limit:
        spec["time_limit"] = f"{limit}s" if limit % 60 else f"{limit // 60}m"
    if script.options.pop("requeue", None) is not None:
        spec["retries"] = {"max": 3}
    script.options.pop("no-requeue", None)
    if (comment := script.take("comment", str)) is not None:
        spec["labels"] = {"comment": comment[:253]}
    if "nodelist" in script.options and re.fullmatch(r"[a-z0-9-]{1,63}", script.options["nodelist"][0]):
        spec["pin"] = {"node": script.options.pop("nodelist")[0]}
    return spec


class _Signal(Struct, frozen=True, kw_only=True):
    """`passed_on`: the signal that the script passes on to what `srun` runs, such as USR1; empty: none."""

    treatment: dict[str, Any] = {}
    passed_on: str = ""


def _signal(script: _Script) -> _Signal:
    """`--signal=[B:]NAME@SECONDS`: asks the job to stop, SECONDS before SIGKILL; with `B:` the script alone gets it."""
    if "signal" not in script.options:
        return _Signal()
    value, where = script.options.pop("signal")
    found = re.fullmatch(r"(?:R:|R?(B):)?(?:SIG)?([A-Z0-9]{1,8})(?:@([0-9]{1,5}))?", value.upper())
    name = _NUMBERS.get(found[2], found[2]) if found else ""
    if found is None or f"SIG{name}" not in set(StopSignal):
        known = ", ".join(each.value.removeprefix("SIG") for each in StopSignal)
        script.mistake(where, f"expected a signal and seconds such as USR1@60, of {known}, not {value[:60]!r}")
        return _Signal()
    grace = f"{min(3600, max(1, int(found[3] or 60)))}s"
    when = "when it is preempted, moved, cancelled or at its time limit"
    script.remarks.append(Remark(where, f"the job gets SIG{name} {when}, and SIGKILL {grace} later"))
    treatment = {"grace": grace} | ({} if name == "TERM" else {"stop_signal": f"SIG{name}"})
    return _Signal(treatment=treatment, passed_on="" if found[1] or name == "TERM" else name)


_NUMBERS = {"1": "HUP", "2": "INT", "3": "QUIT", "10": "USR1", "12": "USR2", "15": "TERM"}


def _command(lines: list[str], head: str, script: _Script) -> list[str]:
    """The script as it is, without its directives, behind the lines of `head`."""
    shell, options = "bash", []
    if lines and lines[0].startswith("#!"):
        program, *options = lines[0].removeprefix("#!").split() or [shell]
        if program.rpartition("/")[2] == "env" and options:
            program, *options = options
        shell = program.rpartition("/")[2]
    if shell not in ("bash", "sh", "zsh"):
        script.mistake("line 1", f"{shell[:60]}: expected a script of bash, sh or zsh; start the program in one")
        shell, options = "bash", []
    body = [line for line in lines if not line.startswith(("#SBATCH", "#!"))]
    while body and not body[0].strip():
        body.pop(0)
    return [shell, *options, "-c", head + "\n".join(body) + "\n"]


_HABITS = (
    (r"\bmodule\s+(load|purge|use)\b", "module: the nodes may have no modules; an image has what the job needs"),
    (
        r"\b(mpirun|mpiexec)\b",
        "mpirun: starts ranks by itself; here every replica is a rank: WEFT_RANK, WEFT_WORLD_SIZE",
    ),
    (
        r"\bSLURM_(JOB_|STEP_)?NODELIST\b|\bscontrol\b",
        "the nodes of a job: MASTER_ADDR and MASTER_PORT are set already",
    ),
    (
        r"\bhostname\s+(-i|-I|--ip-address)",
        "hostname: each replica finds its own address; that of rank 0 is MASTER_ADDR",
    ),
    (r"\b(sbatch|squeue|scancel|sacct)\b", "commands of Slurm are not there: weft submit, ps, cancel, describe"),
    (r"\bconda\s+activate\b|\bsource\s+\S*activate\b", "activates an environment: the nodes must have it at that path"),
    (
        r"\$\{?(SLURM_TMPDIR|TMPDIR|SCRATCH)\b",
        "a folder for scratch: WEFT_CHECKPOINT_DIR is kept, /tmp belongs to the node",
    ),
)

_EXPLAINED = ("SLURM_TMPDIR", "SLURM_ARRAY_")  # by a habit
_HABITS_OF_ARRAYS = ((r"\bSLURM_ARRAY_\w+", "SLURM_ARRAY_…: is set in an array alone; docs/arrays.md"),)


def _look_through(lines: list[str], script: _Script, *, of_array: bool) -> None:
    """Remarks on commands of the script that behave differently here, each at its first line only."""
    for pattern, sentence in (*_HABITS, *(() if of_array else _HABITS_OF_ARRAYS)):
        found = next((number for number, line in enumerate(lines, start=1) if _says(line, pattern)), None)
        if found is not None:
            script.remarks.append(Remark(f"line {found}", sentence))
    for number, name in unset_in(lines, of_array=of_array):
        if not name.startswith(_EXPLAINED):
            script.remarks.append(Remark(f"line {number}", f"{name}: is not set here"))


def _says(line: str, pattern: str) -> bool:
    return not line.lstrip().startswith("#") and re.search(pattern, line[:2000]) is not None
