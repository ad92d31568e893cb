"""From the arguments of `weft.submit` to the specification of a job."""

from pathlib import Path
from typing import Any, cast

import pytest

from weft import Refused
from weft.client.job_fields import JobFields, as_given, encoded, specification
from weft.domain.decoding.spec_decoder import SpecError, decode_spec


def made(given: Any = None, **fields: Any) -> dict[str, Any]:
    return specification(given, cast(JobFields, fields), cwd="/here")


def test_the_fields_of_the_role_and_numbers_in_short_become_a_specification() -> None:
    asked = made(command="python train.py --lr 0.1", gpus=1, cpus=2, memory="2GiB", replicas=4, retries=2)
    spec = decode_spec(encoded(asked))
    assert spec.command == ("python", "train.py", "--lr", "0.1")
    assert (spec.name, spec.workdir, spec.retries.max) == ("train", "/here", 2)
    role = spec.roles["worker"]
    assert (role.gpus, role.cpus, role.memory, role.replicas.want) == (1, 2.0, "2GiB", 4)


def test_a_container_and_a_job_with_a_folder_of_its_own_run_where_they_say(tmp_path: Path) -> None:
    assert "workdir" not in made(command=["true"], image="python:3.12-slim")
    assert "workdir" not in made(command=["true"], roles={"worker": {"image": "python:3.12-slim"}})
    assert decode_spec(encoded(made(command=["true"], workdir=tmp_path))).workdir == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"), [("job.yaml", "name: filed\ncommand: [sleep, 1]\n"), ("job.json", '{"name": "filed"}')]
)
def test_a_file_is_read_and_a_keyword_goes_before_it(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert made(tmp_path / name)["name"] == "filed"
    assert made(str(tmp_path / name), name="other", gpus=1) | {"command": None} == {
        "name": "other",
        "command": None,
        "workdir": "/here",
        "roles": {"worker": {"gpus": 1}},
    }


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"command": "a | b"}, "command", r"no shell runs it, so \| would be a word; did you mean \['sh', '-c'"),
        ({"command": "a 'b"}, "command", "cannot be split into words"),
        ({"array": "0-9"}, "array", "one call submits one job"),
        ({"gpu": 1}, "gpu", r"no such field; did you mean gpus\?"),
        ({"zzz": 1}, "zzz", "no such field$"),
        ({"gpus": 1, "roles": {"chief": {}, "worker": {}}}, "gpus", "sets it in `roles`"),
        ({"env": {"A": object()}}, "env", "object is no text"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_field_and_value(
    fields: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        encoded(made(**fields))
    assert (refused.value.field, refused.value.value, refused.value.status) == (field, fields[field], 0)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("job.txt", "", "expected a file that ends in .yaml, .yml, .json; weft.run takes a command"),
        ("job.yaml", "- a", "expected names and values"),
        ("job.yaml", "a: [", "not YAML"),
        ("job.json", "{", "is not JSON"),
        ("job.json", " " * (1 << 20) + "{}", "is larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_job_is_refused(name: str, text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Refused, match=reason):
        made(tmp_path / name)


@pytest.mark.parametrize(
    ("fields", "field", "value", "hint"),
    [
        ({"gpus": 65}, "gpus", 65, ""),
        ({"kind": "train"}, "kind", "train", "did you mean training?"),
        ({"memory": "16G"}, "memory", "16G", "did you mean 16GiB or 16GB?"),
        ({"command": ["a", 1]}, "command[1]", 1, ""),
        ({"roles": {"worker": {"gpus": 65}}}, "roles.worker.gpus", 65, ""),
    ],
)
def test_a_refusal_names_the_field_as_the_caller_wrote_it(
    fields: dict[str, Any], field: str, value: object, hint: str
) -> None:
    asked = made(**{"command": ["true"], **fields})
    with pytest.raises(SpecError) as found:
        decode_spec(encoded(asked))
    told = as_given(Refused(400, found.value.field, found.value.reason), asked, cast(JobFields, fields))
    assert (told.field, told.value, told.hint) == (field, value, hint)
