"""The one validation of a job: what is accepted, and what one error says of what is not."""

import json
import math
import re
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tier import examples
from weft.domain.decoding.mistakes import MISTAKES_MAX
from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX, SpecError, decode_spec
from weft.domain.quantity import duration_seconds, duration_text, size_bytes, size_text
from weft.domain.spec import Kind, Role


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
        (job(context="a" * 63), "context"),
        (job(context="A" * 64), "context"),
        (job(context="a" * 64 + "\n"), "context"),
        (job(context="a" * 64, workdir="/data"), "workdir"),
        (job(context="a" * 64, image="x", workdir="/proc/self"), "workdir"),
        (job(context="a" * 64, image="x", workdir="/"), "workdir"),
        (job(context="a" * 64, image="x", workdir="/a/../proc"), "workdir"),
        (job(context="a" * 64, image="x", workdir="/d", volumes=[{"source": "/a", "target": "/d"}]), "workdir"),
        (job(progress={"pattern": "(?P<step>["}), "progress.pattern"),
        (job(progress={"pattern": "step"}), "progress.pattern"),
        (job(objective={"latency": "50ms", "rate": 10}), "objective"),
        (job(kind="inference", objective={"latency": "0s", "rate": 10}), "objective.latency"),
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
        (worker(replicas={"want": 2, "max": 1}), "roles.odd.replicas"),
        (worker(replicas={"want": 1, "max": 4097}), "roles.odd.replicas.max"),
        (worker(replicas={"want": 1, "max": 4096}), "roles"),
        (job(checkpoints={}), "checkpoints"),
        (job(checkpoints={"on_stop": False}), "checkpoints"),
        (job(checkpoints={"every": "10"}), "checkpoints.every"),
        (job(checkpoints={"every": "400d"}), "checkpoints.every"),
        (job(checkpoints={"every": "10m", "on_stop": "yes"}), "checkpoints.on_stop"),
        (job(checkpoints="10m"), "checkpoints"),
        (job(resize="live"), "resize"),
        (job(resize={"how": "sometimes"}), "resize.how"),
        (job(resize={"how": "live", "signal": "SIGKILL"}), "resize.signal"),
        (job(resize={"signal": "SIGHUP"}), "resize.signal"),
        (job(resize={"how": "restart", "signal": "SIGHUP"}), "resize.signal"),
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
        (b"- " * 10_000, "deep"),
        (b"[" * 10_000, "deep"),
        (b"[" * 100_000, "64 KiB"),
        (b"--- a\n--- b", "single document"),
        (b"!!python/object:os.system x", "tags"),
        (b"a: \xff", "not YAML"),
        (b"hello", "expected names and values, got hello"),
        (b"", "the specification is empty"),
        (b"x" * (SPEC_BYTES_MAX + 1), "at most"),
        (b"? [a]\n: b", "a name is text"),
    ],
)
def test_bad_yaml_is_refused_with_one_reason(body: bytes, reason: str) -> None:
    field, found = refusal(body, content="yaml")
    assert field == ""
    assert reason in found


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (b"a: &x [1]\nb: *x", "a", "anchors and aliases"),
        (b"b: *x", "b", "aliases"),
        (b"name: !!str a", "name", "tags"),
        (b"name: a\nname: b", "name", "is given twice"),
        (b"roles: {worker: {gpus: 1, gpus: 2}}", "roles.worker.gpus", "is given twice"),
        (b"volumes: [{source: /a}, {source: /b, source: /c}]", "volumes[1].source", "is given twice"),
        (b"<<: {name: a}", "<<", "no such field"),
        (b"a: 2020-99-99", "a", "no such field"),
    ],
)
def test_what_yaml_can_say_and_a_job_cannot_is_refused_with_its_place(body: bytes, field: str, reason: str) -> None:
    found, why = refusal(body, content="yaml")
    assert found == field
    assert reason in why


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"name": "a", "command": ["true"], "priority": 1, "priority": 5}', "priority"),
        (b'{"name": "a", "command": ["true"], "roles": {"worker": {"gpus": 1, "gpus": 2}}}', "roles.worker.gpus"),
        (b'{"name": "a", "command": ["true"], "env": {"A": "1", "\\u0041": "2"}}', "env.A"),
    ],
)
def test_a_name_that_json_gives_twice_is_refused(body: bytes, field: str) -> None:
    assert refusal(body) == (field, "is given twice")


COSTLY_YAML = {
    "base-60 integers": b"x: 1" + b":10" * 349_505,
    "base-60 integers, as many as are read": b"x: 1" + b":10" * 21_000,
    "ones": b"[" + b"1," * 524_000 + b"1]",
    "as many ones as are read": b"[" + b"1," * 32_000 + b"1]",
    "lists": b"[" + b"[]," * 349_000 + b"1]",
    "as many lists as are read": b"[" + b"[]," * 21_000 + b"1]",
    "keys": b"{" + b"".join(b"a%d: 1," % number for number in range(5_000)) + b"}",
    "deep": b"[" * 65_000,
    "a long word": b"name: " + b"a" * 60_000,
    "a long number": b"name: " + b"9" * 60_000,
    "a long float": b"name: 0." + b"9" * 60_000,
    "underscores": b"name: 1" + b"_" * 60_000,
    "dates": b"[" + b"2020-01-01," * 5_900 + b"1]",
    "comments": b"#\n" * 32_000,
    "documents": b"--- a\n" * 10_000,
    "aliases": b"a: &a [x]\n" + b"".join(b"a%d: *a\n" % number for number in range(6_000)),
}


@pytest.mark.parametrize("shape", COSTLY_YAML)
def test_no_shape_of_yaml_costs_more_than_a_moment(shape: str) -> None:
    begun = time.process_time()
    refusal(COSTLY_YAML[shape], content="yaml")
    assert time.process_time() - begun < 0.5  # it was 28 s


COSTLY_PATTERNS = {
    "wide ranges": "(?i)(?P<a>x)" + r"[!-\uffff]" * 98,
    "wide ranges, spelt out": "(?i)(?P<a>x)" + "[!-\uffff]" * 197,
    "wide ranges by name": r"(?i)(?P<a>x)[!-\N{LATIN SMALL LETTER A WITH MACRON}-\N{FULLWIDTH TILDE}]",
    "wide ranges of the far planes": r"(?i)(?P<a>x)" + r"[!-\U0010ffff]" * 60,
    "a wide range behind a comment": r"(?P<a>x)(?#[)[]!-\uffff]",
    "many sets": "(?i)(?P<a>x)" + r"[\x00-\xff]" * 80,
    "many ranges": "(?i)(?P<a>x)[" + "!-~" * 300 + "]",
    "many groups": "(?P<a>x)" + "(?:a|\u0101)" * 109,
}


@pytest.mark.parametrize("name", COSTLY_PATTERNS)
def test_a_pattern_that_is_slow_to_compile_is_refused_before_it_is_compiled(name: str) -> None:
    re.purge()
    begun = time.process_time()
    field, _ = refusal(job(progress={"pattern": COSTLY_PATTERNS[name]}))
    assert field == "progress.pattern"
    assert time.process_time() - begun < 0.05


@pytest.mark.parametrize(
    "pattern",
    [
        "(?i)(?P<a>x)" + r"[\x00-\xff]" * 32,
        "(?P<a>x)" + "(?:a|\u0101)" * 63,
        "(?P<a>x)" + "[a\u0101]" * 32,
        "(?i)(?P<a>[" + "".join(chr(0x100 + number) for number in range(900)) + "])",
        "(?P<a>" + "(" * 60 + "a" + ")" * 60 + ")",
    ],
)
def test_the_costliest_pattern_that_is_taken_compiles_in_a_moment(pattern: str) -> None:
    cheapest = math.inf
    for _ in range(5):
        re.purge()
        begun = time.process_time()
        decode_spec(msgspec.json.encode(job(progress={"pattern": pattern})))
        cheapest = min(cheapest, time.process_time() - begun)
    assert cheapest < 0.02


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
    "binds": ["/:/host"],
    "docker": {"privileged": True},
    "node": "node-1",
    "tenant": "somebody",
    "epoch": 7,
}


@pytest.mark.parametrize("field", ESCAPES)
def test_there_is_no_field_by_which_a_job_gets_out_of_its_container(field: str) -> None:
    for body, place in ((job, field), (worker, f"roles.odd.{field}")):
        found, reason = refusal(body(**{field: ESCAPES[field]}))
        assert (found, reason[:13]) == (place, "no such field")


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


@settings(max_examples=examples(400), deadline=None)
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


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (job(command="python train.py"), "command", 'a list of words, not a string; did you mean command: [sh, -c, "'),
        (worker(replicas=3), "roles.odd.replicas", "did you mean replicas: {want: 3}"),
        (job(retries=3), "retries", "did you mean retries: {max: 3}"),
        (job(kind="train"), "kind", "one of training, inference, notebook, batch, not train; did you mean training?"),
        (job(env={"A": 1, "B": "b"}), "env.A", 'put it in quotes, "1"'),
        (worker(env={"A": True}), "roles.odd.env.A", 'put it in quotes, "true"'),
        (job(gpus=2), "gpus", "it belongs in roles.worker"),
        (job(comand=["true"]), "comand", "did you mean command?"),
        (job(priorty=1), "priorty", "did you mean priority?"),
        (worker(gpu=2), "roles.odd.gpu", "did you mean gpus?"),
        (worker(priority=2), "roles.odd.priority", "it belongs in the job itself"),
        (worker(memory="4G"), "roles.odd.memory", "did you mean 4GiB or 4GB?"),
        (worker(memory="4Gi"), "roles.odd.memory", "did you mean 4GiB or 4GB?"),
        (job(workdir="src"), "workdir", "expected an absolute path"),
        (job(image="a b"), "image", "expected a container image"),
        (job(env={"1A": "x"}), "env", "1A: expected a name of letters"),
    ],
)
def test_a_mistake_that_people_make_is_told_with_what_would_be_right(
    body: dict[str, object], field: str, words: str
) -> None:
    found, reason = refusal(body)
    assert found == field
    assert words in reason


def test_an_empty_file_is_called_empty() -> None:
    assert refusal(b"# nothing yet\n", content="yaml")[1].endswith("the specification is empty")


def test_rules_of_several_fields_are_told_at_once_too() -> None:
    body = job(grace="2h", objective={"latency": "1s", "rate": 3}, progress={"pattern": "("})
    body |= {"array": "1-", "resize": {"signal": "SIGHUP"}}
    with pytest.raises(SpecError) as caught:
        decode_spec(msgspec.json.encode(body))
    fields = [mistake.field for mistake in caught.value.mistakes]
    assert fields == ["grace", "objective", "array", "resize.signal", "progress.pattern"]
    assert (caught.value.field, caught.value.reason) == caught.value.mistakes[0]


def test_all_that_is_wrong_is_told_at_once_and_no_more_than_a_page() -> None:
    body = job(kind="train", retries=3, env={"A": 1, "B": 2}, roles={"a": {"gpus": -1}, "b": {"memory": "4G"}})
    with pytest.raises(SpecError) as caught:
        decode_spec(msgspec.json.encode(body))
    assert [mistake.field for mistake in caught.value.mistakes] == [
        "kind",
        "retries",
        "env.A",
        "env.B",
        "roles.a.gpus",
        "roles.b.memory",
    ]
    assert (caught.value.field, caught.value.reason) == caught.value.mistakes[0]
    with pytest.raises(SpecError) as caught:
        decode_spec(msgspec.json.encode({f"x{number}": 1 for number in range(10_000)}))
    assert len(caught.value.mistakes) == MISTAKES_MAX


@pytest.mark.parametrize(("memory", "shm"), [("6MiB", 3 << 20), ("1GiB", 512 << 20), ("1TiB", 64 << 30)])
def test_shared_memory_that_nobody_asked_for_is_half_of_the_memory_within_a_bound(memory: str, shm: int) -> None:
    assert Role(memory=memory).shm_bytes == shm


@pytest.mark.parametrize(
    ("ulimits", "field", "why"),
    [
        ({"nofiles": 1000}, "ulimits.nofiles", "no such field; did you mean nofile?"),
        ({"cpu": 1}, "ulimits.cpu", "no such field"),
        ({"nofile": "64KiB"}, "ulimits.nofile", "expected a whole number or unlimited"),
        ({"nofile": 3}, "ulimits.nofile", "must be 64 to 1000000000, got 3"),
        ({"nproc": 0}, "ulimits.nproc", "must be 1 to 1000000000, got 0"),
        ({"nproc": True}, "ulimits.nproc", "expected a whole number or text, got true or false"),
        ({"stack": "64"}, "ulimits.stack", "expected a size such as 64MiB, 0 or unlimited"),
        ({"stack": -1}, "ulimits.stack", "must be 0 to 1000000000000000, got -1"),
        ({"memlock": "2000TiB"}, "ulimits", "memlock 2000TiB is more than 1000000000000000: use unlimited"),
    ],
)
def test_a_ulimit_that_means_nothing_is_refused_by_its_name(ulimits: dict[str, object], field: str, why: str) -> None:
    found, reason = refusal(job(ulimits=ulimits))
    assert found == field
    assert why in reason


def test_a_stop_signal_is_one_that_a_program_can_handle_and_no_other_than_that_of_a_resize() -> None:
    assert decode_spec(json.dumps(job(stop_signal="SIGINT")).encode()).stop_signal == "SIGINT"
    assert refusal(job(stop_signal="SIGKILL"))[0] == "stop_signal"
    assert refusal(job(stop_signal="SIGUSR1", resize={"signal": "SIGUSR1"}))[0] == "stop_signal"
