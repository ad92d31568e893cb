"""Sweeps with answers: the table of their elements, over HTTP, by `weft sweep` and in Python, on a whole cluster."""

import asyncio
import csv
import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

import weft
from tests.support.builders import spec
from tests.support.cluster import embedded_cluster
from tests.support.person import Person
from weft.client import Client

SECONDS_MAX = 90.0
PROGRAM = """
import sys, weft
rate = float(sys.argv[1])
for step in range(1, 6):
    weft.step(step, reward=-rate / step if step < 5 else -rate * 2)
sys.exit(3 if rate == 0.5 else 0)
"""


async def test_a_sweep_has_a_table_and_a_best_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with embedded_cluster(tmp_path / "sweeps", nodes=1, gpus=1) as cluster:
        monkeypatch.setenv("WEFT_URL", cluster.local.url)
        monkeypatch.setenv("WEFT_TOKEN", cluster.local.token)
        command = [sys.executable, "-c", PROGRAM, "{lr}"]
        given = {"sweep": {"lr": [0.1, 0.5, 2.0], "kind": ["a"]}, "env": {"PYTHONPATH": ":".join(sys.path)}}
        submitted = await cluster.client.submit(
            msgspec.json.encode({"name": "tune", "command": command, "workdir": str(tmp_path), **given})
        )
        async with asyncio.timeout(SECONDS_MAX):
            while not (await cluster.client.array(submitted.id)).over:  # noqa: ASYNC110 -- an array has no event
                await asyncio.sleep(0.1)
        study = await weft.aio.Study.find("tune")
        table = await study.table(goal="max")
        assert (table.metric, table.id, [row.values["lr"] for row in table.rows]) == (
            "reward",
            submitted.id,
            ["0.1", "0.5", "2.0"],
        )
        assert [(row.last, row.best, row.state) for row in table.rows] == [
            (-0.2, -0.025, "succeeded"),
            (-1.0, -0.125, "failed"),
            (-4.0, -0.5, "succeeded"),
        ]
        assert table.rows[0].curve == (-0.1, -0.05, pytest.approx(-0.1 / 3), -0.025, -0.2)
        best, worst = await study.best(goal="max"), await study.best()
        assert (best and best.index, worst and worst.index) == (0, 2)
        assert await study.best(metric="none") is None
        token = (await cluster.client.make_token("bob", "test")).token
        async with Client(cluster.local.url, token) as bob:
            with pytest.raises(weft.Refused, match="no array has the id"):
                await bob.sweep(submitted.id)

        person = Person(cluster, cluster.local.token)
        shown = (await person.types("sweep", "tune", "--goal", "max")).out.splitlines()
        assert [line.split()[0] for line in shown] == ["INDEX", "0", "1", "2"]
        assert "status 3" in shown[2]
        by_rate = (await person.types("sweep", "tune", "--sort", "lr", "--csv")).out
        rows = list(csv.DictReader(io.StringIO(by_rate)))
        assert [(row["lr"], row["best"], row["state"]) for row in rows][2] == ("2.0", "-4.0", "succeeded")
        best_row = json.loads((await person.types("sweep", "tune", "--best", "--goal", "max", "--json")).out)
        assert best_row["values"] == {"lr": "0.1", "kind": "a"}
        wrong = await person.types("sweep", "tune", "--sort", "x")
        assert (wrong.status, "x is no column; there is index, best, last, state, lr, kind" in wrong.err) == (2, True)
        plain = await cluster.client.submit(spec("plain", array="0-1", command=["true"]))
        none = await person.types("sweep", plain.id, "--best")
        assert (none.status, "no element of plain reported any metric" in none.err) == (1, True)
