"""A Python program as the workload of a machine."""

import ast
import contextlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from emu.host.errors import KinstError
from emu.unicorn.machine import UnicornMachine
from kinst_emu.api.kernel import Kernel
from kinst_emu.api.machine import Machine

Workload = Callable[[Machine], object]

WORKLOAD, PROGRAM = "workload", "PROGRAM"  # its function, and what that wants to run


def load_program(path: Path) -> Workload:
    """The function ``workload`` of a Python program.

    :raises KinstError: when it has none (as far as its text tells, it is not run then), or raises.
    """
    missing = KinstError(f"{path}: has no function {WORKLOAD}(machine), which is called with the "
                         "machine that is recorded; define one")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KinstError(f"{path}: cannot be read: {error.strerror}") from None
    with _said(path):
        if not _binds(ast.parse(text, str(path)), WORKLOAD):
            raise missing
        found = runpy.run_path(str(path)).get(WORKLOAD)
    if not callable(found):
        raise missing
    return cast(Workload, found)


def program_of(path: Path, workload: Workload) -> Path | None:
    """The C file that a Python program names in ``PROGRAM``, from where it is: the machine stands
    at our shell, and the file's program is in /files.  None: it names none.

    :raises KinstError: when that is no file's name.
    """
    named = getattr(workload, "__globals__", {}).get(PROGRAM)
    if named is None:
        return None
    if not isinstance(named, str) or not named.endswith(".c"):
        raise KinstError(f"{path}: {PROGRAM} is not the name of a C file")
    return path.parent / named


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether a name may be one of the module: a function, an assignment, an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            bound = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound = [one.asname or one.name for one in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound = [node.id]
        else:
            continue
        if name in bound or "*" in bound:
            return True
    return False


def run_program(path: Path, workload: Workload, kernel: Kernel, machine: UnicornMachine) -> None:
    """Call what ``load_program`` has found in a Python program.

    :raises KinstError: when it raises.
    """
    with _said(path):
        workload(Machine(kernel, machine))


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """What the user's program raises is one line, with the place in the program."""
    try:
        yield
    except (KinstError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 (it is the user's program: any of it is said)
        rows = [row for row in traceback.extract_tb(sys.exc_info()[2])
                if row.filename == str(path)]
        where = f":{rows[-1].lineno}" if rows else ""
        raise KinstError(f"{path}{where}: {type(error).__name__}: {error}") from None
