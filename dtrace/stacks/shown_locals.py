"""Text of the variables in the frames of a stopped guest."""

from collections.abc import Callable, Iterator, Sequence

from dtrace.stacks.locals import Local, Locals
from dtrace.stacks.stack import StackFrame
from dwarf.debug_file import DebugDataError
from dwarf.types import declare
from dwarf.values import Value, pointed_text
from emu.host.errors import MemoryAccessError
from emu.host.printable import visible

MAX_STRING = 100  # maximum number of bytes shown of a string that a pointer points to
MAX_VALUE = 300  # maximum number of characters of a value
MAX_FRAMES = 20  # maximum number of frames whose variables are shown


def variables_of(locals_of: Locals, read: Callable[[str], int], frames: int
                 ) -> Iterator[dict[str, object]]:
    """Yield the functions of the innermost frames with their variables, inlined functions first.

    :param read: returns a general register by name.
    :param frames: number of frames of the stack.
    """
    stack = locals_of.frames(read, MAX_FRAMES)
    for number in range(min(frames, len(stack))):
        yield from _frame(locals_of, stack, number)


def _frame(locals_of: Locals, stack: Sequence[StackFrame], number: int
           ) -> Iterator[dict[str, object]]:
    for scope, variables in locals_of.of(stack, number):
        yield {"frame": number, "function": scope.function.name, "pc": stack[number].pc,
               "inlined": scope.function.inlined,
               "variables": [_row(one) for one in variables]}


def _row(local: Local) -> dict[str, object]:
    variable = local.variable
    return {"name": variable.name, "type": declare(variable.type),
            "declaration": declare(variable.type, variable.name),
            "parameter": variable.parameter,
            "value": "" if local.reason else text_of(local.value), "unknown": local.reason}


def text_of(value: Value) -> str:
    """Return a value as text, or why the memory that it occupies cannot be read.

    The string to which a ``char *`` points follows the pointer, if it can be read.
    """
    try:
        text = f"{value} ({value:#x})" if type(value) is int and value > 9 else (
            f'"{value}"' if isinstance(value, str) else str(value))
    except (DebugDataError, MemoryAccessError) as error:
        return f"cannot be read: {error}"
    try:
        string = pointed_text(value, MAX_STRING + 1)
    except MemoryAccessError:
        string = None
    if string is not None:
        text += f' "{string[:MAX_STRING]}"' + ("..." if len(string) > MAX_STRING else "")
    text = visible(text).replace("\n", "\\n")
    return text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "..."


def lines(frames: Iterator[dict[str, object]]) -> Iterator[str]:
    """Yield the lines of text for ``variables_of``."""
    for frame in frames:
        variables = frame["variables"]
        assert isinstance(variables, list)
        yield f"{frame['function']}{' [inlined]' if frame['inlined'] else ''}:"
        for row in variables:
            value = f"<{row['unknown']}>" if row["unknown"] else row["value"]
            yield f"    {row['declaration']} = {value}"
        if not variables:
            yield "    (no variables)"
