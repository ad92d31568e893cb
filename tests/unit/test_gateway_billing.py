"""The rows of an account as CSV: what a tenant wrote is a text in a spreadsheet, whatever it begins with."""

import csv
import io

import msgspec
import pytest

from weft.messages.accounts import AccountRow
from weft.messages.series import UsageView
from weftd.gateway.accounting.billing import csv_of


def view(*keys: str) -> UsageView:
    amounts = dict.fromkeys(("gpu_seconds_held", "lost_preempted", "lost_moved", "lost_failed"), 0.0)
    rows = [{"key": key, "gpu_seconds_used": None, "cost": None, "jobs": 1, "epochs": 1, **amounts} for key in keys]
    made = msgspec.convert(rows, tuple[AccountRow, ...])
    return UsageView(begins=0, ends=1, step_seconds=1, gpu_seconds=0, gpu_seconds_idle=0, rows=made)


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_a_label_is_no_formula(first: str) -> None:
    key = f"{first}cmd|'/c calc'!A1"
    read = list(csv.DictReader(io.StringIO(csv_of(view(key)), newline="")))
    assert [row["key"] for row in read] == [f"'{key}"]


def test_a_label_of_several_lines_with_quotes_is_one_cell() -> None:
    keys = ['a",=1+1\r\n=2+2', "a;=1", "\u202eb", ""]
    read = list(csv.DictReader(io.StringIO(csv_of(view(*keys)), newline="")))
    assert [row["key"] for row in read] == keys
