"""The exit status of a run, in words."""

SIGNAL_STATUS = 128  # a process that signal N ended has this and N as its status
SIGNALS = (  # of Linux, from 1 on
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
)


def status_text(status: int | None) -> str:
    """`ended with status 3`; above 128 the signal is named, as a shell reports one that killed its command."""
    number = (status or 0) - SIGNAL_STATUS
    if not 1 <= number <= len(SIGNALS):
        return f"ended with status {status}"
    return f"was killed by {SIGNALS[number - 1]} (status {status})"
