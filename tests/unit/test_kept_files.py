"""The bytes that jobs have on nodes: added up on a node, and counted for their tenants."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from weft.messages.accounts import AccountRow, JobFacts, UsageGrouping
from weft.messages.files import Area, FilesKept, KeptFolder
from weft.messages.series import UsageView
from weftd.executor.files.job_files import JobFiles
from weftd.executor.files.job_folders import JobFolders
from weftd.gateway.accounting.kept import HEARD_SECONDS_MAX, Kept, KeptFiles, with_kept

BLOCK = 1 << 20


def on_disk(home: Path) -> JobFiles:
    return JobFiles(*(JobFolders(f"{home}/{area}") for area in ("results", "checkpoints", "metrics")))


def wrote(home: Path, area: str, job_id: str, blocks: int) -> None:
    folder = home / area / job_id / "deep"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file").write_bytes(bytes(blocks * BLOCK))


class Jobs:
    """A store that knows of which tenants jobs are, and counts how often it is asked."""

    def __init__(self, **tenants: str) -> None:
        self.tenants, self.asked = tenants, list[str]()

    async def job_facts(self, job_ids: Sequence[str]) -> list[JobFacts]:
        self.asked += job_ids
        known = [(one, self.tenants[one]) for one in job_ids if one in self.tenants]
        return [JobFacts(id=one, tenant=tenant, pool="default", name=one, kind="batch") for one, tenant in known]


def folder(job_id: str, size: int, *, area: Area = Area.RESULTS, mark: str = "") -> KeptFolder:
    return KeptFolder(job_id=job_id, area=area, bytes=size, mark=mark or job_id)


def view(*keys: str) -> UsageView:
    rows = tuple(AccountRow(key=key, tenant=key, gpu_seconds_held=1.0) for key in keys)
    return UsageView(
        begins=0.0,
        ends=1.0,
        step_seconds=1.0,
        gpu_seconds=0.0,
        gpu_seconds_idle=0.0,
        rows=rows,
        total=AccountRow(key="total", gpu_seconds_held=2.0),
    )


def test_a_node_adds_up_the_files_of_each_job_and_leaves_out_what_is_no_job(tmp_path: Path) -> None:
    wrote(tmp_path, "results", "j-1", 2)
    wrote(tmp_path, "checkpoints", "j-1", 5)
    wrote(tmp_path, "checkpoints", "j-2", 3)
    wrote(tmp_path, "checkpoints", ".coming", 9)
    wrote(tmp_path, "results", "no job", 9)
    os.symlink("/", tmp_path / "results/j-3")
    told = on_disk(tmp_path).kept("node-1")
    assert [(one.job_id, one.area, one.bytes // BLOCK) for one in told.folders] == [
        ("j-1", "checkpoints", 5),
        ("j-2", "checkpoints", 3),
        ("j-1", "results", 2),
    ]
    assert told == on_disk(tmp_path).kept("node-1"), "a node that shares the folder tells the same"


def test_beyond_the_bound_the_smallest_folders_are_one_number(tmp_path: Path) -> None:
    for job_id, blocks in (("j-1", 1), ("j-2", 3), ("j-3", 2)):
        wrote(tmp_path, "results", job_id, blocks)
    told = on_disk(tmp_path).kept("node-1", most=2)
    assert [one.job_id for one in told.folders] == ["j-2", "j-3"]
    assert told.left_out_bytes // BLOCK == 1


def test_each_tenant_has_the_bytes_of_its_jobs_and_a_shared_folder_counts_once() -> None:
    async def counted() -> None:
        now = 0.0
        kept, store = KeptFiles(clock=lambda: now), Jobs(a="ada", b="bob", c="ada")
        assert await kept.of(cast(Any, store)) is None
        shared = folder("a", 100, area=Area.CHECKPOINTS)
        await kept.hear(FilesKept(node_id="node-1", folders=(shared, folder("a", 10), folder("gone", 7))))
        await kept.hear(FilesKept(node_id="node-2", folders=(shared, folder("b", 20), folder("c", 1))))
        found = await kept.of(cast(Any, store))
        assert found is not None
        assert found.of_tenants == {"ada": 111, "bob": 20}
        assert found.of_jobs["a"] == 110
        asked = len(store.asked)
        await kept.of(cast(Any, store))
        assert store.asked[asked:] == ["gone"], "the tenant of a job is asked for once"
        now = HEARD_SECONDS_MAX - 1
        await kept.hear(FilesKept(node_id="node-2", folders=(folder("b", 5),)))
        now = HEARD_SECONDS_MAX + 1
        found = await kept.of(cast(Any, store))
        assert found is not None
        assert found.of_tenants == {"bob": 5}

    asyncio.run(counted())


def test_the_account_has_a_row_for_a_tenant_that_only_keeps_files() -> None:
    kept = Kept(of_jobs={"a": 3}, of_tenants={"ada": 3, "bob": 4})
    shown = with_kept(view("ada", "carl"), UsageGrouping.TENANT, kept, only=None, limit=10)
    assert [(row.key, row.kept_bytes) for row in shown.rows] == [("ada", 3), ("carl", 0), ("bob", 4)]
    assert shown.total is not None
    assert shown.total.kept_bytes == 7
    cut = with_kept(view("ada", "carl"), UsageGrouping.TENANT, kept, only=None, limit=2)
    assert ([row.key for row in cut.rows], cut.left_out) == (["ada", "carl"], 1)


def test_a_tenant_sees_no_other_and_days_have_no_bytes() -> None:
    kept = Kept(of_jobs={"a": 3}, of_tenants={"ada": 3, "bob": 4})
    own = with_kept(view("ada"), UsageGrouping.TENANT, kept, only="ada", limit=10)
    assert [row.key for row in own.rows] == ["ada"]
    assert own.total is not None
    assert own.total.kept_bytes == 3
    assert with_kept(view("2026-11-29"), UsageGrouping.DAY, kept, only=None, limit=10).rows[0].kept_bytes is None
    assert with_kept(view("ada"), UsageGrouping.TENANT, None, only=None, limit=10).rows[0].kept_bytes is None
