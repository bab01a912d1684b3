"""Asks a scratch engine what Unicorn's interface does not tell of a CPU model.

A saved context is a copy of the CPU state.  A scratch engine is made to take exceptions with
chosen values; where they turn up in its context is where every engine of that CPU model keeps
them.  Nothing is assumed about the layout, and a place that is not unique is refused.

A scratch engine has ``CODE_SIZE`` bytes of flat memory at ``CODE`` and is in the mode a kernel
runs in; each board makes its own.
"""

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence

import unicorn

from emu.host.errors import MachineError

CODE, CODE_SIZE = 0x1000, 0x2000


class BlockEnds:
    """Whether an instruction ends the CPU model's translated block by itself.

    The model is asked: it translates the instruction with others behind it.  Each encoding is asked
    for once.

    :param scratch: makes the scratch engine.
    :param nop: an instruction that ends no block.
    """

    def __init__(self, scratch: Callable[[], unicorn.Uc], nop: bytes) -> None:
        self._scratch, self._nop = scratch, nop
        self._engine: unicorn.Uc | None = None
        self._known: dict[bytes, bool] = {}

    def __call__(self, code: bytes) -> bool:
        """:param code: one instruction."""
        known = self._known.get(code)
        if known is None:
            if self._engine is None:
                self._engine = self._scratch()
            self._engine.mem_write(CODE, code + 4 * self._nop)
            self._engine.ctl_remove_cache(CODE, CODE + CODE_SIZE)
            _pc, count, _size = self._engine.ctl_request_cache(CODE)
            known = self._known[code] = count == 1
        return known


class StateFields:
    """Fields of the CPU state that have no register number, by name: (offset, struct format)."""

    def __init__(self, fields: Mapping[str, tuple[int, str]]) -> None:
        self.fields = fields

    def read(self, uc: unicorn.Uc) -> dict[str, int]:
        raw = context_bytes(uc)
        return {name: struct.unpack_from(form, raw, at)[0]
                for name, (at, form) in self.fields.items()}

    def write(self, uc: unicorn.Uc, values: Mapping[str, int]) -> None:
        """:raises struct.error: for a value that does not fit."""
        context = uc.context_save()
        address = ctypes.cast(context.context, ctypes.c_void_p).value or 0
        for name, value in values.items():
            at, form = self.fields[name]
            raw = struct.pack(form, value)
            ctypes.memmove(address + at, raw, len(raw))
        uc.context_restore(context)


def context_bytes(uc: unicorn.Uc) -> bytes:
    """The CPU state of an engine, as a context holds it."""
    context = uc.context_save()
    return ctypes.string_at(context.context, context.size)


def find_field(states: Sequence[bytes], values: Sequence[int], form: str, what: str) -> int:
    """Byte offset where the n-th state holds the n-th value, in struct format ``form``.

    :raises MachineError: when there is none, or more than one.
    """
    needles = [struct.pack(form, value) for value in values]
    found = []
    at = states[0].find(needles[0])
    while at >= 0:
        if all(s[at : at + len(n)] == n for s, n in zip(states, needles, strict=True)):
            found.append(at)
        at = states[0].find(needles[0], at + 1)
    if len(found) != 1:
        raise MachineError(
            f"this version of Unicorn ({unicorn.__version__}) keeps {what} in "
            f"{len(found) or 'no'} places; version 2.1.4 is known to work"
        )
    return found[0]


def context_field(uc: unicorn.Uc, offset: int, form: str) -> int:
    """Read a field found by ``find_field`` from an engine."""
    context = uc.context_save()
    raw = ctypes.string_at(context.context, context.size)
    value: int = struct.unpack_from(form, raw, offset)[0]
    return value
