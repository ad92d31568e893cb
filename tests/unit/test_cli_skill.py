"""The page for assistants: `weft mcp --skill`."""

import re
import shlex

import weft
from tests.support.verbs import verbs
from weftd.cli.assistant.mcp import SKILL
from weftd.cli.commands import COMMANDS

TEXT = SKILL.read_text()


def test_the_page_opens_as_skills_do() -> None:
    _, front, _ = TEXT.split("---\n", 2)
    assert re.fullmatch(r"name: weft\ndescription: .{50,1024}\n", front)


def test_every_command_and_option_on_the_page_exists() -> None:
    options = {verb.name: {name for option in verb.options for name in option.names} for verb in verbs()}
    typed = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    commands = [part for line in typed for part in re.split(r" && ", line.partition(" #")[0])]
    assert len(commands) > 15
    for command in commands:
        program, verb, *words = shlex.split(command.partition(" -- ")[0].partition(">")[0])
        assert (program, verb in COMMANDS) == ("weft", True), command
        for option in (word for word in words if word.startswith("-")):
            assert option in options[verb], f"{verb} has no {option}"


def test_every_name_of_weft_on_the_page_exists() -> None:
    found = set(re.findall(r"\bweft\.([A-Za-z_]\w*)", TEXT))
    assert len(found) > 4
    assert found <= set(weft.__all__)
