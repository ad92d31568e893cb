"""The completion of shells: bash is asked for its offers; of zsh and fish the text is held against the parsers."""

import re
import subprocess
from pathlib import Path

import pytest

from libs.messages.http import JobsView, NodesView
from services.cli.commands import COMMANDS
from services.cli.completion.scripts import SCRIPTS
from services.cli.completion.verbs import Verb, verbs
from tests.support.told_gateway import ToldGateway, weft
from tests.support.views import job_view, node_view

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
_weft
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def every() -> list[Verb]:
    return verbs()


@pytest.fixture(scope="module")
def script(every: list[Verb], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "weft.bash"
    path.write_text(SCRIPTS["bash"](every))
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
        (["weft", "no-such-verb", ""], []),
        (["weft", "cancel", "$(touch /tmp/never)"], []),
    ],
)
def test_bash_offers_what_may_be_typed(script: Path, typed: list[str], offered: list[str]) -> None:
    asked = ["bash", "--norc", "-c", _ASK, "bash", str(script), *typed]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_an_alias_is_no_verb_of_its_own(every: list[Verb]) -> None:
    token = next(verb for verb in every if verb.name == "token")
    assert token.words == ("create", "list", "revoke")
    assert not any(name.startswith("make ") for name, _ in token.arguments)


def test_every_verb_and_every_option_is_in_every_script(every: list[Verb]) -> None:
    assert [verb.name for verb in every] == list(COMMANDS)
    texts = {shell: write(every) for shell, write in SCRIPTS.items()}
    for verb in every:
        assert all(re.search(rf"\b{verb.name}\b", text) for text in texts.values())
        for name in (name for option in verb.options for name in option.names):
            assert f"*{name}[" in texts["zsh"]
            assert re.search(rf"[ ']{name}\b", texts["bash"])
            assert re.search(rf" -[ls] {name.lstrip('-')} ", texts["fish"])


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
