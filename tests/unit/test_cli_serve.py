"""`weft serve`: each recipe is a job file that can be printed, read again, and submitted."""

import pytest

from tests.support.told_gateway import ToldGateway, weft
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.spec import Kind
from weft.messages.http import Submitted
from weftd.cli.__main__ import main
from weftd.cli.services.serve import RECIPES

Said = pytest.CaptureFixture[str]
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize("engine", RECIPES)
def test_a_recipe_is_a_job_file_that_names_the_model(engine: str, capsys: Said) -> None:
    assert main(["serve", engine, MODEL, "--print", "--max", "3", "--gpus", "2"]) == 0
    spec = decode_spec(capsys.readouterr().out.encode(), content="yaml")
    assert (spec.name, spec.kind) == ("llama-3-1-8b-instruct", Kind.INFERENCE)
    assert spec.service is not None
    assert spec.entrypoint
    started = " ".join((*spec.entrypoint, *spec.command))
    assert MODEL in started
    assert str(spec.service.port) in started
    role = spec.roles["worker"]
    assert (role.gpus, role.replicas.least, role.replicas.most) == (2, 0, 3)
    served = None if spec.service.model is None else spec.service.model.name
    assert served == (None if engine == "triton" else MODEL)


def test_a_model_is_served_under_another_name_where_the_engine_can(capsys: Said) -> None:
    assert main(["serve", "vllm", MODEL, "--as", "chat", "--print"]) == 0
    spec = decode_spec(capsys.readouterr().out.encode(), content="yaml")
    assert spec.service is not None
    assert spec.service.model is not None
    assert spec.service.model.name == "chat"
    assert spec.command[:3] == (MODEL, "--served-model-name", "chat")
    assert main(["serve", "ollama", "llama3:8b", "--as", "chat"]) == 2
    assert "--as: ollama serves a model under its own name only" in capsys.readouterr().err


def test_adapters_are_names_of_models_that_vllm_loads(capsys: Said) -> None:
    assert main(["serve", "vllm", MODEL, "--adapter", "sql=/adapters/sql", "--adapter", "b=org/b", "--print"]) == 0
    spec = decode_spec(capsys.readouterr().out.encode(), content="yaml")
    assert spec.service is not None
    assert spec.service.model is not None
    assert spec.service.model.adapters == {"sql": "/adapters/sql", "b": "org/b"}
    assert "--enable-lora" in spec.command
    assert spec.env == {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (("ollama", "m", "--adapter", "a=/a"), "--adapter: ollama loads no adapters"),
        (("vllm", "m", "--adapter", "a"), "--adapter: a is not NAME=SOURCE"),
        (("vllm", "m", "--adapter", "a=1", "--adapter", "a=2"), "--adapter: a=2 is named twice"),
        (("vllm", "m", "--adapter", "m=1"), "--adapter"),
        (("vllm", "a model"), "MODEL"),
        (("vllm", "m", "--name", "No Name"), "--name"),
        (("vllm", "m", "--gpus", "-1"), "--gpus"),
        (("vllm", "m", "--memory", "much"), "--memory"),
        (("vllm", "m", "--max", "0"), "--max"),
    ],
)
def test_what_is_wrong_is_told_by_option_before_anything_is_sent(
    typed: tuple[str, ...], field: str, capsys: Said
) -> None:
    assert main(["serve", *typed]) == 2
    assert field in capsys.readouterr().err


async def test_what_is_submitted_is_what_is_printed(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id="j-1", name="bge-small-en-v1-5", created=True)
    assert await weft(gateway, "serve", "tei", "BAAI/bge-small-en-v1.5") == 0
    assert capsys.readouterr().out == "j-1\n"
    assert await weft(gateway, "serve", "tei", "BAAI/bge-small-en-v1.5", "--print") == 0
    assert gateway.bodies == [capsys.readouterr().out.encode()]
    gateway.refuse("POST /v1/jobs", 422, "roles.worker.gpus", "wants 9, the largest node has 8")
    assert await weft(gateway, "serve", "vllm", "m", "--gpus", "9") == 1
    assert "--gpus: wants 9" in capsys.readouterr().err
