"""What `weft run` asks for, from what was typed."""

from pathlib import Path

import pytest

from weft.client.job_name import job_name
from weft.domain.spec import Checkpointing, JobSpec, Kind, Progress, Tuning, TuningMode, Volume
from weftd.cli.__main__ import parse
from weftd.cli.attachments import read_with_env
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.submit import content_of
from weftd.cli.spec import option_of, spec_of


def spec(*typed: str, cwd: str = "/home/alice", environment: dict[str, str] | None = None) -> JobSpec:
    return spec_of(parse("run", ["run", *typed]), cwd=cwd, environment=environment or {})


def test_what_stands_after_the_dashes_is_the_command_as_it_is() -> None:
    made = spec("--gpus", "1", "--", "python", "train.py", "--gpus", "7", "--json")
    assert made.command == ("python", "train.py", "--gpus", "7", "--json")
    assert made.roles["worker"].gpus == 1


def test_the_range_of_a_job_and_how_it_takes_another_size_reach_the_specification() -> None:
    made = spec(*("--replicas", "2", "--replicas-min", "1", "--replicas-max", "4", "--resize", "live", "--", "go"))
    replicas = made.roles["worker"].replicas
    assert (replicas.least, replicas.want, replicas.most, made.resize.how) == (1, 2, 4, "live")
    assert spec("--checkpoints", "10m", "--", "go").checkpoints == Checkpointing(every="10m")
    assert spec("--checkpoints", "stop", "--", "go").checkpoints == Checkpointing(on_stop=True)
    for typed, option in (
        (("--checkpoints", "often"), "--checkpoints"),
        (("--replicas-max", "5000"), "--replicas-max"),
        (("--replicas", "2", "--replicas-min", "3"), "--replicas"),
    ):
        with pytest.raises(CliError) as refused:
            spec(*typed, "--", "go")
        assert refused.value.field == option


def test_how_a_job_is_tuned_and_where_its_progress_is_reach_the_specification() -> None:
    made = spec("--tuning", "advise", "--progress", r"step (?P<step>\d+)", "--", "go")
    assert (made.tuning, made.progress) == (Tuning(mode=TuningMode.ADVISE), Progress(pattern=r"step (?P<step>\d+)"))
    for pattern in ("step (", r"step \d+", ""):
        with pytest.raises(CliError) as refused:
            spec("--progress", pattern, "--", "go")
        assert refused.value.field == "--progress"
    with pytest.raises(SystemExit):
        spec("--tuning", "perhaps", "--", "go")


def test_without_dashes_the_command_begins_at_the_first_word() -> None:
    assert spec("--gpus", "2", "python", "train.py", "--gpus", "7").command == ("python", "train.py", "--gpus", "7")


def test_dashes_within_the_command_belong_to_it() -> None:
    assert spec("sh", "-c", "x", "--", "y").command == ("sh", "-c", "x", "--", "y")
    assert spec("--", "env", "--", "y").command == ("env", "--", "y")


def test_every_option_reaches_the_specification() -> None:
    made = spec(
        *(
            "--gpus",
            "2",
            "--gpu-model",
            "H200",
            "--replicas",
            "3",
            "--cpus",
            "1.5",
            "--memory",
            "8GiB",
            "--shm",
            "1GiB",
        ),
        *("--name", "mine", "--kind", "batch", "--image", "base:1", "--workdir", "/w", "--pool", "big"),
        *("--priority", "7", "--no-preempt", "--grace", "5s", "--time-limit", "1h30m", "--retries", "4"),
        *("--env", "A=1=2", "--label", "team=vision", "--volume", "/data:/d:ro", "--volume", "/out:/o"),
        *("--", "go"),
    )
    role = made.roles["worker"]
    assert (role.gpus, role.replicas.want, role.cpus, role.memory, role.shm) == (2, 3, 1.5, "8GiB", "1GiB")
    assert (made.name, made.kind, made.image, made.workdir, made.pool) == ("mine", Kind.BATCH, "base:1", "/w", "big")
    assert (made.priority, made.preemptible, made.grace, made.time_limit) == (7, False, "5s", "1h30m")
    assert (made.retries.max, made.gpu_model) == (4, "H200")
    assert (made.env, made.labels) == ({"A": "1=2"}, {"team": "vision"})
    assert made.volumes == (
        Volume(source="/data", target="/d", read_only=True),
        Volume(source="/out", target="/o", read_only=False),
    )


def test_what_is_not_said_is_left_to_the_specification() -> None:
    assert spec("--", "true") == JobSpec(name="true", command=("true",), workdir="/home/alice")


def test_a_process_runs_where_the_user_stands_and_an_image_where_it_says() -> None:
    assert spec("--", "true").workdir == "/home/alice"
    assert spec("--image", "base", "--", "true").workdir is None


def test_an_image_may_bring_its_own_command() -> None:
    made = spec("--image", "registry.local/team/trainer:1.2")
    assert (made.command, made.name) == (None, "trainer")


def test_a_volume_may_be_named_from_where_the_user_stands() -> None:
    for typed in ("./sets:/d", "sets/:/d"):
        assert spec("--volume", typed, "--", "true").volumes[0].source == "/home/alice/sets"


def test_a_volume_without_a_slash_is_one_that_nodes_offer_by_name() -> None:
    typed = ("--volume", "sets:/data:ro", "--volume", "scratch", "--volume", "more:ro")
    made = spec("--image", "base:1", *typed, "--", "true")
    assert made.volumes == (
        Volume(name="sets", target="/data", read_only=True),
        Volume(name="scratch"),
        Volume(name="more", read_only=True),
    )


def test_a_variable_without_a_value_is_taken_from_here() -> None:
    assert spec("--env", "HERE", "--", "true", environment={"HERE": "yes"}).env == {"HERE": "yes"}


@pytest.mark.parametrize(
    ("command", "image", "name"),
    [
        (["python", "train.py", "--lr", "1"], None, "train"),
        (["torchrun", "--nproc", "2", "src/fine_tune.py"], None, "fine-tune"),
        (["python", "-m", "vision.Train_Big"], None, "vision-train-big"),
        (["/usr/bin/jupyter", "lab"], None, "jupyter"),
        (["sh", "-c", "sleep 1; python x.py"], None, "sh"),
        (["./run.sh"], None, "run"),
        (["___"], None, "job"),
        (["x" * 80], None, "x" * 63),
        ([], "local/base@sha256:abc", "base"),
    ],
)
def test_a_job_without_a_name_is_called_after_what_it_runs(command: list[str], image: str | None, name: str) -> None:
    assert job_name(command, image) == name


@pytest.mark.parametrize(
    ("typed", "cli_error"),
    [
        (["--memory", "lots", "--", "x"], "--memory: expected a size such as 512MiB or 16GiB"),
        (["--gpus", "-1", "--", "x"], "--gpus: must be 0 to 64, got -1"),
        (["--gpus", "65", "--", "x"], "--gpus: must be 0 to 64, got 65"),
        (
            ["--replicas", "0", "--", "x"],
            "--replicas: must be at least 1: only a service (kind inference with `service`) may have no replica",
        ),
        (["--grace", "2h", "--", "x"], "--grace: 2h is longer than 1h"),
        (
            ["--name", "resnet_50", "--", "x"],
            "--name: expected lower-case letters, digits and '-', at most 63, no dots; did you mean resnet-50?",
        ),
        (
            ["--name", "My Job", "--", "x"],
            "--name: expected lower-case letters, digits and '-', at most 63, no dots; did you mean my-job?",
        ),
        (["--env", "NOT_HERE", "--", "x"], "--env: NOT_HERE is not set here: say NOT_HERE=VALUE"),
        (
            ["--volume", "/a", "--", "x"],
            "--volume: expected NAME, NAME:TARGET, FOLDER:TARGET, each also with :ro, got '/a'",
        ),
        (
            ["--volume", "/a:/b:no", "--", "x"],
            "--volume: expected NAME, NAME:TARGET, FOLDER:TARGET, each also with :ro, got '/a:/b:no'",
        ),
        (
            ["--volume", "a:", "--", "x"],
            "--volume: expected NAME, NAME:TARGET, FOLDER:TARGET, each also with :ro, got 'a:'",
        ),
        (
            ["--volume", "A", "--", "x"],
            "--volume: expected lower-case letters, digits and '-', at most 63, no dots; did you mean a?",
        ),
        (["--volume", "../a:/b", "--", "x"], "--volume: /home/alice/../a must not contain '..'"),
        (["--shm", "2GiB", "--", "x"], "shm 2GiB is more than memory 1GiB"),
    ],
)
def test_a_mistake_is_told_with_the_option_that_has_it(typed: list[str], cli_error: str) -> None:
    with pytest.raises(CliError) as refused:
        spec(*typed)
    assert (str(refused.value), refused.value.status) == (cli_error, 1)


def test_nothing_to_run_is_a_mistake_of_the_command_line() -> None:
    with pytest.raises(CliError, match="the command is missing") as refused:
        spec("--gpus", "1")
    assert refused.value.status == 2


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ("roles.worker.gpus", "--gpus"),
        ("roles.worker.replicas", "--replicas"),
        ("volumes[0].source", "--volume"),
        ("gpu_model", "--gpu-model"),
        ("roles.worker", ""),
        ("Idempotency-Key", "Idempotency-Key"),
    ],
)
def test_what_the_gateway_refuses_is_told_with_the_option_too(field: str, option: str) -> None:
    assert option_of(field) == option


@pytest.mark.parametrize(
    ("name", "body", "content"),
    [
        ("job.yaml", b"{}", "yaml"),
        ("job.YML", b"{}", "yaml"),
        ("job.json", b"name: x", "json"),
        ("-", b' \n {"name": "x"}', "json"),
        ("-", b"name: x", "yaml"),
        ("job", b"name: x", "yaml"),
    ],
)
def test_a_file_is_read_as_its_name_says_else_as_it_begins(name: str, body: bytes, content: str) -> None:
    assert content_of(name, body) == content


def test_a_variable_goes_along_by_its_name_alone() -> None:
    made = spec("-e", "HF_TOKEN", "--env", "A=b=c", "--", "go", environment={"HF_TOKEN": "hf_x", "OTHER": "no"})
    assert made.env == {"HF_TOKEN": "hf_x", "A": "b=c"}
    with pytest.raises(CliError, match=r"--env: HF_TOKEN is not set here: say HF_TOKEN=VALUE"):
        spec("-e", "HF_TOKEN", "--", "go")


def test_the_virtual_environment_of_the_shell_goes_along_with_a_process(tmp_path: Path) -> None:
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    shell = {"VIRTUAL_ENV": str(tmp_path / "venv"), "PATH": f"/usr/bin:{programs}:/bin", "SECRET": "x"}
    with pytest.raises(CliError, match=r"--venv: VIRTUAL_ENV is .*, where there is no bin/python"):
        spec("--venv", "--", "python", environment=shell)
    (programs / "python").touch(mode=0o755)
    made = spec("--venv", "-e", "LANG=C", "--", "python", environment=shell)
    assert made.env == {"VIRTUAL_ENV": f"{tmp_path}/venv", "PATH": f"{programs}:/usr/bin:/bin", "LANG": "C"}
    with pytest.raises(CliError, match="--venv: no virtual environment is active here"):
        spec("--venv", "--", "python", environment={"PATH": "/bin"})
    with pytest.raises(CliError, match="--venv: is for processes"):
        spec("--venv", "--image", "busybox", "--", "python", environment=shell)


def test_variables_that_go_along_are_added_to_those_of_a_job_file() -> None:
    typed = parse("submit", ["submit", "job.yaml", "-e", "TOKEN", "-e", "MODE=fast"])
    file = b"name: train\ncommand: [./train]\nenv: {MODE: slow, KEPT: '1'}\nroles: {b: {gpus: 1}, a: {}}\n"
    made = read_with_env(file, "yaml", typed, {"TOKEN": "t"})
    assert made.env == {"MODE": "fast", "KEPT": "1", "TOKEN": "t"}
    assert list(made.roles) == ["b", "a"]
    with pytest.raises(CliError, match="command: "):
        read_with_env(b"name: train\n", "yaml", typed, {"TOKEN": "t"})
