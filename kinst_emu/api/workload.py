"""Python programs that drive a machine while it is recorded."""

import ast
import contextlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from emu.host.errors import KinstError
from emu.host.printable import printable
from emu.unicorn.machine import UnicornMachine
from kinst_emu.api.kernel import Kernel
from kinst_emu.api.machine import Machine

Workload = Callable[[Machine], object]

# Names that the Python program defines: a function and, optionally, the path of a C file to run.
WORKLOAD, PROGRAM = "workload", "PROGRAM"


def load_program(path: Path) -> Workload:
    """Load a Python program and return its function ``workload``.

    :raises KinstError: when the program raises an exception or does not define the function; a
        program whose source does not bind the name is not executed.
    """
    missing = KinstError(f"{path}: no function {WORKLOAD}(machine): define one; it is called with "
                         "the recorded machine")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KinstError(f"{path}: cannot be read: {error.strerror}") from None
    with _said(path):
        if not _binds(ast.parse(text, str(path)), WORKLOAD):
            raise missing
        function = runpy.run_path(str(path)).get(WORKLOAD)
    if not callable(function):
        raise missing
    return cast(Workload, function)


def program_of(path: Path, workload: Workload) -> Path | None:
    """Return the C file that a Python program names in ``PROGRAM``, or None.

    The name is relative to the Python program's directory.  With such a file, the machine boots to
    a shell and has the compiled program in /files.

    :raises KinstError: when ``PROGRAM`` is not the name of a C file.
    """
    named = getattr(workload, "__globals__", {}).get(PROGRAM)
    if named is None:
        return None
    if not isinstance(named, str) or not named.endswith(".c"):
        raise KinstError(f"{path}: {PROGRAM} must be the name of a C file (*.c), not "
                         f"{printable(repr(named), 60)}")
    return path.parent / named


def _binds(tree: ast.Module, name: str) -> bool:
    """Return whether a module may define a name as a function, class, variable or import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            bound = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound = [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound = [node.id]
        else:
            continue
        if name in bound or "*" in bound:
            return True
    return False


def run_program(path: Path, workload: Workload, kernel: Kernel, machine: UnicornMachine) -> None:
    """Call the function that ``load_program`` found in a Python program.

    :raises KinstError: when the function raises an exception.
    """
    with _said(path):
        workload(Machine(kernel, machine))


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """Convert an exception raised by the user's program to a one-line error with its location."""
    try:
        yield
    except (KinstError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 (user code may raise anything)
        rows = [row for row in traceback.extract_tb(sys.exc_info()[2])
                if row.filename == str(path)]
        where = f":{rows[-1].lineno}" if rows else ""
        raise KinstError(f"{path}{where}: {type(error).__name__}: {error}") from None
