"""The scripts of bash, zsh and fish, made from the verbs. Names of jobs and nodes are asked of the cluster as they are
needed, by `weft completion --names`, which ends within a second."""

import shlex
from collections.abc import Callable, Sequence

from services.cli.completion.verbs import FILES, Option, Verb


def bash(verbs: Sequence[Verb]) -> str:
    """For `source <(weft completion bash)`."""
    names = " ".join(verb.name for verb in verbs)
    lines = [
        "# bash completion for weft: source <(weft completion bash)",
        '_weft_names() { weft completion --names "$1" 2>/dev/null; }',
        "_weft_offer() {",
        "    local word=\"${COMP_WORDS[COMP_CWORD]}\" IFS=$' \\t\\n'",
        '    case "$1" in',
        '    files) COMPREPLY=($(compgen -f -- "$word")) ;;',
        '    jobs|nodes) COMPREPLY=($(compgen -W "$(_weft_names "$1")" -- "$word")) ;;',
        '    *) COMPREPLY=($(compgen -W "$1" -- "$word")) ;;',
        "    esac",
        "}",
        "_weft() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}"',
        f"    if [ \"$COMP_CWORD\" -le 1 ]; then _weft_offer '{names}'; return; fi",
        '    case "$verb $before" in',
    ]
    for verb in verbs:
        for option in verb.options:
            if option.takes_value:
                patterns = "|".join(f"'{verb.name} {name}'" for name in option.names)
                lines.append(f"    {patterns}) {_bash_offer(option)}; return ;;")
    lines += ["    esac", '    case "$verb $word" in']
    for verb in verbs:
        options = " ".join(name for option in verb.options for name in option.names)
        lines.append(f"    '{verb.name} -'*) _weft_offer '{options}' ;;")
        offered = " ".join(verb.words) or verb.of
        if offered:
            lines.append(f"    '{verb.name} '*) _weft_offer {shlex.quote(offered)} ;;")
    lines += ["    esac", "}", "complete -o bashdefault -F _weft weft"]
    return "\n".join(lines) + "\n"


def _bash_offer(option: Option) -> str:
    offered = " ".join(option.values) or option.of
    return f"_weft_offer {shlex.quote(offered)}" if offered else "COMPREPLY=()"


def zsh(verbs: Sequence[Verb]) -> str:
    """For `source <(weft completion zsh)`, or a file `_weft` in a folder of `fpath`."""
    lines = [
        "#compdef weft",
        "# zsh completion for weft: source <(weft completion zsh)",
        "# _arguments calls it with options for compadd before its own word",
        '_weft_names() { local -a names; names=(${(f)"$(weft completion --names $@[-1] 2>/dev/null)"});'
        ' compadd "${@[1,-2]}" -a names }',
        "_weft() {",
        "    local -a verbs",
        "    verbs=(",
        *(f"        {shlex.quote(f'{_colons(verb.name)}:{_colons(verb.summary)}')}" for verb in verbs),
        "    )",
        "    if (( CURRENT == 2 )); then _describe verb verbs; return; fi",
        "    local verb=$words[2]",
        "    shift words; (( CURRENT-- ))",
        "    case $verb in",
    ]
    for verb in verbs:
        specs = [_zsh_option(option, name) for option in verb.options for name in option.names]
        specs.append(f"*:argument:{_zsh_action(verb.words, verb.of)}")
        lines.append(f"    {verb.name}) _arguments -S {' '.join(shlex.quote(spec) for spec in specs)} ;;")
    lines += ["    esac", "}"]
    # As a file of `fpath` this text is itself the function, which is called as it is read for the first time.
    lines += ['if [[ $funcstack[1] = _weft ]]; then _weft "$@"; else compdef _weft weft; fi']
    return "\n".join(lines) + "\n"


def _zsh_option(option: Option, name: str) -> str:
    told = option.summary.replace("[", "(").replace("]", ")").replace(":", r"\:").replace("\\(", "(")
    value = f":value:{_zsh_action(option.values, option.of)}" if option.takes_value else ""
    return f"*{name}[{told}]{value}"


def _zsh_action(values: Sequence[str], of: str) -> str:
    if values:
        return f"({' '.join(values)})"
    return {"": " ", FILES: "_files"}.get(of, f"_weft_names {of}")


def _colons(text: str) -> str:
    return text.replace(":", r"\:")


def fish(verbs: Sequence[Verb]) -> str:
    """For `weft completion fish | source`."""
    lines = ["# fish completion for weft: weft completion fish | source", "complete -c weft -f"]
    for verb in verbs:
        seen = f"-n '__fish_seen_subcommand_from {verb.name}'"
        lines.append(f"complete -c weft -n __fish_use_subcommand -a {verb.name} -d {_fish(verb.summary)}")
        offered = _fish_offer(verb.words, verb.of)
        if offered:
            lines.append(f"complete -c weft {seen} {offered}")
        for option in verb.options:
            flags = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            takes = "-r" if option.of == FILES and not option.values else "-x"  # `-x` offers no files
            value = " ".join(part for part in (takes, _fish_offer(option.values, option.of)) if part)
            told = _fish(option.summary)
            lines.append(f"complete -c weft {seen} {flags} -d {told}{f' {value}' * option.takes_value}")
    return "\n".join(lines) + "\n"


def _fish_offer(values: Sequence[str], of: str) -> str:
    if values:
        return f"-a {_fish(' '.join(values))}"
    return {"": "", FILES: "-F"}.get(of, f"-a '(weft completion --names {of} 2>/dev/null)'")


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: dict[str, Callable[[Sequence[Verb]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
