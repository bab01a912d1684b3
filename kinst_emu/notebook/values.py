"""Variables as tables in a notebook, with structures and pointers that can be opened."""

from html import escape

from dtrace.stacks.shown_locals import text_of
from dtrace.stacks.source_frames import Variables
from dwarf.types import declare
from dwarf.values import CArray, CPointer, CStruct, Value, parts
from emu.host.errors import KinstError
from kinst_emu.notebook import html

MAX_DEPTH = 2  # levels of structures and pointers that can be opened
MAX_VALUES = 2_000  # maximum number of values in one table


class VariableTable(Variables):
    """Variables of a function; a notebook shows them as a table whose values can be opened.

    The notebook reads the values when it shows the table.
    """

    def _repr_html_(self) -> str:
        left = [MAX_VALUES]
        return html.rows(("variable", "value"), [
            (escape(declare(one.variable.type, one.variable.name)),
             f"<i>{escape(one.reason)}</i>" if one.reason else tree(one.value, left))
            for one in self.all])


def tree(value: Value, left: list[int], depth: int = 0) -> str:
    """Return a value as HTML; structures, arrays and pointers can be opened.

    :param left: the number of values that may still be shown, as a list of one number.
    """
    left[0] -= 1
    text = escape(text_of(value))
    if depth == MAX_DEPTH or not isinstance(value, CPointer | CStruct | CArray):
        return text
    inner = list[str]()
    for name, read in parts(value):
        if left[0] <= 0:
            inner.append("<div>...</div>")
            break
        try:
            part = tree(read(), left, depth + 1)
        except KinstError as error:
            part = f"<i>{escape(str(error))}</i>"
        inner.append(f"<div>{escape(name)} = {part}</div>")
    if not inner:
        return text
    return (f'<details><summary>{text}</summary><div style="margin-left:1.5em">'
            f'{"".join(inner)}</div></details>')
