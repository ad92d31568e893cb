"""The parts of the pages that only reckon, in a real browser: logs with their colours, YAML, a story folded, charts."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml
from playwright.async_api import Browser, Page

from tests.support.chromium import watched
from tests.support.gateway_world import World
from weft.domain.decoding.yaml_reader import read_yaml

EVENTS = 5000
LINES = 200_000
TEXT = list("ab\x1b[31m0;]\x07\x9b\x9d\\Pm\r\n\té漢😀\u202e\x00<b>&")


class Modules:
    """The modules that the gateway serves, called by name."""

    def __init__(self, page: Page, folder: str) -> None:
        self._page = page
        self._folder = folder

    async def __call__(self, module: str, code: str, *given: Any) -> Any:
        """The value of an expression in which `m` is the module and `g` the given values."""
        function = f"async ([path, g]) => {{ const m = await import(path); return {code}; }}"
        return await self._page.evaluate(function, [f"{self._folder}/{module}", list(given)])


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Modules]:
    async with watched(browser, url, **options) as (page, _):
        await page.goto(url)
        source = await page.locator("link[rel=modulepreload]").first.get_attribute("href")
        yield Modules(page, str(source).rpartition("/")[0])


@pytest.fixture
async def modules(browser: Browser, world: World) -> AsyncIterator[Modules]:
    async with opened(browser, world.gateway.url) as made:
        yield made


async def test_a_moment_is_told_with_the_zone_of_the_browser(browser: Browser, world: World) -> None:
    told = {}
    for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
        async with opened(browser, world.gateway.url, timezone_id=zone) as modules:
            told[zone] = await modules("dom.js", "g.map(m.moment)", 1_700_000_000, 0, 1e300)
    assert told == {
        "UTC": ["2023-11-14 22:13:20 UTC", "1970-01-01 00:00:00 UTC", "unknown"],
        "Asia/Kolkata": ["2023-11-15 03:43:20 UTC+5:30", "1970-01-01 05:30:00 UTC+5:30", "unknown"],
        "America/New_York": ["2023-11-14 17:13:20 UTC-5", "1969-12-31 19:00:00 UTC-5", "unknown"],
    }


async def lines(modules: Modules, text: str) -> list[Any]:
    """Every line as a list of `[text, look]`."""
    return list(await modules("job/ansi.js", "m.linesOf(g[0]).map(l => l.spans.map(s => [s.text, s.look]))", text))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain\n", [[["plain", ""]]]),
        ("\x1b[31mred\x1b[0m not\n", [[["red", "a-t1"], [" not", ""]]]),
        ("\x1b[1;4;38;5;196mx\x1b[22;39my\n", [[["x", "a-t9 a-bold a-underline"], ["y", "a-underline"]]]),
        ("\x1b[38;2;0;200;0mx\x1b[m\x1b[48:2::0:0:255my\n", [[["x", "a-t2"], ["y", "a-b4"]]]),
        ("\x1b[38;2;1;2;300mx\n", [[["x", ""]]]),  # no such colour
        ("\x1b[38;5mx\x1b[999999999999;;;mx\n", [[["xx", ""]]]),
        ("\x1b]0;title\x07a\x1b]52;c;aGk=\x1b\\b\x1bPq\x1b\\c\x1b[2J\x1b[10;10Hd\n", [[["abcd", ""]]]),
        ("\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07\n", [[["link", ""]]]),
        ("10%\r20%\r\n30%\n", [[["10%", ""]], [["20%", ""]], [["30%", ""]]]),
        ("a\x00\x08\x7f\x85\u202eb\u2066\tc\n", [[["ab\tc", ""]]]),
        ("\x1b]no end\nkept\n", [[["]no end", ""]], [["kept", ""]]]),
        ("<script>alert(1)</script>&lt;\n", [[["<script>alert(1)</script>&lt;", ""]]]),
        ("\x1b[8mhidden\x1b[28m\n", [[["hidden", ""]]]),
        ("no line break", [[["no line break", ""]]]),
    ],
)
async def test_of_a_log_text_and_colours_are_shown_and_nothing_else(
    modules: Modules, written: str, shown: list[Any]
) -> None:
    assert await lines(modules, written) == shown


async def test_a_log_is_the_same_wherever_its_pieces_end(modules: Modules) -> None:
    chance = random.Random(17)
    texts = ["".join(chance.choices(TEXT, k=300)) for _ in range(60)]
    code = """g[0].map(text => {
      const whole = JSON.stringify(m.linesOf(text));
      const reader = new m.AnsiLines();
      const found = [...text].flatMap(piece => reader.feed(piece));
      return JSON.stringify([...found, ...reader.close()]) === whole;
    })"""
    assert all(await modules("job/ansi.js", code, texts))


async def test_a_line_of_ten_megabytes_and_many_lines_are_kept_in_bounds(modules: Modules) -> None:
    code = """(() => {
      const reader = new m.AnsiLines();
      for (let at = 0; at < 160; at += 1) reader.feed("x".repeat(65536));
      const [line] = reader.feed("\\u{1f600}\\n");
      return [line.spans.length, line.length, line.cut, m.LINE_MAX];
    })()"""
    spans, length, cut, most = await modules("job/ansi.js", code)
    assert (spans, length, length + cut) == (1, most, 160 * 65536 + 2)
    code = f"""(() => {{
      const data = new TextEncoder().encode("line\\n".repeat({LINES}));
      const last = m.lastLines(data, m.LINES_MAX);
      return [last.length / 5, m.LINES_MAX, m.lastLines(data.subarray(0, 7), 1).length];
    }})()"""
    shown, most, rest = await modules("job/log.js", code)
    assert (shown, rest) == (most, 2)


ODD: list[Any] = [
    *("", " ", "~", "null", "Null", "true", "True", "no", "NO", "on", "y", "N", ".", "-", "- a", "a: b", "a #b", "#a"),
    *(
        "1",
        "1.0",
        "1e3",
        "0x1f",
        "0o17",
        "1_000",
        ".inf",
        "-.INF",
        ".nan",
        "12:30:45",
        "2001-01-01",
        "=",
        "<<",
        "!!int 3",
    ),
    *(
        "*a",
        "&a b",
        "[a]",
        "{a: b}",
        "'a'",
        '"a"',
        "a\nb\n",
        "  a",
        "a  ",
        "\t",
        "a\\b",
        "%a",
        "@a",
        "`a`",
        "|",
        ">",
        "?",
    ),
    *(
        "é漢😀",
        "\u2028\u2029\u0085\ufeff\x7f\u00a0",
        "\u0001\u001b[31m",
        "<b>",
        "a" * 300,
        "---",
        "...",
        "--- a",
        "/a/b.c",
    ),
    *(
        0,
        -1,
        1.5,
        1e21,
        1e-7,
        -2.5e-300,
        10**15,
        True,
        False,
        None,
        [],
        {},
        [[]],
        [{}],
        [[1, [2, []]], {"a": [{"b": {}}]}],
    ),
]


async def test_what_is_copied_as_yaml_is_read_as_what_it_was(modules: Modules) -> None:
    values = [*ODD, ODD, {str(each): each for each in ODD}, [{"no": {"on": each}} for each in ODD], {"a": {"b": ODD}}]
    written: list[str] = await modules("job/yaml.js", "g[0].map(m.toYaml)", values)
    for value, text in zip(values, written, strict=True):
        assert read_yaml(text.encode()) == value, text
        assert yaml.safe_load(text) == value, text


def event(version: int, happened: str, state: str, *, at: float, epoch: int = 0, **cause: Any) -> dict[str, Any]:
    time = f"2026-01-31T12:{int(at // 60) % 60:02d}:{at % 60:06.3f}Z"
    data = {"version": version, "state": state, "epoch": epoch, "cause": cause}
    return {"type": f"weft.jobs.{happened}", "time": time, "data": data}


async def test_a_story_is_folded_into_stretches_marks_and_rows(modules: Modules) -> None:
    story = [
        event(1, "submitted", "queued", at=0, code="submitted"),
        event(2, "waiting", "queued", at=1, code="no-room", sentence="2 GPUs are free"),
        event(3, "waiting", "queued", at=5, code="no-room", sentence="3 GPUs are free"),
        event(4, "placed", "placed", at=10, code="fits"),
        event(5, "started", "running", at=12, code="node-reported"),
        event(6, "tuned", "running", at=15, code="upscaled"),
        event(7, "stopping", "stopping", at=20, code="moved"),
        event(8, "requeued", "queued", at=21, epoch=1, code="moved"),
        event(9, "placed", "placed", at=21, epoch=1, code="moved"),
        event(10, "started", "running", at=23, epoch=1, code="node-reported"),
        event(11, "resized", "running", at=30, epoch=1, code="lent", by="j-service"),
    ]
    now = 1769860840.0  # 12:00:40
    told = await modules("job/story.js", "({...m.fold(g[0], g[1]), says: m.summaryOf(m.fold(g[0], g[1]))})", story, now)
    phases = [(one["phase"], one["to"] - one["from"], one["epoch"]) for one in told["stretches"]]
    assert phases == [
        *(("waits", 10, 0), ("starts", 2, 0), ("runs", 8, 0), ("stops", 1, 0)),
        *(("waits", 0, 1), ("starts", 2, 1), ("runs", 17, 1)),
    ]
    assert [mark["kind"] for mark in told["marks"]] == ["tuned", "moved", "loan"]
    assert [(row["event"], row["count"]) for row in told["rows"]][:3] == [
        ("submitted", 1),
        ("waiting", 2),
        ("placed", 1),
    ]
    assert told["says"].startswith("Waited 10s, ran 25s in 2 epochs")


async def test_a_story_of_thousands_of_events_or_of_nonsense_is_drawn_with_few_elements(modules: Modules) -> None:
    chance = random.Random(17)
    states = ["queued", "placed", "running", "stopping", "queer", ""]
    story: list[Any] = [
        event(
            number,
            chance.choice(["tuned", "waiting", "requeued", "placed", "resized", "<b>"]),
            chance.choice(states),
            at=number * 0.1,
            epoch=number // 40,
            code=chance.choice(["lent", "preempted", "moved", "<img src=x>"]),
            sentence="<script>alert(1)</script>\x1b[31m",
            numbers={"a": None, "b": "text"},
        )
        for number in range(EVENTS)
    ]
    story += [None, {}, {"data": None, "time": "never", "type": 3}, {"data": {"placement": {"allocations": [None]}}}]
    code = """(async () => {
      const view = m.storyView();
      document.body.append(view.element);
      view.update(g[0], {now: 1e300});
      view.update(g[0], {now: 0});
      await new Promise(go => setTimeout(go, 300));
      return [view.element.querySelectorAll("*").length, view.element.querySelectorAll("svg rect").length,
        view.element.querySelectorAll("tbody tr").length, m.ROWS_MAX,
        view.element.querySelectorAll("script, img, b").length,
        /NaN|Infinity/.test(view.element.querySelector("svg[role=img]")?.outerHTML ?? "none")];
    })()"""
    elements, bars, rows, most, foreign, unreal = await modules("job/story.js", code, story)
    assert 0 < bars < 1500
    assert rows == most
    assert elements < 8000
    assert (foreign, unreal) == (0, False)


async def test_a_chart_takes_odd_numbers_and_has_its_figures_as_a_table(modules: Modules) -> None:
    code = """(async () => {
      const odd = [NaN, Infinity, -Infinity, null, undefined, "3", 1e308, -1e308, 5e-324, 0, -0, 2 ** 53, [], {}];
      const ways = [
        [], [{name: "none", points: []}], [{name: "null", points: [[1, null], [2, null]]}],
        [{name: "one", points: [[1, 5]]}], [{name: "same", points: [[1, 0], [2, 0]]}],
        [{name: "odd", points: odd.map((y, x) => [x, y])}], [{name: "odd x", points: odd.map(x => [x, 1])}],
        [{name: "no list", points: "text"}], [{name: "huge", points: odd.map(y => [y, y])}],
        Array.from({length: 40}, (_, n) => ({
          name: `<b>${n}`, points: Array.from({length: 5000}, (_, x) => [x, x % 97 ? x * n : null]),
        })),
      ];
      const found = [];
      for (const x of ["clock", "number"]) for (const series of ways) {
        const chart = m.lineChart({title: "<i>odd</i>", x, unit: "s"});
        document.body.append(chart.element);
        chart.update(series);
        chart.element.querySelector("details").open = true;
        await new Promise(go => setTimeout(go, 60));
        const text = chart.element.outerHTML;
        found.push([/="[^"]*(NaN|Infinity)/.test(text), chart.element.querySelectorAll("b, i").length,
          text.length < 900000, chart.element.querySelectorAll("tbody tr").length <= 61]);
        chart.close();
        chart.element.remove();
      }
      return found;
    })()"""
    assert await modules("chart.js", code) == [[False, 0, True, True]] * 20


async def test_a_chart_shows_a_gap_where_nothing_was_measured_and_every_extreme(modules: Modules) -> None:
    code = """(async () => {
      const points = Array.from({length: 9000}, (_, x) => [x, x === 4444 ? 900 : x > 6000 && x < 7000 ? null : 1]);
      const thin = m.thinned(points, 300);
      const gap = thin.findIndex(point => point[1] === null);
      return [thin.length <= 900, thin.some(point => point[1] === 900), thin[gap][0] > 5900 && thin[gap][0] < 7000,
        m.summaryOf([{name: "a", points: [[1, 2], [2, null]]}]), m.niceTicks(0, 97, 4)];
    })()"""
    told = await modules("chart.js", code)
    assert told == [True, True, True, "a: always 2.", [0, 25, 50, 75, 100]]
