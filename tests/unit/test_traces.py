"""Traces as workloads: what each format says, and which file and line is named when it says nothing sound."""

import json
import os
from pathlib import Path

import pytest

from tests.support.data import measured
from weft.simulator import traces
from weft.simulator.workload import InputError, TraceJob, Workload
from weftd.cli.study.simulation.inputs import check_fits, offered_load, scaled

SIA = "job_id,num_gpus,submit_time,duration,model\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
OPENB = "name,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
PLAIN = "id,arrival_s,gpus,work_s\n"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(folder: Path, text: str | bytes, format: str = "auto") -> InputError:  # noqa: A002
    with pytest.raises(InputError) as refused:
        traces.read(written(folder, text), format=format)
    assert refused.value.file == str(folder / "trace.csv")
    return refused.value


# what is read


def test_a_sia_philly_job_works_as_long_as_its_models_iterations_take(tmp_path: Path) -> None:
    read = traces.read(written(tmp_path, SIA + "0,4,98,1000.0,VGG19\n1,1,115,10,bert\n"))
    assert read.name == "trace"
    assert read.jobs == (
        TraceJob(id="0", arrival_s=98, gpus=4, work_s=1000 * 0.300610341, job_class="C", model="vgg19"),
        TraceJob(id="1", arrival_s=115, gpus=1, work_s=10 * 0.179, job_class="B", model="BERT"),
    )


def test_philly_jobs_are_sorted_and_counted_from_the_first(tmp_path: Path) -> None:
    rows = "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 07:01:05,2951.0,8,1,6214e9\n"
    read = traces.read(written(tmp_path, PHILLY + rows))
    assert read.jobs == (
        TraceJob(id="line-3", arrival_s=0, gpus=8, work_s=2951, tenant="6214e9"),
        TraceJob(id="line-2", arrival_s=50, gpus=1, work_s=66, tenant="11cb48"),
    )


def test_an_openb_pod_may_ask_for_a_part_of_a_gpu_and_what_never_ran_is_counted(tmp_path: Path) -> None:
    rows = "a,1,460,5,30,10\nb,8,1000,6,30,6\nc,0,0,7,30,8\nd,1,1000,8,30,\ne,1,1000,9,,9\n"
    read = traces.read(written(tmp_path, OPENB + rows))
    assert read.jobs == (
        TraceJob(id="a", arrival_s=5, gpus=1, work_s=20, share=0.46),
        TraceJob(id="b", arrival_s=6, gpus=8, work_s=24),
    )
    assert read.notes[:4] == (
        "1 pods without a GPU left out",
        "1 pods that never ran left out",
        "1 pods that never ended left out",
        "2 pods end with the trace and may have run longer",
    )


def test_plain_columns_may_be_in_any_order_and_what_is_not_read_is_told(tmp_path: Path) -> None:
    text = "\ufeffmodel,gpus, duration_s,id,priority,class,tenant,estimate_s,arrival_s,tennant\r\n"
    text += 'gpt,4.0,60,"x,1",-2,C,ml,90,0,?\r\n\r\n,1,5,y,,,,,7,\r\n'
    read = traces.read(written(tmp_path, text))
    assert read.jobs == (
        TraceJob(
            id="x,1",
            arrival_s=0,
            gpus=4,
            work_s=60,
            job_class="C",
            tenant="ml",
            priority=-2,
            model="gpt",
            estimate_s=90,
        ),
        TraceJob(id="y", arrival_s=7, gpus=1, work_s=5),
    )
    assert read.notes == ("columns that were not read: tennant",)


def test_the_first_jobs_are_those_that_arrive_first(tmp_path: Path) -> None:
    read = traces.read(written(tmp_path, PLAIN + "late,9,1,1\nearly,1,1,1\nnext,1,1,1\n"), jobs=2)
    assert [job.id for job in read.jobs] == ["early", "next"]
    assert read.notes == ("the first 2 of 3 jobs",)


@pytest.mark.parametrize("header", [SIA, PHILLY, OPENB, PLAIN])
def test_a_format_is_known_by_its_header(tmp_path: Path, header: str) -> None:
    known = {SIA: "sia-philly", PHILLY: "philly", OPENB: "openb", PLAIN: "plain"}
    assert traces.detected(written(tmp_path, header)) == known[header]


# what is refused


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 0, "the file is empty"),
        ("\n\n", 0, "the file is empty"),
        (PLAIN, 0, "there are no jobs in it"),
        (OPENB + "a,0,0,1,2,1\n", 0, "there are no jobs in it; 1 pods without a GPU left out"),
        (
            "job_id,num_gpus,submit_time,duration\n",
            1,
            "missing column model; it has job_id, num_gpus, submit_time, dura",
        ),
        (
            "name,num_gpu,gpu_milli\na,1,1\n",
            1,
            "missing columns creation_time, deletion_time and scheduled_time; it has na",
        ),
        ("sn,cpu_milli\na,1\n", 1, "no format has the columns sn, cpu_milli"),
        ("id,arrival_s,gpus,work_s,duration_s\n", 1, "both work_s and duration_s"),
        ("id,id,arrival_s,gpus,work_s\n", 1, "the column 'id' is there twice"),
        (PLAIN + "a,0,1,5\nb,0,1\n", 3, "3 fields where the header has 4"),
        (PLAIN + "a,0,1,5\n\nb,0,1,5,6\n", 4, "5 fields where the header has 4"),
        (PLAIN + '"a\nb",0,1,5\nc,0,1,x\n', 4, "work_s is no finite number: 'x'"),
        (PLAIN + "a,0,1,5\nb,0,1,5\na,1,1,5\n", 4, "the id 'a' is in line 2, too"),
        (PLAIN + " ,0,1,5\n", 2, "id is empty"),
        (PLAIN + "a,0,1,\n", 2, "work_s is empty"),
        (PLAIN + "a,0,1,nan\n", 2, "work_s is no finite number: 'nan'"),
        (PLAIN + "a,0,1,inf\n", 2, "work_s is no finite number: 'inf'"),
        (PLAIN + "a,0,1,1_0\n", 2, "work_s is no finite number: '1_0'"),
        (PLAIN + "a,0,1,1e13\n", 2, "work_s is beyond 1e+12: '1e13'"),
        (PLAIN + f"a,0,1,{'x' * 99}\n", 2, f"work_s is no finite number: '{'x' * 40}…'"),
        (PLAIN + "a,0,1,0\n", 2, "work_s is not above 0: '0'"),
        (PLAIN + "a,0,1,-5\n", 2, "work_s is not above 0: '-5'"),
        (PLAIN + "a,-1,1,5\n", 2, "arrival_s is negative: '-1'"),
        (PLAIN + "a,0,0,5\n", 2, "gpus is not above 0: '0'"),
        (PLAIN + "a,0,-1,5\n", 2, "gpus is not above 0: '-1'"),
        (PLAIN + "a,0,1.5,5\n", 2, "gpus is no whole number: '1.5'"),
        (PLAIN + "a,0,1e7,5\n", 2, "gpus is above 1,000,000: '1e7'"),
        (PLAIN + 'a,0,1,5\n"b,0,1,5\n', 3, "this is no CSV: unexpected end of data"),
        (SIA + "0,1,1,10,AlexNet\n", 2, "nothing is known of the model 'AlexNet'"),
        (PHILLY + "2017-10-09,66,1,66,a\n", 2, "timestamp is not YYYY-MM-DD HH:MM:SS: '2017-10-09'"),
        (PHILLY + "2017-10-09 25:00:00,66,1,66,a\n", 2, "timestamp is not YYYY-MM-DD HH:MM:SS"),
        (PHILLY + "2017-10-09 07:01+02:00,66,1,66,a\n", 2, "timestamp is not YYYY-MM-DD HH:MM:SS"),
        (PHILLY + "2017-10-09 07:01:55,0.0,1,0,a\n", 2, "duration is not above 0: '0.0'"),
        (OPENB + "a,1,1000,5,9,9\n", 2, "created at 5, scheduled at 9, deleted at 9: not one after another"),
        (OPENB + "a,2,500,5,9,6\n", 2, "gpu_milli is '500' with num_gpu 2"),
        (OPENB + "a,1,0,5,9,6\n", 2, "gpu_milli is '0' with num_gpu 1"),
        (OPENB + "a,-1,1000,5,9,6\n", 2, "num_gpu is not above 0: '-1'"),
        ((PLAIN + "a,0,1,5\n").encode() + b"\xff\xfe,0,1,5\n", 3, "this is not UTF-8 text"),
        (PLAIN.encode("utf-16"), 1, "this is not UTF-8 text"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str | bytes, line: int, reason: str) -> None:
    refused = refusal(tmp_path, text)
    assert refused.line == line
    assert refused.reason.startswith(reason)


def test_a_named_format_says_what_is_missing_in_a_file_of_another(tmp_path: Path) -> None:
    refused = refusal(tmp_path, SIA + "0,1,1,10,BERT\n", format="plain")
    assert refused.reason.startswith("missing columns id, arrival_s, gpus and work_s; it has job_id, ")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(InputError, match=why) as refused:
            traces.read(path)
        assert (refused.value.file, refused.value.line) == (str(path), 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN)
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        traces.read(path)


def test_no_other_format_and_no_fewer_than_one_job_can_be_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN + "a,0,1,5\n")
    with pytest.raises(ValueError, match="format must be one of auto, sia-philly, philly, openb, plain: borg"):
        traces.read(path, format="borg")
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        traces.read(path, jobs=0)


# load


def workload(*jobs: tuple[float, int, float]) -> Workload:
    made = (TraceJob(id=str(n), arrival_s=at, gpus=gpus, work_s=work) for n, (at, gpus, work) in enumerate(jobs))
    return Workload(name="w", jobs=tuple(made))


def test_a_load_is_the_gpu_time_that_arrives_per_gpu_time_there_is() -> None:
    assert offered_load(workload((0, 1, 100), (50, 2, 50)), 4) == 1.0


@pytest.mark.parametrize("load", [0.25, 1.0, 3.0])
def test_a_scaled_workload_offers_the_load_that_was_asked_for(load: float) -> None:
    original = workload((10, 1, 100), (50, 2, 50), (90, 4, 5))
    made = scaled(original, load, 8)
    assert offered_load(made, 8) == pytest.approx(load)
    assert [job.work_s for job in made.jobs] == [100, 50, 5]
    assert "on 8 GPUs" in made.notes[-1]


@pytest.mark.parametrize("load", [0.0, -1.0, float("nan"), float("inf")])
def test_a_load_that_is_none_is_refused(load: float) -> None:
    with pytest.raises(ValueError, match="load must be above 0"):
        scaled(workload((0, 1, 1), (1, 1, 1)), load, 8)


def test_jobs_that_arrive_at_once_have_no_pace_to_change() -> None:
    with pytest.raises(ValueError, match="arrive at once"):
        scaled(workload((5, 1, 1), (5, 1, 1)), 0.5, 8)


def test_jobs_that_never_fit_are_named() -> None:
    check_fits(workload((0, 8, 1)), 8)
    with pytest.raises(InputError, match=r"^t\.csv: job 1 asks for 9 GPUs, the cluster has 8, and 1 more such jobs$"):
        check_fits(workload((0, 8, 1), (1, 9, 1), (2, 64, 1)), 8, file="t.csv")


# what was published


@pytest.mark.data
def test_the_published_sia_philly_jobs_are_those_of_the_golden_results() -> None:
    golden = json.loads(measured("golden/pal-sia-philly.json").read_text())
    for number in ("1", "2", "3", "4"):
        read = traces.read(measured(f"traces/sia-philly/workload-{number}.csv"))
        arrivals = {job_id: job["arrival_s"] for job_id, job in golden[number]["pal"].items()}
        assert {job.id: job.arrival_s for job in read.jobs} == arrivals


@pytest.mark.data
def test_the_published_philly_trace_is_read_without_leaving_anything_out() -> None:
    read = traces.read(measured("traces/philly/philly.csv"))
    assert len(read.jobs) == 82247
    assert read.jobs[0].arrival_s == 0
    assert not [note for note in read.notes if "left out" in note]


@pytest.mark.data
def test_the_published_pods_are_read_but_for_those_that_held_no_gpu() -> None:
    read = traces.read(measured("traces/openb/openb_pod_list_default.csv"))
    assert len(read.jobs) == 8152 - 1088 - 861
    assert read.notes[:2] == ("1,088 pods without a GPU left out", "861 pods that never ran left out")


@pytest.mark.data
def test_published_pods_without_times_are_refused() -> None:
    with pytest.raises(InputError, match="missing columns creation_time, deletion_time and scheduled_time"):
        traces.read(measured("traces/openb/openb_pod_list_multigpu50.csv"))
