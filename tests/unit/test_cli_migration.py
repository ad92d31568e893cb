"""`weft init` and `weft migrate-from`: what they write is a job that can be submitted, and nothing is lost unsaid."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.decoding.yaml_reader import read_yaml
from weft.domain.spec import Kind
from weftd.cli.__main__ import main
from weftd.cli.cli_error import CliError
from weftd.cli.migration.determined import from_determined
from weftd.cli.migration.init import template
from weftd.cli.migration.slurm import from_slurm
from weftd.cli.migration.slurm_values import NoValueError, gpus_of, memory_bytes, range_of, seconds_of
from weftd.cli.migration.written import Translated, name_of, page_of, quoted

Said = pytest.CaptureFixture[str]


def spec_of(translated: Translated) -> dict[str, Any]:
    """The specification, after the job file was written and read again."""
    text = page_of(translated, "a\nfile")
    decode_spec(text.encode(), content="yaml")
    assert read_yaml(text.encode()) == translated.spec
    return translated.spec


def remarks_of(translated: Translated) -> str:
    return "\n".join(f"{each.where}: {each.sentence}" for each in translated.remarks)


# weft init


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("workdir", ["/home/ada", '/a "b" # c: {d}\n\x1b', "/ö/😀", "/\udcff"])
def test_a_job_file_to_begin_with_can_be_submitted_with_every_choice_taken(kind: Kind, workdir: str) -> None:
    text = template("mnist", kind, workdir=workdir)
    assert decode_spec(text.encode(), content="yaml").kind is kind
    chosen = re.sub(r"^( *)#(?=[a-z])", r"\1", text, flags=re.MULTILINE)
    chosen = re.sub(r"^ +share:.*\n", "", chosen, flags=re.MULTILINE)  # in place of gpus
    assert chosen.count("\n") == text.count("\n") - 1
    assert decode_spec(chosen.encode(), content="yaml").priority == 5


def test_init_replaces_no_file_unasked(tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--name", "mnist"]) == 0
    written = (tmp_path / "job.yaml").read_text()
    assert decode_spec(written.encode(), content="yaml").name == "mnist"
    assert main(["init"]) == 1
    assert "job.yaml is there already: --force replaces it" in capsys.readouterr().err
    assert (tmp_path / "job.yaml").read_text() == written
    assert main(["init", "--force", "--kind", "batch"]) == 0
    assert (tmp_path / "job.yaml").read_text() != written
    assert main(["init", "--name", "No Name"]) == 2
    assert main(["init", "no/such/folder.yaml"]) == 1
    assert main(["init", "a\0b"]) == 1


@given(st.text())
def test_a_quoted_text_is_read_as_it_was(text: str) -> None:
    told = f"a: {quoted(text)}\n"
    assert told.count("\n") == 1
    assert read_yaml(told.encode()) == {"a": text}


# Slurm

SCRIPT = """\
#!/bin/bash -l
#SBATCH --job-name=My_Train -N 2 --ntasks-per-node=4
#SBATCH --gres=gpu:h100:4   # of one type
#SBATCH -c8 --mem=256G
#SBATCH -t 1-12:00:00 --signal=B:USR1@120 --requeue
#SBATCH --array=1-40%8 --mail-type END
#SBATCH --bogus "odd \x1b value"
#SBATCH --export=NONE,A=1 --nodelist=node-7

module load cuda

srun -n 8 --label python train.py
#SBATCH --time=1
"""


def test_a_script_of_slurm_becomes_a_gang_that_runs_it() -> None:
    translated = from_slurm(SCRIPT, path="x/run.sh", folder="/work")
    spec = spec_of(translated)
    assert spec["roles"] == {"worker": {"replicas": {"want": 8}, "gpus": 1, "cpus": 8, "memory": "64GiB"}}
    assert (spec["name"], spec["workdir"], spec["time_limit"]) == ("my-train", "/work", "2160m")
    assert (spec["grace"], spec["retries"], spec["env"], spec["pin"]) == (
        "120s",
        {"max": 3},
        {"A": "1"},
        {"node": "node-7"},
    )
    told = remarks_of(translated)
    for part in ("line 3, --gres: type h100", "--mail-type", "line 7, --bogus", "line 10: module"):
        assert part in told
    assert spec["array"] == "1-40%8"
    assert "\x1b" not in page_of(translated, "\x1b")


def printed(command: list[str], **environment: str) -> list[str]:
    """The lines of a translated script that a run of it writes."""
    given = {"PATH": os.environ["PATH"], "WEFT_JOB_ID": "j-1", "WEFT_EPOCH": "2", "WEFT_GPUS": "3", **environment}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


GANG = {
    "WEFT_RANK": "1",
    "WEFT_WORLD_SIZE": "2",
    "MASTER_PORT": "23456",
    "TF_CONFIG": '{"cluster":{"worker":["10.0.0.1:23456","fe80::2:23457"]},"task":{"type":"worker","index":1}}',
}
ALONE = {"WEFT_RANK": "0", "WEFT_WORLD_SIZE": "1", "WEFT_ADDRESS": "10.0.0.9"}


def test_the_script_runs_as_it_is_written_on_every_rank() -> None:
    script = "#!/bin/bash\n#SBATCH -n 2\nsrun -n 2 --label -c4 echo $SLURM_PROCID of $SLURM_NTASKS 'a  b'\n"
    translated = from_slurm(script, path="run.sh", folder="/")
    assert printed(spec_of(translated)["command"], **GANG) == ["1 of 2 a  b"]


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("run", "hosts", "own"), [(GANG, "10.0.0.1,fe80::2", "fe80::2"), (ALONE, "10.0.0.9", "10.0.0.9")]
)
def test_the_variables_of_slurm_agree_that_each_replica_is_a_node_of_one_task(
    shell: str, run: dict[str, str], hosts: str, own: str
) -> None:
    script = f"#!/bin/{shell}\n#SBATCH -n 2 --ntasks-per-node=2 -c 4 --gpus-per-task=1 -J x\nenv\n"
    lines = printed(spec_of(from_slurm(script, path="run.sh", folder="/"))["command"], **run)
    found = dict(line.split("=", 1) for line in lines if line.startswith("SLURM"))
    world, rank = run["WEFT_WORLD_SIZE"], run["WEFT_RANK"]
    count = ("NNODES", "JOB_NUM_NODES", "STEP_NUM_NODES", "NTASKS", "NPROCS", "STEP_NUM_TASKS")
    assert {found[f"SLURM_{name}"] for name in count} == {world}
    assert (found["SLURM_PROCID"], found["SLURM_NODEID"], found["SLURM_LOCALID"]) == (rank, rank, "0")
    assert found["SLURM_NTASKS_PER_NODE"] == "1"
    assert found["SLURM_TASKS_PER_NODE"] == ("1(x2)" if world == "2" else "1")
    assert {found[f"SLURM_{name}"] for name in ("JOB_NODELIST", "NODELIST", "STEP_NODELIST")} == {hosts}
    assert found["SLURMD_NODENAME"] == own
    assert (found["SLURM_CPUS_PER_TASK"], found["SLURM_GPUS_ON_NODE"], found["SLURM_JOB_GPUS"]) == ("4", "1", "3")
    assert found["SLURM_JOB_ID"] == found["SLURM_JOBID"]
    assert (found["SLURM_JOB_ID"].isdecimal(), found["SLURM_RESTART_COUNT"]) == (True, "2")


def test_a_script_finds_the_first_host_as_it_does_under_slurm() -> None:
    script = "#!/bin/bash\nhead=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\necho $head\n"
    assert printed(spec_of(from_slurm(script, path="run.sh", folder="/"))["command"], **GANG) == ["10.0.0.1"]


def test_each_variable_of_slurm_that_a_script_reads_and_none_sets_is_remarked_once() -> None:
    script = (
        "#!/bin/sh\n# $SLURM_A\necho $SLURM_TOPOLOGY_ADDR $SLURM_NNODES\nexport SLURM_HINT=x\n${SLURM_TOPOLOGY_ADDR}\n"
    )
    told = [
        remark.sentence
        for remark in from_slurm(script, path="run.sh", folder="/").remarks
        if "SLURM" in remark.sentence
    ]
    assert told == ["SLURM_TOPOLOGY_ADDR: is not set here"]


def test_several_tasks_of_a_node_are_remarked() -> None:
    told = remarks_of(from_slurm("#SBATCH -N 1 --ntasks-per-node=2\ntrue\n", path="run.sh", folder="/"))
    assert "2 tasks per node: each becomes a replica, as a node with one task" in told


def test_an_array_of_slurm_is_an_array_whose_script_finds_its_index() -> None:
    options = "#SBATCH --array=0-8:4,9%2 --dependency=singleton"
    script = f"#!/bin/sh\n{options}\necho $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_JOB_ID\n"
    translated = from_slurm(script, path="run.sh", folder="/")
    spec = spec_of(translated)
    assert (spec["array"], spec["singleton"]) == ("0-8:4,9%2", True)
    assert "array" not in remarks_of(translated).lower()
    of_element = {"WEFT_ARRAY_INDEX": "4", "WEFT_ARRAY_ID": "a-1"}
    (line,) = printed(spec["command"], **ALONE, **of_element)
    index, _, array = line.partition(" of ")
    assert (index, array.isdecimal()) == ("4", True)


@pytest.mark.parametrize("indices", ["1-99999999", "0-9%0", "%4", "9-1", "1,1", "x", "", "0-20000"])
def test_an_array_that_weft_would_refuse_is_named_and_left_out(indices: str) -> None:
    script = (
        f"#!/bin/sh\n#SBATCH --array={indices} --dependency=afterok:12?afterany:13 --bogus\necho $SLURM_ARRAY_TASK_ID\n"
    )
    translated = from_slurm(script, path="run.sh", folder="/")
    assert "array" not in spec_of(translated)
    told = remarks_of(translated)
    for part in ("line 2, --array", "SLURM_ARRAY_…: is set in an array alone", "--dependency: names jobs of Slurm"):
        assert part in told
    assert "()" not in told


@pytest.mark.parametrize(
    ("options", "role"),
    [
        ("-N2 --gpus-per-node=8", {"replicas": {"want": 2}, "gpus": 8}),
        ("-N 2-4 --gpus-per-node=8", {"replicas": {"min": 2, "want": 4}, "gpus": 8}),
        ("--ntasks=4 --gpus=4", {"replicas": {"want": 4}, "gpus": 1}),
        ("-n 3 --gpus-per-task=a100:2 --cpus-per-task=4", {"replicas": {"want": 3}, "gpus": 2, "cpus": 4}),
        ("-c 4 --mem-per-cpu=2G", {"cpus": 4, "memory": "8GiB"}),
        ("--gpus=2 --mem-per-gpu=10G", {"gpus": 2, "memory": "20GiB"}),
        ("--nodes=99999999999 --ntasks=-1 --mem=lots --time=99:99:99:99", {"replicas": {"want": 1}}),
    ],
)
def test_tasks_become_replicas(options: str, role: dict[str, Any]) -> None:
    translated = from_slurm(f"#SBATCH {options}\ntrue\n", path="run.sh", folder="/")
    found = spec_of(translated)["roles"]["worker"]
    assert {name: found[name] for name in role} == role


def test_values_as_slurm_writes_them() -> None:
    times = ["30", "30:10", "2:00:00", "1-12", "1-12:30", "1-12:30:05", "UNLIMITED"]
    assert [seconds_of(text) for text in times] == [1800, 1810, 7200, 129600, 131400, 131405, 0]
    assert [memory_bytes(text) for text in ("1", "2K", "3M", "4G", "1TB")] == [1 << 20, 2048, 3 << 20, 4 << 30, 1 << 40]
    gpus = ["gpu", "gpu:2", "gpu:h100:4", "8", "a100:1", "a100"]
    assert [gpus_of(text) for text in gpus] == [("", 1), ("", 2), ("h100", 4), ("", 8), ("a100", 1), ("a100", 1)]
    for read in (seconds_of, memory_bytes, gpus_of, range_of):
        for text in ("", "-1", "x:y:z:w", "9" * 5000, "1\n", "٤", "4-2-1", ":", "gpu:"):
            with pytest.raises(NoValueError):
                read(text)


@given(
    st.lists(st.sampled_from(["#SBATCH", "--", "-N", "=", " ", "\n", "'", "gpu:", "9", "-t", "srun", "\x85", "x", "é"]))
)
def test_a_script_of_any_text_becomes_a_job_file(parts: list[str]) -> None:
    spec_of(from_slurm("".join(parts), path="?", folder="/"))


# Determined

CONFIG = b"""\
name: mnist const
entrypoint: python3 train.py
resources: {slots_per_trial: 16, priority: 30, resource_pool: a100, shm_size: 1073741824}
environment:
  image: {cuda: "determinedai/pytorch:1", cpu: x}
  environment_variables: [A=1, B]
hyperparameters: {lr: {type: log, minval: -5, maxval: -1}, batch: 64, dropout: {type: const, val: 0.25}}
searcher: {name: adaptive_asha, metric: loss, max_trials: 20, max_length: {batches: 1024}, max_concurrent_trials: 4}
max_restarts: 2
bind_mounts: [{host_path: /data, container_path: /data, read_only: true}, 7]
labels: [a, B c]
checkpoint_storage: {type: s3}
odd: 1
"""


def test_a_configuration_of_determined_becomes_a_job() -> None:
    translated = from_determined(CONFIG, path="const.yaml", folder="/work")
    spec = spec_of(translated)
    assert spec["roles"]["worker"]["replicas"] == {"want": 2}
    assert spec["roles"]["worker"]["gpus"] == 8
    assert (spec["image"], spec["priority"], spec["retries"]) == ("determinedai/pytorch:1", 12, {"max": 2})
    assert spec["env"] == {"A": "1", "HPARAMS": '{"batch":64,"dropout":0.25}'}
    assert spec["volumes"] == [{"source": "/data", "target": "/data", "read_only": True}]
    told = remarks_of(translated)
    assert spec["sweep"] == {"lr": {"min": 1e-05, "max": 0.1, "log": True}}
    assert (spec["sample"], spec["array"]) == ({"count": 20}, "%4")
    assert spec["early_stop"] == {"metric": "loss", "after": 4, "factor": 4}
    for part in ("searcher: early_stop counts", "checkpoint_storage", "resource_pool", "odd: has no"):
        assert part in told


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"x", b"a: [", b"a: 1\na: 2", b"&a [*a]", b"[" * 5000, b"\xff\xfe", b"x" * 70_000]
)
def test_what_is_no_configuration_is_refused(body: bytes) -> None:
    with pytest.raises(CliError):
        from_determined(body, path="a.yaml", folder="/")


@pytest.mark.parametrize(
    ("wanted", "grid", "drawn"),
    [
        ("{type: categorical, vals: [1, a, true]}", [1, "a", True], [1, "a", True]),
        ("{type: int, minval: 1, maxval: 9, count: 3}", [1, 5, 9], "1..9"),
        ("{type: int, minval: 1, maxval: 3}", "1..3", "1..3"),
        ("{type: int, minval: 3, maxval: 3}", [3], [3]),
        ("{type: double, minval: 2, maxval: 2, count: 1}", [2.0], [2]),
        ("{type: double, minval: 0, maxval: 1, count: 3}", [0.0, 0.5, 1.0], {"min": 0, "max": 1}),
        ("{type: log, minval: 0, maxval: 2, count: 3}", [1, 10, 100], {"min": 1.0, "max": 100.0, "log": True}),
        ("{type: log, base: 2, minval: 1, maxval: 3, count: 2}", [2, 8], {"min": 2.0, "max": 8.0, "log": True}),
    ],
)
def test_a_search_of_determined_is_a_sweep(wanted: str, grid: object, drawn: object) -> None:
    for name, values in (("grid", grid), ("random", drawn)):
        body = f"entrypoint: t\nhyperparameters: {{x: {wanted}}}\nsearcher: {{name: {name}, max_trials: 8}}"
        spec = spec_of(
            from_determined(f"{body}\nreproducibility: {{experiment_seed: 5}}".encode(), path="a", folder="/")
        )
        assert spec["sweep"] == {"x": values}
        assert spec.get("sample") == (None if name == "grid" else {"count": 8, "seed": 5})


@pytest.mark.parametrize("name", ["grid", "random", "adaptive_asha"])
@pytest.mark.parametrize(
    "wanted",
    [
        "{type: log, minval: -999999, maxval: 1e14, count: 2}",
        "{type: log, base: 0, minval: 1, maxval: 2, count: 2}",
        "{type: int, minval: 5, maxval: 1, count: 2}",
        "{type: double, minval: .nan, maxval: 1, count: 2}",
        "{type: double, minval: a, maxval: [], count: -1}",
        "{type: categorical, vals: 7}",
        "{type: categorical, vals: []}",
        "{type: categorical, vals: [[1]]}",
        "{type: odd}",
        "{type: [1]}",
    ],
)
def test_what_cannot_be_searched_is_named(name: str, wanted: str) -> None:
    body = f"entrypoint: t\nhyperparameters: {{x: {wanted}}}\nsearcher: {{name: {name}, max_trials: -1, metric: 3}}"
    translated = from_determined(body.encode(), path="a", folder="/")
    assert "sweep" not in spec_of(translated)
    assert "hyperparameters.x" in remarks_of(translated)


ODD: list[Any] = [None, 1, "x", [], {}, [1], {"a": {}}, True, -(10**30), "\x1b"]


@pytest.mark.parametrize("value", ODD)
def test_every_field_may_be_of_any_kind(value: Any) -> None:
    import msgspec

    names = ["name", "entrypoint", "hyperparameters", "searcher", "max_restarts", "bind_mounts", "labels", "workspace"]
    document = dict.fromkeys([*names, "environment", "resources"], value)
    inner = {"image": value, "environment_variables": value, "slots_per_trial": value, "priority": value}
    for given_ in (document, {**document, "environment": inner, "resources": {**inner, "shm_size": value}}):
        spec_of(from_determined(msgspec.json.encode(given_), path="a.yaml", folder="/"))


def test_a_translation_names_on_stderr_what_it_leaves(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    out = tmp_path / "job.yaml"
    assert main(["migrate-from", "slurm", str(tmp_path / "run.sh"), "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "note: line 7, --bogus: has no counterpart" in said.err
    assert "\x1b" not in said.err
    assert decode_spec(out.read_bytes(), content="yaml").name == "my-train"
    assert main(["migrate-from", "slurm", str(tmp_path / "none.sh")]) == 1
    for text in ("", "name: x\n", "x #SBATCH -n 2\n"):
        (tmp_path / "other").write_text(text)
        assert main(["migrate-from", "slurm", str(tmp_path / "other")]) == 1
        assert "is no batch script" in capsys.readouterr().err
    (tmp_path / "zero").write_bytes(b"\0")
    assert main(["migrate-from", "determined", str(tmp_path / "zero")]) == 1


def test_any_text_has_a_name() -> None:
    assert [name_of(text) for text in ("My_Job 2!", "", "---", "é", "x" * 99)] == [
        "my-job-2",
        "job",
        "job",
        "job",
        "x" * 63,
    ]
