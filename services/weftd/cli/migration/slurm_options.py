"""The options of sbatch and srun: their names, and which of them have no value."""

from collections.abc import Sequence

SHORT = {
    "-A": "account",
    "-C": "constraint",
    "-D": "chdir",
    "-G": "gpus",
    "-J": "job-name",
    "-N": "nodes",
    "-a": "array",
    "-b": "begin",
    "-c": "cpus-per-task",
    "-d": "dependency",
    "-e": "error",
    "-i": "input",
    "-n": "ntasks",
    "-o": "output",
    "-p": "partition",
    "-q": "qos",
    "-t": "time",
    "-w": "nodelist",
    "-x": "exclude",
    "-H": "hold",
    "-K": "kill-on-bad-exit",
    "-L": "licenses",
    "-M": "clusters",
    "-O": "overcommit",
    "-Q": "quiet",
    "-W": "wait",
    "-k": "no-kill",
    "-l": "label",
    "-s": "oversubscribe",
    "-u": "unbuffered",
    "-v": "verbose",
}
_OF_BATCH_WITHOUT_VALUE = frozenset(
    {
        "exclusive",
        "hold",
        "no-kill",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "quiet",
        "requeue",
        "verbose",
        "wait",
    }
)
_OF_STEP_WITHOUT_VALUE = frozenset({"exact", "kill-on-bad-exit", "label", "overlap", "pty", "unbuffered"})
WITHOUT_VALUE = _OF_BATCH_WITHOUT_VALUE | _OF_STEP_WITHOUT_VALUE
_WITH_VALUE = frozenset(
    {
        "comment",
        "container-image",
        "cpu-bind",
        "cpus-per-gpu",
        "export",
        "gpu-bind",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "gres-flags",
        "hint",
        "jobid",
        "mail-type",
        "mail-user",
        "mem",
        "mem-bind",
        "mem-per-cpu",
        "mem-per-gpu",
        "mpi",
        "nice",
        "ntasks-per-node",
        "open-mode",
        "reservation",
        "signal",
        "wckey",
        "wrap",
    }
)
_KNOWN = WITHOUT_VALUE | _WITH_VALUE | set(SHORT.values())


class UnknownOptionError(ValueError):
    """An option that is not known, or lacks its value; the message names it."""


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options at the beginning of a command line, each as `--name=value` or `--name`, and the words that follow.
    Raises UnknownOptionError."""
    rest, options = list(words), []
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, given, value = _parts(word)
        if name not in _KNOWN:
            raise UnknownOptionError(f"unrecognized option {word.partition('=')[0][:60]!r}")
        if name in WITHOUT_VALUE or given:
            options.append(f"--{name}={value}" if given else f"--{name}")
        elif rest:
            options.append(f"--{name}={rest.pop(0)}")
        else:
            raise UnknownOptionError(f"option {word[:60]!r} requires an argument")
    return options, rest


def _parts(word: str) -> tuple[str, bool, str]:
    """The name of an option, whether a value is in the same word, and that value."""
    if word.startswith("--"):
        name, given, value = word[2:].partition("=")
        return name, bool(given), value
    name = SHORT.get(word[:2], "")
    if name in WITHOUT_VALUE and len(word) > 2:  # several letters, such as -Hk
        return "", False, ""
    return name, len(word) > 2, word[2:].removeprefix("=")
