"""The completion of zsh and fish, asked of the real shells: what is offered after so many letters and a Tab."""

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from weftd.cli.complete import script

ZSH, FISH = shutil.which("zsh"), shutil.which("fish")
SECONDS_MAX = 60.0

TYPED = [
    ("weft can", ["cancel"]),
    ("weft cancel mlp", ["mlp-1", "mlp-2"]),
    ("weft drain ", ["node-1"]),
    ("weft ps --sta", ["--state"]),
    ("weft ps --state ru", ["running"]),
    ("weft ps --node ", ["node-1"]),
    ("weft token cr", ["create"]),
    ("weft completion f", ["fish"]),
    ("weft no-such-verb z", []),
    ("weft cancel $(touch never)", []),
]

WEFT = """#!/bin/sh
case "$*" in
"completion --names jobs") echo mlp-1; echo mlp-2; echo eval ;;
"completion --names nodes") echo node-1 ;;
esac
"""

# Each match that zsh would offer is noted before it is offered; the end of a completion is noted, too.
ZSH_BEGINS = """
PS1=; unsetopt beep; setopt no_list_ambiguous
autoload -Uz compinit; compinit -u -D
compadd() { local -a noted; builtin compadd -O noted "$@"; print -rl -- $noted >>offered; builtin compadd "$@" }
over() { print over >>offered; return 0 }
ask() { comppostfuncs=(over); zle complete-word; BUFFER= }
zle -N ask; bindkey '^I' ask
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a `weft` that knows some names, and the scripts."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "weft").write_text(WEFT)
    (programs / "weft").chmod(0o755)
    for shell in ("zsh", "fish"):
        (tmp_path / f"weft.{shell}").write_text(script(shell))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{folder}/bin:{os.defpath}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
    }


class Zsh:
    """An interactive zsh on a terminal of its own."""

    def __init__(self, folder: Path, begins: str) -> None:
        assert ZSH is not None
        self._offered = folder / "offered"
        self._terminal, its = pty.openpty()
        (folder / "begins").write_text(begins + "print over >>offered\n")
        self._process = subprocess.Popen(
            [ZSH, "-f", "-i"],
            stdin=its,
            stdout=its,
            stderr=its,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
        )
        os.close(its)
        self.types("source ./begins\n")

    def types(self, text: str) -> list[str]:
        """What is offered, in the order of the alphabet."""
        self._offered.unlink(missing_ok=True)
        os.write(self._terminal, text.encode())
        ends = time.monotonic() + SECONDS_MAX
        while not self._offered.exists() or not self._offered.read_text().endswith("over\n"):
            assert time.monotonic() < ends, "zsh does not come to an end"
            if select.select([self._terminal], [], [], 0.02)[0]:
                os.read(self._terminal, 65_536)
        found = set(self._offered.read_text().split()) - {"over"}
        return sorted(found)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.mark.skipif(ZSH is None, reason="there is no zsh here")
@pytest.mark.parametrize("way", ["evaluated", "in a folder of fpath"])
def test_zsh_offers_what_may_be_typed(folder: Path, way: str) -> None:
    if way == "evaluated":
        begins = ZSH_BEGINS + 'eval "$(<weft.zsh)"\n'
    else:
        (folder / "functions").mkdir()
        (folder / "weft.zsh").rename(folder / "functions" / "_weft")
        begins = "fpath=($PWD/functions $fpath)\n" + ZSH_BEGINS
    shell = Zsh(folder, begins)
    try:
        for typed, offered in TYPED:
            assert shell.types(f"{typed}\t") == offered, typed
    finally:
        shell.close()
    assert not (folder / "never").exists()


@pytest.mark.skipif(FISH is None, reason="there is no fish here")
def test_fish_offers_what_may_be_typed(folder: Path) -> None:
    assert FISH is not None
    asks = ["source ./weft.fish", *(f"echo '>'; complete -C '{typed}'" for typed, _ in TYPED)]
    done = subprocess.run(
        [FISH, "--no-config", "-c", "\n".join(asks)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
        cwd=folder,
        env=environment(folder),
    )
    assert done.stderr == ""
    answers = [[line.split("\t")[0] for line in part.splitlines() if line] for part in done.stdout.split(">\n")[1:]]
    assert dict(zip((typed for typed, _ in TYPED), answers, strict=True)) == dict(TYPED)
    assert not (folder / "never").exists()
