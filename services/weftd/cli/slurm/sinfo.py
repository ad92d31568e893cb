"""`sinfo`: the pools as partitions, with their nodes by state."""

import re
import sys
from collections.abc import Callable, Iterable, Sequence

from weft.messages.http import NodeView
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.migration.slurm import DEFAULT_POOL
from weftd.cli.slurm.arguments import Arguments, flat
from weftd.cli.slurm.reading import cluster

_DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
_Group = tuple[str, str, list[NodeView]]  # pool, state, nodes
_LETTERS: dict[str, tuple[str, Callable[[_Group], str]]] = {
    "D": ("NODES", lambda group: str(len(group[2]))),
    "G": ("GRES", lambda group: _span(f"gpu:{len(node.gpus)}" for node in group[2])),
    "N": ("NODELIST", lambda group: ",".join(node.id for node in group[2])),
    "P": ("PARTITION", lambda group: f"{group[0]}*" if group[0] == DEFAULT_POOL else group[0]),
    "R": ("PARTITION", lambda group: group[0]),
    "T": ("STATE", lambda group: {"alloc": "allocated", "mix": "mixed", "drain": "drained"}.get(group[1], group[1])),
    "a": ("AVAIL", lambda group: "up"),
    "c": ("CPUS", lambda group: _span(f"{node.cpus:g}" for node in group[2])),
    "l": ("TIMELIMIT", lambda group: "infinite"),
    "m": ("MEMORY", lambda group: _span(str(node.memory >> 20) for node in group[2])),
    "t": ("STATE", lambda group: group[1]),
}
_FIELD = re.compile(r"%(\.?)([0-9]*)([A-Za-z])")


async def sinfo(words: Sequence[str]) -> int:
    parser = Arguments("sinfo")
    parser.several("-p", "--partition")
    parser.add_argument("-h", "--noheader", action="store_true")
    parser.add_argument("-o", "--format", default=_DEFAULT)
    parser.add_argument("-a", "--all", action="store_true")
    parser.of_the_cluster()
    args = parser.parse_args(words)
    for found in _FIELD.finditer(args.format):
        if found[3] not in _LETTERS:
            raise CliError(f"--format: %{found[3]} is unknown; Weft has {', '.join(f'%{name}' for name in _LETTERS)}")
    async with cluster() as client:
        nodes = (await client.nodes()).nodes
    pools = flat(args.partition)
    groups: dict[tuple[str, str], list[NodeView]] = {}
    for node in sorted(nodes, key=lambda each: each.id):
        if not pools or node.pool in pools:
            groups.setdefault((node.pool, _state(node)), []).append(node)
    lines = [] if args.noheader else [_line(args.format, None)]
    lines += [_line(args.format, (pool, state, groups[pool, state])) for pool, state in sorted(groups)]
    sys.stdout.write("".join(f"{line}\n" for line in dict.fromkeys(lines)))
    return 0


def _line(pattern: str, group: _Group | None) -> str:
    def field(found: re.Match[str]) -> str:
        head, value = _LETTERS[found[3]]
        text = head if group is None else clean(value(group))
        width = int(found[2] or 0)
        text = text[:width] if width else text
        return text.rjust(width) if found[1] else text.ljust(width)

    return _FIELD.sub(field, pattern).rstrip(" ")


def _state(node: NodeView) -> str:
    if not node.ready:
        return "down"
    if node.drained:
        return "drain"
    held = sum(1 for gpu in node.gpus if gpu.held_by is not None or gpu.sharing)
    if not held and not node.cpus_allocated:
        return "idle"
    return "alloc" if held and held == len(node.gpus) else "mix"


def _span(texts: Iterable[str]) -> str:
    """One text, or the first with a `+` if nodes differ."""
    found = list(dict.fromkeys(texts))
    return found[0] + ("+" if len(found) > 1 else "")
