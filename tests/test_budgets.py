"""The budgets that docs/machine.md states are those that the code has."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "machine.md"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ROW = re.compile(r"^\| [^|]+ \| ([\d,]+)(?: ([KMG]iB))? \| `([\w.]+)\.(\w+)` \|$", re.M)
ROWS = ROW.findall(PAGE.read_text())


def test_each_row_of_the_table_is_read():
    table = PAGE.read_text().partition("| what | at most | constant |")[2].strip().split("\n\n")[0]
    assert len(ROWS) == table.count("\n") > 20  # and the line below the heads


@pytest.mark.parametrize("number, unit, module, name", ROWS, ids=[row[2] for row in ROWS])
def test_a_budget_is_what_the_page_says(number, unit, module, name):
    wanted = int(number.replace(",", "")) * UNITS.get(unit, 1)
    assert getattr(importlib.import_module(module), name) == wanted
