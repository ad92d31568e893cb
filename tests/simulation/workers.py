"""The worker processes of a run over many seeds."""

import os
from multiprocessing import parent_process
from threading import Thread


def end_with_parent() -> None:
    """Let this worker end when the process that started it is gone.

    A killed parent shuts no pool down, and a worker holds both ends of the pipe that it reads: it would wait forever.
    """
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()
