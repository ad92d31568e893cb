"""The commands of docs/hosts.md, each with the hosts on which the page says that they are executed."""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "hosts.md"
BLOCK = re.compile(r"^```sh ?([a-z0-9 -]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"\b10\.0\.0\.([1-3])\b")
MACHINE, EVERY_HOST = "machine", "every host"


class Step(NamedTuple):
    """`section`: the number or the words of the heading above; `where`: a host, every host, or the machine."""

    section: str
    where: str
    script: str


def steps() -> list[Step]:
    """In the order of the page. Raises ValueError for a command that names no place."""
    text = PAGE.read_text()
    found = []
    for block in BLOCK.finditer(text):
        heading = text.rfind("\n## ", 0, block.start())
        section = text[heading + 4 : text.index("\n", heading + 1)]
        if block[1] not in (MACHINE, EVERY_HOST, "host-1", "host-2", "host-3"):
            raise ValueError(f"{section}: {block[1]!r} is no place")
        found.append(Step(section, block[1], block[2]))
    return found


def at(script: str, addresses: list[str]) -> str:
    """The script with the addresses of these hosts in place of the page's."""
    return ADDRESS.sub(lambda match: addresses[int(match[1]) - 1], script)
