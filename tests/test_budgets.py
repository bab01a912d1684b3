"""Tests that the budgets in docs/machine.md have the values of the constants in the code."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "machine.md"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ROW = re.compile(r"^\| [^|]+ \| ([\d,]+)(?: ([KMG]iB))? \| `([\w.]+)\.(\w+)` \|$", re.M)
# (documented value, value in the code), keyed by constant; read before any test patches a constant
ROWS = {f"{module}.{name}": (int(number.replace(",", "")) * UNITS.get(unit, 1),
                             getattr(importlib.import_module(module), name))
        for number, unit, module, name in ROW.findall(PAGE.read_text())}


def test_every_row_of_the_table_is_parsed():
    table = PAGE.read_text().partition("| what | at most | constant |")[2].strip().split("\n\n")[0]
    assert len(ROWS) == table.count("\n") > 20  # a newline precedes each row


@pytest.mark.parametrize("constant", ROWS)
def test_each_budget_has_the_value_on_the_page(constant):
    on_page, real = ROWS[constant]
    assert on_page == real
