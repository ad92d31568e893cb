"""The page of a sweep: its elements as lines over the axes of their values, and as a table."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.browser.test_modules import Modules, opened
from tests.support.dashboard import dashboard
from tests.support.gateway import admitted
from tests.support.gateway_world import World
from tests.support.steps import placement
from weft.domain.arrays import element_id
from weft.domain.job import JobEvent

LOSSES = {"0.001": (5.0, 3.0), "0.01": (4.0, 0.5), "1": (9.0, 8.0)}
SWEEP = b"""name: tune
command: [python, train.py]
sweep:
  rate: ["0.001", "0.01", "1"]
  layer: ["<b>deep"]
"""


@pytest.fixture
async def modules(browser: Browser, world: World) -> AsyncIterator[Modules]:
    async with opened(browser, world.gateway.url) as made:
        yield made


async def swept(world: World) -> list[str]:
    """The ids of the elements of a sweep of alice's, each of which runs and has reported two losses."""
    made = await world.alice.submit(SWEEP, content="yaml")
    ids = [element_id(made.id, index) for index in range(len(LOSSES))]
    for place, (job_id, losses) in enumerate(zip(ids, LOSSES.values(), strict=True)):
        job = await admitted(world.place, world.lease, job_id)
        where = placement((f"node-{1 + place % 2}", place // 2))
        job = await world.go(job, JobEvent.PLACED, placement=where)
        await world.go(job, JobEvent.STARTING, JobEvent.STARTED)
        rows = [{"step": float(step), "loss": loss} for step, loss in enumerate(losses)]
        await world.nodes[f"node-{1 + place % 2}"].report(job_id, rows)
    return ids


async def test_a_sweep_is_lines_over_its_values_and_a_table_with_the_best_first(browser: Browser, world: World) -> None:
    ids = await swept(world)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go("sweep/tune")
        await expect(window.main.get_by_role("heading", name="tune")).to_be_visible()
        lines = window.main.get_by_role("link", name="Element")
        await expect(lines).to_have_count(3)
        best = window.main.get_by_role("link", name="Element 1, the best, rate 0.01, layer <b>deep, best loss 0.5")
        await expect(best).to_have_attribute("href", f"#/job/{ids[1]}")
        table = window.main.get_by_role("table")
        await expect(table.get_by_role("row")).to_have_count(4)
        await expect(table.get_by_role("row").nth(1)).to_contain_text("0.5")
        await expect(table.get_by_role("columnheader")).to_have_text(
            ["element", "rate", "layer", "state", "best", "last", "curve", "why it ended"], use_inner_text=True
        )
        await window.main.get_by_label("in the order of").select_option("Index")
        await expect(table.get_by_role("row").nth(1)).to_contain_text("tune 0")
        await window.main.get_by_label("where").select_option("max")
        worst = window.main.get_by_role("link", name="Element 2, the best, rate 1, layer <b>deep, best loss 9")
        await expect(worst).to_be_visible()
        assert await window.barriers() == []
        assert await window.scrolls_sideways() == 0
        await window.picture("sweep")


async def test_the_keyboard_goes_from_line_to_line_and_opens_a_job(browser: Browser, world: World) -> None:
    ids = await swept(world)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go("sweep/tune")
        lines = window.main.get_by_role("link", name="Element")
        await expect(lines).to_have_count(3)
        await window.main.get_by_label("where").focus()
        await window.page.keyboard.press("Tab")
        await expect(window.main.get_by_role("link", name="Element 1, the best")).to_be_focused()
        said = window.main.locator("figure").get_by_role("status")
        await expect(said).to_contain_text("Element 1, the best, rate 0.01")
        await window.page.keyboard.press("ArrowDown")
        await expect(said).to_contain_text("Element 0, rate 0.001")
        await window.page.keyboard.press("End")
        await expect(said).to_contain_text("Element 2, rate 1")
        await window.page.keyboard.press("Enter")
        await expect(window.main.get_by_text(ids[2]).first).to_be_visible()
        array = f"a-{ids[2].removeprefix('j-').rpartition('-')[0]}"
        await window.tab("Metrics")
        await expect(window.main.get_by_role("link", name="its sweep")).to_have_attribute("href", f"#/sweep/{array}")


async def test_a_sweep_that_is_not_there_says_so(browser: Browser, world: World) -> None:
    async with dashboard(browser, world.gateway.url, world.tokens["bob"]) as window:
        window.watch.expect("sweep")
        await window.go("sweep/a-none")
        await expect(window.main.get_by_text("There is no array a-none that you may see.")).to_be_visible()


async def test_axes_are_numbers_logarithms_or_names(modules: Modules) -> None:
    rows = [
        {"index": 0, "values": {"lr": "0.0001", "n": "2", "opt": "adam", "odd": "1"}, "best": 1.5},
        {"index": 1, "values": {"lr": "0.1", "n": "4", "opt": "sgd"}, "best": -1e308},
        {"index": 2, "values": {"lr": "0.01", "n": "3", "opt": "adam", "odd": "1"}},
    ]
    code = "m.axesOf(g[0]).map(a => [a.name, a.kind, g[0].rows.map(r => a.at(r))])"
    found = {name: (kind, at) for name, kind, at in await modules("sweep/parallel.js", code, {"rows": rows})}
    assert found["lr"] == ("log", [0, 1, pytest.approx(2 / 3)])
    assert found["n"] == ("number", [0, 1, 0.5])
    assert found["opt"] == ("names", [0, 1, 0])
    assert found["odd"] == ("number", [0.5, None, 0.5])
    assert found["best metric"] == ("number", [1, 0, None])
    ranked = await modules("sweep/parallel.js", 'm.ranked(g[0], "max").map(r => r.index)', rows)
    assert ranked == [0, 1, 2]
    assert await modules("sweep/parallel.js", "m.axesOf({rows: []}).length") == 1
