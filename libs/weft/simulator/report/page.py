"""The whole report as one HTML file: charts inside it, no script, nothing fetched."""

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from matplotlib import rc_context, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from weft.domain.text import plural
from weft.simulator.outcome import Outcome
from weft.simulator.report import charts
from weft.simulator.report.compared import (
    COLUMNS,
    Column,
    Contender,
    Unit,
    best_of,
    cell,
    finding,
    ratio,
    ratio_text,
    runs_of,
    settings_text,
    subject,
    unit_of,
    verdict,
    worth_showing,
)
from weft.simulator.report.crop import span_shown
from weft.simulator.report.gantt import gantt, inches
from weft.simulator.report.look import CONTENDERS, STYLE, Shown, shown
from weft.simulator.report.sizes import HEADER, MEANING, is_elastic, size_rows
from weft.simulator.report.stacked import HEIGHT, stacked

CURVES_MAX, GANTTS_MAX = 7, 4
SVG_BYTES_MAX = 1_000_000  # a chart that would be larger becomes a PNG
PNG_DPI = 150
HALF, WIDE = (7.0, 4.5), 14.4  # inches
CURVES = (charts.queue, charts.speed_up, charts.jct, charts.utilisation)
Draw = Callable[[Axes], None]
ORDERS = {
    "fifo": "first come, first served",
    "las": "least attained service: the jobs that have had least GPU time so far come first, and may stop others",
    "srtf": "shortest remaining time first: the jobs that need least time more come first, and may stop others",
    "drf": "dominant resource fairness: the tenant that holds the smallest share comes first",
    "fair": "fair share over time: the tenant or group that used least of late, for its weight, comes first",
    "priority": "the highest priority first, then the oldest",
}
PLACEMENTS = {
    "packed": "on as few nodes as possible; all jobs are placed anew at each decision",
    "packed-sticky": "on as few nodes as possible; a job stays where it is",
    "random": "anywhere",
    "spread": "on the emptiest nodes",
    "pm-first": "on the fastest GPUs; all jobs are placed anew at each decision",
    "pal": "speed of the GPUs against nearness; all jobs are placed anew at each decision",
    "weft-best": "where the job is fastest and others miss it least; a job moves if it gains more than the move costs",
}
BACKFILLS = {
    "none": "no job overtakes one that does not fit",
    "easy": "a job may overtake if it does not delay the first job that does not fit",
    "conservative": "a job may overtake if it delays none of those ahead of it",
}
PARTS = (("order", ORDERS), ("placement", PLACEMENTS), ("backfill", BACKFILLS))


def page_bytes(
    outcomes: Sequence[Outcome], scores: Mapping[str, tuple[float, ...]], *, svg_bytes_max: int = SVG_BYTES_MAX
) -> bytes:
    runs = runs_of(outcomes)
    curves = shown(worth_showing(runs, CURVES_MAX))
    hidden = len(runs) - len(curves)
    gantts = worth_showing(curves, GANTTS_MAX)
    with style.context(STYLE, after_reset=True):
        halves = [
            _chart(f"curve-{place}", HALF, _curve(draw, curves), svg_bytes_max) for place, draw in enumerate(CURVES)
        ]
        wides = [
            _chart(
                f"gantt-{run.place}",
                (WIDE, inches(run.outcome) + 1.25),
                _gantt(run, scores, span_shown(gantts)),
                svg_bytes_max,
                wide=True,
            )
            for run in gantts
            if run.outcome.gpus
        ]
        wides += [
            _chart(
                f"sizes-{run.place}", (WIDE, HEIGHT + 1.25), _stacked(run, span_shown(gantts)), svg_bytes_max, wide=True
            )
            for run in gantts
            if is_elastic(run.outcome)
        ]
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(finding(runs))}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_CSS}</style></head><body><main>",
        f"<h1>{escape(finding(runs))}</h1>",
        f'<p class="subject">{escape(_told(runs))}</p>',
        _named(runs),
        _table(runs, curves),
        f'<p class="note">{_words(runs, hidden)}</p>',
        f'<section class="halves">{"".join(halves)}</section>',
        *wides,
        _sizes(runs),
        _notes(runs),
        _MEANINGS,
        "</main></body></html>\n",
    ]
    return "\n".join(parts).encode()


# charts


def _curve(draw: Callable[[Axes, Sequence[Shown]], None], curves: Sequence[Shown]) -> Draw:
    return lambda axes: draw(axes, curves)


def _gantt(run: Shown, scores: Mapping[str, tuple[float, ...]], span_s: float) -> Draw:
    return lambda axes: gantt(axes, run, scores, span_s=span_s)


def _stacked(run: Shown, span_s: float) -> Draw:
    return lambda axes: stacked(axes, run, span_s=span_s)


def _chart(name: str, size: tuple[float, float], draw: Draw, svg_bytes_max: int, *, wide: bool = False) -> str:
    """`name` makes the ids in this SVG its own."""
    width, height = size
    with rc_context({"svg.hashsalt": name}):
        figure = Figure(figsize=size)
        left, right = (0.95, 2.0) if wide else (0.75, 0.2)
        box = (left / width, 0.6 / height, (width - left - right) / width, (height - 1.2) / height)
        axes = figure.add_axes(box)
        draw(axes)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        if drawn.tell() <= svg_bytes_max:
            inside = _svg(drawn.getvalue().decode())
        else:
            drawn = io.BytesIO()
            figure.savefig(drawn, format="png", dpi=PNG_DPI, metadata={"Software": None})
            inside = f'<img src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}" alt="">'
    said = escape(axes.get_title(loc="left"), quote=True)
    return f'<figure role="img" aria-label="{said}">{inside}</figure>'


def _svg(document: str) -> str:
    """The SVG without the header of a file of its own."""
    begin = document.index("<svg")
    end = document.index("<metadata>"), document.index("</metadata>") + len("</metadata>")
    return document[begin : end[0]] + document[end[1] :].strip()


# words and numbers


def _told(runs: Sequence[Contender]) -> str:
    told = settings_text(runs)
    return subject(runs[0].outcome) + (f"; {told}" if told else "")


def _words(runs: Sequence[Contender], hidden: int) -> str:
    said = ["Small: the ratio to the first run."] if len(runs) > 1 else []
    if hidden:
        said.append(f"The curves leave out {plural(hidden, 'run')} that are neither the first nor among the best.")
    return " ".join(said)


def _table(runs: Sequence[Contender], curves: Sequence[Shown]) -> str:
    colours = {run.label: run.colour for run in curves}
    units = [unit_of(column, runs) for column in COLUMNS]
    heads = [
        f"<th>{escape(column.title)}<small>{escape(unit.name) or '&nbsp;'}</small></th>"
        for column, unit in zip(COLUMNS, units, strict=True)
    ]
    best = best_of(runs)
    rows = []
    for run in runs:
        dot = f'<i style="background:{colours.get(run.label, "transparent")}"></i>'
        cells = [_cell(column, unit, run, runs[0]) for column, unit in zip(COLUMNS, units, strict=True)]
        kind = ' class="best"' if run is best and len(runs) > 1 else ""
        rows.append(f"<tr{kind}><th>{dot}{escape(run.label)}</th>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th>run</th>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cell(column: Column, unit: Unit, run: Contender, first: Contender) -> str:
    against = None if run is first else ratio(column, run, first)
    small = "" if against is None else f'<small class="{verdict(column.better, against)}">{ratio_text(against)}</small>'
    return f"<td>{cell(column, run, unit)}{small}</td>"


def _named(runs: Sequence[Contender]) -> str:
    """An explanation of the runs' names: order, placement and backfill."""
    words = words_of(run.outcome.policy for run in runs)
    told = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in words)
    return f'<dl class="words">{told}</dl>' if told else ""


def _sizes(runs: Sequence[Contender]) -> str:
    rows = size_rows(runs)
    if not rows:
        return ""
    heads = "".join(f"<th>{escape(title)}</th>" for title in HEADER)
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(text)}</td>' for text in row[1:])}</tr>" for row in rows
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<h2>Elastic jobs</h2>{table}<p class="note">{escape(MEANING)}</p>'


def _notes(runs: Sequence[Contender]) -> str:
    told = dict.fromkeys(note for run in runs for note in run.outcome.notes)
    if not told:
        return ""
    return f"<h2>Notes</h2><ul>{''.join(f'<li>{escape(note)}</li>' for note in told)}</ul>"


_MEANINGS = """<h2>What the numbers mean</h2>
<dl>
<dt>waiting</dt><dd>the time in which a job holds no GPUs</dd>
<dt>slowdown</dt><dd>JCT over what the job would take alone on typical GPUs in one node</dd>
<dt>p50, p99</dt><dd>half of the jobs, or 99 % of them, have no more</dd>
<dt>JCT</dt><dd>job completion time: from arrival to completion</dd>
<dt>makespan</dt><dd>from the first arrival to the last completion</dd>
<dt>GPUs held, used</dt><dd>GPU time that jobs hold, and GPU time of work that counted, over all GPUs × makespan</dd>
<dt>fairness loss</dt><dd>by how much, as a part of their fair time, jobs come later than it, in the mean over all.
A job’s fair time is its work × the contention while it was there: the GPUs that all jobs want over those that there
are, at least 1 (finish-time fairness, after Themis, NSDI 2020, and Shockwave, NSDI 2023)</dd>
<dt>unfair jobs</dt><dd>those that come later than their fair time by more than 5 %</dd>
<dt>lost</dt><dd>GPU time in which a job held GPUs and did no work, or work that was lost</dd>
</dl>"""
_CSS = f"""
body {{ margin: 0; background: #fff; color: #222; font: 15px/1.45 system-ui, "Helvetica Neue", Arial, sans-serif; }}
main {{ max-width: 1440px; margin: 0 auto; padding: 28px 32px 48px; }}
h1 {{ font-size: 27px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }}
h2 {{ font-size: 17px; margin: 32px 0 6px; }}
.subject {{ color: #555; margin: 0 0 22px; }}
.note {{ color: #777; font-size: 13px; margin: 8px 0 26px; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: 7px 0 7px 12px; vertical-align: top; border-bottom: 1px solid #e6e6e6; }}
thead th {{ color: #666; font-weight: 500; font-size: 13px; vertical-align: bottom; border-bottom-color: #bbb; }}
tr > th:first-child {{ text-align: left; padding-left: 0; font-weight: 500; }}
tr.best > * {{ font-weight: 650; }}
td small, thead small {{ display: block; font-size: 12px; font-weight: 400; color: #777; }}
small.better {{ color: {CONTENDERS[1]}; }}
small.worse {{ color: #a63603; }}
i {{ display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 8px; }}
.halves {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(560px, 100%), 1fr)); gap: 10px 20px; }}
figure {{ margin: 0 0 14px; }}
figure svg, figure img {{ width: 100%; height: auto; display: block; }}
ul, dl {{ margin: 0; color: #444; font-size: 14px; }}
ul {{ padding-left: 18px; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; max-width: 1000px; }}
dt {{ font-weight: 600; }}
dd {{ margin: 0; }}
.words {{ font-size: 13px; margin: 0 0 18px; }}
"""


def words_of(policies: Iterable[str]) -> list[tuple[str, str]]:
    """Each word of the policies' names, such as `las+weft-best+easy`, with its meaning; by part, then as they come."""
    found: dict[str, str] = {}
    names = [policy.split("+") for policy in policies]
    for place, (part, meanings) in enumerate(PARTS):
        for name in names:
            if len(name) > place and name[place] in meanings:
                found.setdefault(name[place], f"{part}: {meanings[name[place]]}")
    return list(found.items())
