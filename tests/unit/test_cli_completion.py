"""Shell completion: bash is asked what it offers, and the cluster for its names."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.told_gateway import ToldGateway, weft
from tests.support.verbs import verbs
from tests.support.views import job_view, node_view
from weft.messages.http import JobsView, NodesView
from weftd.cli.commands import COMMANDS
from weftd.cli.complete import SHELLS, script

Said = pytest.CaptureFixture[str]

_ASK = """
weft() {
    case "$*" in
    "completion --names jobs") echo "mlp-1 mlp-2 eval" ;;
    "completion --names nodes") echo node-1 ;;
    esac
}
complete() { :; }
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_weft
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "weft.bash"
    path.write_text(script("bash"))
    return path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["weft", "can"], ["cancel"]),
        (["weft", "cancel", "mlp"], ["mlp-1", "mlp-2"]),
        (["weft", "drain", ""], ["node-1"]),
        (["weft", "ps", "--sta"], ["--state"]),
        (["weft", "ps", "--state", "ru"], ["running"]),
        (["weft", "ps", "--node", ""], ["node-1"]),
        (["weft", "ps", "--label", "x"], []),
        (["weft", "token", "cr"], ["create"]),
        (["weft", "completion", "f"], ["fish"]),
        (["weft", "cancel", "$(touch /tmp/never)"], []),
    ],
)
def test_bash_offers_what_may_be_typed(bash: Path, typed: list[str], offered: list[str]) -> None:
    asked = ["bash", "--norc", "-c", _ASK, "bash", str(bash), *typed]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_an_alias_is_no_verb_of_its_own() -> None:
    token = next(verb for verb in verbs() if verb.name == "token")
    assert any(name.startswith("create ") for name, _ in token.arguments)
    assert not any(name.startswith("make ") for name, _ in token.arguments)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_completed(shell: str) -> None:
    text = script(shell)
    assert [name for name in COMMANDS if not re.search(rf"\b{name}\b", text)] == []


async def test_names_are_those_of_the_cluster_and_none_where_none_answers(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view("j-1", name="a"), job_view("j-2", name="a")))
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=(node_view("n-1"),))
    assert await weft(gateway, "completion", "--names", "jobs") == 0
    assert capsys.readouterr().out.split() == ["a", "j-1", "j-2"]
    assert await weft(gateway, "completion", "--names", "nodes") == 0
    assert capsys.readouterr().out.split() == ["n-1"]
    gateway.refuse("GET /v1/jobs", 503, "", "away")
    assert await weft(gateway, "completion", "--names", "jobs") == 1
    assert capsys.readouterr() == ("", "")
