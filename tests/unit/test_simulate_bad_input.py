"""`weft simulate` on input that is wrong: one clear line with file and line, a status that says so, nothing written."""

from collections.abc import Iterator
from pathlib import Path
from time import process_time

import pytest

from weftd.cli.__main__ import main

Said = pytest.CaptureFixture[str]

TRACE = "id,arrival_s,gpus,duration_s\nj-1,0,4,3600\nj-2,60,8,1800\n"
PROFILE = "gpu_id,node_id,classA,classB\n" + "".join(f"{gpu},{gpu // 4},1.0,1.0\n" for gpu in range(8))
SIA = "job_id,num_gpus,submit_time,duration,model\n0,4,98,1000,VGG19\n"
MANY = 1_000_000


class Desk:
    """A folder with a trace and a profile in it, and what may be typed there."""

    def __init__(self, folder: Path, capsys: Said) -> None:
        self.trace = folder / "trace.csv"
        self.profile = folder / "profile.csv"
        self.out = folder / "out.json"
        self.report = folder / "out.html"
        self._folder = folder
        self._capsys = capsys
        self.trace.write_text(TRACE)
        self.profile.write_text(PROFILE)

    def refusal(self, *options: str) -> str:
        """What is said of a simulation that cannot be; its one line, and nothing else is left behind."""
        before = sorted(self._folder.iterdir())
        typed = ["simulate", "--trace", str(self.trace), "--profile", str(self.profile), "--nodes", "2"]
        status = main([*typed, "--json", str(self.out), "--report", str(self.report), *options])
        said = self._capsys.readouterr()
        assert status == 1
        assert said.out == ""
        assert said.err.startswith("weft: ")
        assert said.err.endswith("\n")
        assert said.err.count("\n") == 1
        assert "Traceback" not in said.err
        assert sorted(self._folder.iterdir()) == before
        return said.err.removeprefix("weft: ").removesuffix("\n")

    def works(self, *options: str) -> None:
        typed = ["simulate", "--trace", str(self.trace), "--profile", str(self.profile), "--nodes", "2"]
        assert main([*typed, "--json", str(self.out), *options]) == 0
        assert self._capsys.readouterr().err == ""
        assert self.out.exists()


@pytest.fixture
def desk(tmp_path: Path, capsys: Said) -> Desk:
    return Desk(tmp_path, capsys)


def test_what_these_tests_break_works_as_it_is(desk: Desk) -> None:
    desk.works()


# traces


@pytest.mark.parametrize(
    ("trace", "line", "reason"),
    [
        ("id,arrival_s,gpus\nj-1,0,4\n", 1, "missing column work_s; it has id, arrival_s, gpus"),
        ("id,gpus,duration_s\nj-1,4,60\n", 1, "missing column arrival_s; it has id, gpus, duration_s"),
        (
            SIA.replace(",model", ",kind"),
            1,
            "missing column model; it has job_id, num_gpus, submit_time, duration, kind",
        ),
        ("what,is,this\n1,2,3\n", 1, "no format has the columns what, is, this"),
        (TRACE + "j-3,90,2,-60\n", 4, "duration_s is not above 0: '-60'"),
        (TRACE + "j-3,90,2,0\n", 4, "duration_s is not above 0: '0'"),
        (TRACE + "j-3,-1,2,60\n", 4, "arrival_s is negative: '-1'"),
        (TRACE + "j-3,90,0,60\n", 4, "gpus is not above 0: '0'"),
        (TRACE + "j-3,90,-2,60\n", 4, "gpus is not above 0: '-2'"),
        (TRACE + "j-3,90,2.5,60\n", 4, "gpus is no whole number: '2.5'"),
        (TRACE + "j-3,90,2,soon\n", 4, "duration_s is no finite number: 'soon'"),
        (TRACE + "j-3,nan,2,60\n", 4, "arrival_s is no finite number: 'nan'"),
        (TRACE + "j-3,90,2\n", 4, "3 fields where the header has 4"),
        (TRACE + "j-1,90,2,60\n", 4, "the id 'j-1' is in line 2, too"),
        (SIA.replace("1000", "-1000"), 2, "duration is not above 0: '-1000'"),
        (SIA.replace("VGG19", "AlexNet"), 2, "nothing is known of the model 'AlexNet'"),
    ],
)
def test_a_wrong_trace_is_told_with_its_line(desk: Desk, trace: str, line: int, reason: str) -> None:
    desk.trace.write_text(trace)
    said = desk.refusal()
    assert said.startswith(f"{desk.trace}:{line}: ")
    assert reason in said


@pytest.mark.parametrize(
    ("trace", "reason"),
    [("", "the file is empty"), ("\n\n \n", None), ("id,arrival_s,gpus,duration_s\n", "there are no jobs in it")],
)
def test_a_trace_of_nothing_is_told(desk: Desk, trace: str, reason: str | None) -> None:
    desk.trace.write_text(trace)
    said = desk.refusal()
    assert said.startswith(f"{desk.trace}:")
    assert reason is None or said == f"{desk.trace}: {reason}"


def test_a_trace_that_is_no_text_is_told(desk: Desk) -> None:
    desk.trace.write_bytes(TRACE.encode() + b"\xff\xfe\x00,0,1,5\n")
    assert desk.refusal() == f"{desk.trace}:4: this is not UTF-8 text"


def test_a_trace_that_is_not_there_and_one_that_is_a_folder_are_told(desk: Desk) -> None:
    assert "nowhere.csv: cannot be read: No such file" in desk.refusal(
        "--trace", str(desk.trace.parent / "nowhere.csv")
    )
    assert "cannot be read: Is a directory" in desk.refusal("--trace", str(desk.trace.parent))


def test_a_job_larger_than_the_cluster_is_told_with_its_file_before_anything_is_simulated(desk: Desk) -> None:
    desk.trace.write_text(TRACE + "j-3,90,9,60\nj-4,90,64,60\n")
    assert desk.refusal() == f"{desk.trace}: job j-3 asks for 9 GPUs, the cluster has 8, and 1 more such jobs"


def test_a_preset_refuses_the_same(desk: Desk) -> None:
    desk.trace.write_text(TRACE + "j-3,90,2,-60\n")
    assert desk.refusal("--preset", "weft-best") == f"{desk.trace}:4: duration_s is not above 0: '-60'"
    desk.trace.write_text(TRACE + "j-3,90,9,60\n")
    assert "job j-3 asks for 9 GPUs" in desk.refusal("--preset", "weft-best")


# profiles


@pytest.mark.parametrize(
    ("profile", "line", "reason"),
    [
        ("gpu_id,node_id\n0,0\n", 1, "no column for any class; it has gpu_id, node_id"),
        ("gpu_id,classA\n0,1.0\n", 1, "missing column node_id or Node_ID"),
        (PROFILE.replace("5,1,1.0,", "5,1,,"), 7, "classA is no time above 0: ''"),
        (PROFILE.replace("5,1,1.0,", "5,1,0,"), 7, "classA is no time above 0: '0'"),
        (PROFILE.replace("5,1,1.0,", "5,1,nan,"), 7, "classA is no time above 0: 'nan'"),
        (PROFILE.replace("5,1,1.0,", "5,1,-1.0,"), 7, "classA is no time above 0: '-1.0'"),
        (PROFILE.replace("5,1,1.0,1.0", "5,1,1.0"), 7, "3 fields where the header has 4"),
        (PROFILE.replace("5,1,", "4,1,"), 7, "GPU 4 is in line 6, too"),
    ],
)
def test_a_wrong_profile_is_told_with_its_line(desk: Desk, profile: str, line: int, reason: str) -> None:
    """A class that a GPU lacks is an empty field; one that all lack, a column that is not there."""
    desk.profile.write_text(profile)
    said = desk.refusal()
    assert said.startswith(f"{desk.profile}:{line}: ")
    assert reason in said


def test_a_profile_that_lacks_gpus_is_told_with_how_many(desk: Desk) -> None:
    assert desk.refusal("--nodes", "3") == f"{desk.profile.stem}: it has 8 GPUs, the cluster 12"


@pytest.mark.parametrize(
    ("profile", "reason"), [("", "the file is empty"), ("gpu_id,node_id,classA\n", "there are no rows in it")]
)
def test_a_profile_of_nothing_is_told(desk: Desk, profile: str, reason: str) -> None:
    desk.profile.write_text(profile)
    assert desk.refusal() == f"{desk.profile}: {reason}"


def test_a_job_of_a_class_that_the_profile_lacks_counts_as_of_the_most_sensitive(desk: Desk) -> None:
    """PAL's rule: it works, and nothing is risked with it."""
    desk.trace.write_text("id,arrival_s,gpus,duration_s,class\na,0,1,60,Z\n")
    desk.profile.write_text(PROFILE.replace("0,0,1.0,", "0,0,3.0,"))
    desk.works("--placement", "pal")
    assert '"completed_s":60.0' in desk.out.read_text().replace(" ", "")


# as much as there may be


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "large.csv"
    with path.open("w") as file:
        file.write("id,arrival_s,gpus,duration_s\n")
        file.writelines(f"j-{number},{number},1,60\n" for number in range(MANY))
    yield path
    path.unlink()


def test_a_million_jobs_are_read_and_the_one_that_is_wrong_is_told(desk: Desk, large: Path) -> None:
    """To the last line, in less than 15 seconds of one core."""
    with large.open("a") as file:
        file.write("j-last,5,1,-60\n")
    begun = process_time()
    said = desk.refusal("--trace", str(large))
    assert process_time() - begun < 15
    assert said == f"{large}:{MANY + 2}: duration_s is not above 0: '-60'"
