"""Reports of simulated runs: what they show, and that the same runs give the same bytes."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from weft.planning.policy import BACKFILLS, ORDERS, PLACEMENTS
from weft.simulator.metrics import metrics
from weft.simulator.outcome import JobOutcome, Outcome, Spell
from weft.simulator.report import ReportError, page, write_report
from weft.simulator.report.compared import (
    COLUMNS,
    cell,
    change,
    finding,
    labels_of,
    ratio,
    runs_of,
    significant,
    span_text,
    subject,
    unit_of,
    verdict,
    worth_showing,
)
from weft.simulator.report.crop import span_shown

pytest.importorskip("matplotlib", reason="comes with the extra `report`")

from weft.simulator.report import gantt


def played(policy: str = "fifo+packed+none", *, nodes: int = 2, jobs: int = 12, slowdown: float = 1.0) -> Outcome:
    """Jobs one after the other on each GPU of the first node; the third is moved and the fourth evicted."""
    told: list[JobOutcome] = []
    spells: list[Spell] = []
    free = [0.0, 0.0, 0.0, 0.0]
    for number in range(jobs):
        gpu, work = number % 4, 600.0 * (1 + number % 5)
        begin = max(free[gpu], 60.0 * number)
        half, end = begin + work * slowdown / 2, begin + work * slowdown
        if number == 2:
            spells += [Spell(number, begin, half, ((0, gpu),), 1.0), Spell(number, half, end, ((1, gpu),), 1.0, 30.0)]
        elif number == 3:
            end += 300
            spells += [Spell(number, begin, half, ((0, gpu),), 1.0), Spell(number, half + 300, end, ((0, gpu),), 1.0)]
        else:
            spells.append(Spell(number, begin, end, ((0, gpu),), 1.0))
        free[gpu] = end
        told.append(
            JobOutcome(
                id=f"job-{number}",
                job_class="A",
                tenant="t",
                gpus=1,
                arrival_s=60.0 * number,
                started_s=begin,
                completed_s=end,
                work_s=work,
                moves=int(number == 2),
                evictions=int(number == 3),
            )
        )
    spells.sort(key=lambda spell: (spell.begin_s, spell.job))
    return Outcome(
        workload="a <trace>", policy=policy, nodes=nodes, gpus_per_node=4, jobs=tuple(told), spells=tuple(spells),
        settings={"penalty": "1.7", "move_s": "30"}, notes=("3 jobs left out",),
    )  # fmt: skip


def scores(gpus: int) -> dict[str, tuple[float, ...]]:
    return {"A": (1.0, 2.8, *[1.0] * (gpus - 2))}


def two() -> list[Outcome]:
    return [played(slowdown=2.0), played("las+weft-best+easy")]


# files


def test_the_same_runs_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    here, there = tmp_path / "here.html", tmp_path / "there.html"
    write_report(two(), here, scores=scores(8))
    stored = tmp_path / "runs"
    stored.write_bytes(msgspec.json.encode(two()))
    program = (
        "import sys; from pathlib import Path; import msgspec; from weft.simulator.outcome import Outcome\n"
        "from weft.simulator.report import write_report\n"
        f"runs = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[Outcome])\n"
        f"write_report(runs, Path(sys.argv[2]), scores={scores(8)!r})"
    )
    environment = {"PYTHONHASHSEED": "7", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, stored, there], check=True, env=environment, capture_output=True)
    assert here.read_bytes() == there.read_bytes()


def test_a_page_needs_no_network_and_runs_nothing(tmp_path: Path) -> None:
    write_report(two(), tmp_path / "out.html", scores=scores(8))
    html = (tmp_path / "out.html").read_text()
    assert "<script" not in html
    assert re.findall(r"(?:src|href)=\"(?!#|data:)", html) == []
    assert re.findall(r"url\((?!#)", html) == []
    assert html.count("<svg") == 6  # four curves, and a Gantt chart of each run


def test_a_page_says_what_was_found_and_that_no_hardware_was_asked(tmp_path: Path) -> None:
    write_report(two(), tmp_path / "out.html")
    html = (tmp_path / "out.html").read_text()
    found = r"<h1>Jobs wait [\d.]+ min → [\d.]+ min on average, slowdown ×[\d.]+ → ×[\d.]+ \(p99\) with las\+weft-best"
    assert re.search(found, html), "both in one unit"
    assert "simulated cluster, no hardware" in html
    assert "a &lt;trace&gt;: 12 jobs on 2 × 4 = 8 GPUs" in html
    assert "3 jobs left out" in html
    assert "penalty 1.7, move 30 s" in html


def test_runs_without_spells_and_on_large_clusters_are_drawn_too(tmp_path: Path) -> None:
    bare = msgspec.structs.replace(played(), spells=())
    write_report([bare, played("x", nodes=80)], tmp_path / "out.html", scores=scores(320))
    alone = msgspec.structs.replace(bare, jobs=bare.jobs[:1])
    write_report([alone], tmp_path / "alone.html", scores=scores(3))
    assert (tmp_path / "alone.html").stat().st_size > 10_000


def test_many_runs_are_all_in_the_table_and_the_best_of_them_on_the_curves(tmp_path: Path) -> None:
    runs = [played(f"order-{place}", jobs=5, slowdown=20 - place) for place in range(10)]
    write_report(runs, tmp_path / "out.html")
    html = (tmp_path / "out.html").read_text()
    assert all(f"order-{place}</th>" in html for place in range(10))
    assert "leave out 3 runs" in html
    shown = [run.label for run in worth_showing(runs_of(runs), 4)]
    assert shown == ["order-0", "order-7", "order-8", "order-9"]


def test_a_tail_in_which_nothing_waits_is_not_drawn_and_the_axis_says_so(tmp_path: Path) -> None:
    straggler = JobOutcome(
        id="last", job_class="A", tenant="t", gpus=1, arrival_s=0.0, started_s=0.0, completed_s=1e6, work_s=1e6
    )  # fmt: skip
    run = played()
    spells = (*run.spells, Spell(len(run.jobs), 0.0, 1e6, ((1, 1),), 1.0))
    long = msgspec.structs.replace(run, jobs=(*run.jobs, straggler), spells=spells)
    (alone,), (with_it,) = runs_of([run]), runs_of([long])
    assert span_shown([alone]) == alone.metrics.makespan_s
    assert span_shown([with_it]) < 1.2 * alone.metrics.makespan_s
    assert max(job.completed_s for job in run.jobs) <= span_shown([with_it]), "all that waited is shown"


def test_every_word_of_a_policys_name_is_explained(tmp_path: Path) -> None:
    for names, part in ((ORDERS, page.ORDERS), (PLACEMENTS, page.PLACEMENTS), (BACKFILLS, page.BACKFILLS)):
        assert set(part) == set(names)
    write_report(two(), tmp_path / "out.html")
    html = (tmp_path / "out.html").read_text()
    for word in ("fifo", "las", "packed", "weft-best", "none", "easy"):
        assert f"<dt>{word}</dt>" in html, word


def test_a_chart_that_would_be_too_large_becomes_a_picture() -> None:
    drawn = page.page_bytes([played()], {}, svg_bytes_max=40_000).decode()
    assert drawn.count('<img src="data:image/png;base64,') >= 1
    assert drawn.count("<svg") + drawn.count("<img") == 5


# what keeps one from being drawn


def test_another_ending_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    for ending in ("pdf", "png"):
        with pytest.raises(ReportError, match=r"ends in \.html$"):
            write_report([played()], tmp_path / f"out.{ending}")


def test_no_runs_make_no_report(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no run"):
        write_report([], tmp_path / "out.html")


def test_without_matplotlib_it_is_said_what_to_install() -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path; from weft.simulator.report import check_drawable\n"
        "check_drawable(Path('out.html'))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stderr.rstrip().endswith("which is not installed here: pip install 'weft-gpu[report]'")


# what is shown


def test_a_node_is_as_full_as_its_gpus_were_held() -> None:
    run = played()
    begin, end = 0.0, metrics(run).makespan_s
    held = gantt.occupancy(run, begin, end, 37)
    seconds = sum((spell.end_s - spell.begin_s) * len(spell.gpus) for spell in run.spells)
    assert held.shape == (2, 37)
    assert held.sum() * 4 * (end - begin) / 37 == pytest.approx(seconds)


def test_who_goes_on_elsewhere_was_moved_and_who_waits_was_evicted() -> None:
    moved, evicted = gantt.changes(played())
    assert [mark.gpu for mark in moved] == [(1, 2)]
    assert [mark.gpu for mark in evicted] == [(0, 3)]


def test_runs_of_one_policy_are_told_apart_by_their_settings() -> None:
    cheap, dear = played(), msgspec.structs.replace(played(), settings={"penalty": "1.7", "move_s": "120"})
    assert labels_of([cheap, dear]) == ["fifo+packed+none, move 30 s", "fifo+packed+none, move 120 s"]
    assert labels_of([cheap, cheap]) == ["fifo+packed+none", "fifo+packed+none (2)"]


def test_the_finding_owns_up_where_the_first_run_is_the_best() -> None:
    runs = runs_of([played(), played("worse", slowdown=3.0)])
    assert finding(runs).endswith("and none of the other 1 is better")
    assert subject(runs[0].outcome) == "a <trace>: 12 jobs on 2 × 4 = 8 GPUs (simulated cluster, no hardware)"


def test_numbers_have_three_digits_and_a_column_one_unit() -> None:
    assert [significant(value) for value in (0, 0.00001, 0.1571, 7.031, 62.84, 1234.5)] == [
        *("0", "<0.001", "0.157", "7.03", "62.8", "1,234"),
    ]
    assert (span_text(40), span_text(1800), span_text(7200)) == ("40.0 s", "30.0 min", "2.00 h")
    assert change(25308, 3780) == "7.03 h → 1.05 h"
    runs = runs_of(two())
    column = next(column for column in COLUMNS if column.title == "JCT mean")
    assert unit_of(column, runs).name == "min"
    against = ratio(column, runs[1], runs[0])
    assert against == pytest.approx(runs[1].metrics.jct_mean_s / runs[0].metrics.jct_mean_s)
    assert cell(column, runs[0], unit_of(column, runs)) == significant(runs[0].metrics.jct_mean_s / 60)


def test_less_time_is_better_and_more_use_is() -> None:
    assert (verdict(-1, 0.5), verdict(-1, 2.0), verdict(1, 2.0), verdict(-1, 1.001)) == (
        *("better", "worse", "better", "same"),
    )
