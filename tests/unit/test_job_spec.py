"""The one validation of a job: what is accepted, and what one error says of what is not."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.quantity import duration_seconds, duration_text, size_bytes, size_text
from libs.domain.spec import SPEC_BYTES_MAX, Kind, SpecError, decode_spec


def refusal(body: bytes | dict[str, object], *, content: str = "json") -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        decode_spec(body if isinstance(body, bytes) else msgspec.json.encode(body), content=content)
    return caught.value.field, caught.value.reason


def job(**fields: object) -> dict[str, object]:
    return {"name": "a", "command": ["true"], **fields}


def worker(**fields: object) -> dict[str, object]:
    return job(roles={"worker": {}, "odd": fields})


def test_a_name_and_a_command_are_enough() -> None:
    spec = decode_spec(b'{"name": "a", "command": ["true"]}')
    assert (spec.kind, spec.pool, spec.preemptible) == (Kind.TRAINING, "default", True)
    assert [(name, role.gpus, role.replicas.want) for name, role in spec.roles.items()] == [("worker", 0, 1)]


def test_yaml_and_json_mean_the_same() -> None:
    yaml = b"name: a\ncommand: [python3, train.py]\nroles:\n  worker: {gpus: 2, memory: 16GiB}\ntime_limit: 1h30m\n"
    as_json = msgspec.json.encode(
        {
            "name": "a",
            "command": ["python3", "train.py"],
            "roles": {"worker": {"gpus": 2, "memory": "16GiB"}},
            "time_limit": "1h30m",
        }
    )
    assert decode_spec(yaml, content="yaml") == decode_spec(as_json)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (job(gpu=1), "gpu"),
        (worker(gpu=1), "roles.odd.gpu"),
        ({"command": ["true"]}, "name"),
        (job(name="a.b"), "name"),
        (job(name="a\n"), "name"),
        (job(name="A"), "name"),
        (job(name="x" * 64), "name"),
        (job(pool="a.b"), "pool"),
        (job(kind="gaming"), "kind"),
        (job(command="true"), "command"),
        (job(command=[]), "command"),
        (job(command=[1]), "command[0]"),
        (job(command=["a\0b"]), "command[0]"),
        (job(command=None, image=None), "command"),
        (job(priority=1001), "priority"),
        (job(priority=10**30), "priority"),
        (job(priority="1"), "priority"),
        (job(grace="30"), "grace"),
        (job(grace="2h"), "grace"),
        (job(time_limit="0s"), "time_limit"),
        (job(retries={"max": -1}), "retries.max"),
        (job(volumes=[{"source": "data", "target": "/data"}]), "volumes[0].source"),
        (job(volumes=[{"source": "/a/../etc", "target": "/data"}]), "volumes[0]"),
        (job(progress={"pattern": "(?P<step>["}), "progress.pattern"),
        (job(progress={"pattern": "step"}), "progress.pattern"),
        (job(objective={"latency": "50ms", "rate": 10}), "objective"),
        (job(roles={}), "roles"),
        (job(roles={"a.b": {}}), "roles"),
        (worker(gpus=-1), "roles.odd.gpus"),
        (worker(gpus=65), "roles.odd.gpus"),
        (worker(gpus=1.5), "roles.odd.gpus"),
        (worker(cpus=0), "roles.odd.cpus"),
        (worker(cpus=5e-324), "roles.odd.cpus"),
        (job(progress={"pattern": "(?P<a>x){99999999999999}"}), "progress.pattern"),
        (job(retries={"backoff": "9999999d"}), "retries.backoff"),
        (job(time_limit="9999999d" * 20), "time_limit"),
        (worker(memory="16XB"), "roles.odd.memory"),
        (worker(memory="999999TiB"), "roles.odd"),
        (worker(memory="1GiB", shm="2GiB"), "roles.odd"),
        (worker(replicas={"want": 0}), "roles.odd.replicas.want"),
        (worker(replicas={"want": 2, "min": 3}), "roles.odd.replicas"),
        (worker(gpus=1, share={"request": 0.5, "memory": "1GiB"}), "roles.odd"),
        (worker(share={"request": 0.5, "limit": 0.2, "memory": "1GiB"}), "roles.odd.share"),
        (worker(replicas={"want": 4096}), "roles"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(body: dict[str, object], field: str) -> None:
    found, reason = refusal(body)
    assert found == field
    assert reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not YAML"),
        (b"a: &x [1]\nb: *x", "aliases"),
        (b"- " * 100_000, "deep"),
        (b"[" * 100_000, "deep"),
        (b"--- a\n--- b", "single document"),
        (b"!!python/object:os.system x", "not YAML"),
        (b"a: 2020-99-99", "not YAML"),
        (b"a: \xff", "not YAML"),
        (b"hello", "object"),
        (b"", "object"),
        (b"x" * (SPEC_BYTES_MAX + 1), "at most"),
    ],
)
def test_bad_yaml_is_refused_with_one_reason(body: bytes, reason: str) -> None:
    field, found = refusal(body, content="yaml")
    assert field == ""
    assert reason in found


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b"\xff", b'{"name": "a"', b"null"])
def test_bad_json_is_refused(body: bytes) -> None:
    assert refusal(body)[1]


def test_half_a_surrogate_pair_is_refused() -> None:
    assert refusal(b'{"name": "a", "command": ["\\ud800"]}')


def test_a_backslash_before_u0000_is_no_nul() -> None:
    assert decode_spec(b'{"name": "a", "command": ["\\\\u0000"]}').command == ("\\u0000",)


@given(st.binary(max_size=200), st.sampled_from(["json", "yaml"]))
def test_whatever_comes_in_is_a_job_or_one_error(body: bytes, content: str) -> None:
    assert outcome(body, content=content)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner), max_leaves=9))
def test_whatever_stands_in_a_field_is_a_job_or_one_error(value: object) -> None:
    for field in ("name", "command", "env", "roles", "priority", "volumes", "labels", "retries"):
        assert outcome(msgspec.json.encode(job(**{field: value})))


def outcome(body: bytes, *, content: str = "json") -> str:
    """The job's name, or the reason why it is none."""
    try:
        return decode_spec(body, content=content).name
    except SpecError as error:
        return error.reason


def test_sizes_and_durations_are_read_as_people_write_them() -> None:
    assert (size_bytes("16GiB"), size_bytes("1.5KB")) == (16 << 30, 1500)
    assert (duration_seconds("1h30m"), duration_seconds("250ms")) == (5400.0, 0.25)
    assert (size_text(16 << 30), duration_text(5400)) == ("16GiB", "1h30m")
    with pytest.raises(ValueError, match="expected a size"):
        size_bytes("16GiB\n")


ESCAPES = {
    "privileged": True,
    "host_network": True,
    "network": "host",
    "network_mode": "host",
    "pid": "host",
    "ipc": "host",
    "user": "0:0",
    "cap_add": ["SYS_ADMIN"],
    "security_opt": ["seccomp=unconfined"],
    "devices": ["/dev/mem"],
    "device_requests": [{"count": -1}],
    "runtime": "nvidia",
    "cgroup_parent": "/",
    "sysctls": {"kernel.msgmax": "1"},
    "mounts": [{"source": "/", "target": "/host"}],
    "entrypoint": ["/bin/sh"],
    "docker": {"privileged": True},
    "node": "node-1",
    "tenant": "somebody",
    "epoch": 7,
}


@pytest.mark.parametrize("field", ESCAPES)
def test_there_is_no_field_by_which_a_job_gets_out_of_its_container(field: str) -> None:
    assert refusal(job(**{field: ESCAPES[field]})) == (field, "no such field")
    assert refusal(worker(**{field: ESCAPES[field]})) == (f"roles.odd.{field}", "no such field")


@pytest.mark.parametrize("target", ["/", "/proc", "/sys", "/dev", "/proc/sys/kernel", "/dev/shm"])
def test_a_volume_does_not_cover_what_the_container_stands_on(target: str) -> None:
    field, reason = refusal(job(volumes=[{"source": "/srv/data", "target": target}]))
    assert (field, reason) == ("volumes[0]", f"{target} is the container's own")


@pytest.mark.parametrize("name", ["LD_PRELOAD=x", "A B", "A\n", "1A", "", "A=B", "Ä"])
def test_a_name_that_is_none_of_an_environment_is_refused(name: str) -> None:
    assert refusal(job(env={name: "x"}))[0].startswith("env")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
WHOLE = job(
    kind="training",
    env={"A": "b"},
    volumes=[{"source": "/srv/data", "target": "/data"}],
    retries={"max": 1, "backoff": "1s"},
    progress={"pattern": "(?P<step>[0-9]+)"},
    roles={"worker": {"replicas": {"want": 2}, "gpus": 1, "memory": "1GiB", "env": {"B": "c"}}},
)


def places(value: object, at: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every place in a document, the whole of it included."""
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in items:
        found += places(part, (*at, name))
    return found


def with_another(value: Any, at: tuple[Any, ...], put: object) -> Any:
    if not at:
        return put
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[at[0]] = with_another(changed[at[0]], at[1:], put)
    return changed


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(places(WHOLE)), JSON_VALUES, st.sampled_from(["json", "yaml"]))
def test_whatever_stands_anywhere_is_a_job_or_one_error_that_names_a_field(
    at: tuple[object, ...], put: object, content: str
) -> None:
    body = with_another(WHOLE, at, put)
    try:
        decoded = decode_spec(json.dumps(body).encode(), content=content)
    except SpecError as error:
        said = error.reason
    else:
        # What is taken says the same when it is written and read again.
        assert decode_spec(msgspec.json.encode(decoded)) == decoded
        said = "taken"
    assert said
    assert "\n" not in said


@pytest.mark.parametrize("mode", ["off", "advise", "on"])
def test_the_words_of_tuning_need_no_quotes_in_yaml(mode: str) -> None:
    found = decode_spec(f"name: a\ncommand: ['true']\ntuning: {{mode: {mode}}}\n".encode(), content="yaml")
    assert found.tuning.mode == mode


def test_true_and_false_are_what_yaml_says_they_are() -> None:
    found = decode_spec(b"name: a\ncommand: ['true']\npreemptible: false\nread_only: True\n", content="yaml")
    assert (found.preemptible, found.read_only) == (False, True)
