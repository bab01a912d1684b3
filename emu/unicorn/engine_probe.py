"""Search for fields of a CPU model's state that Unicorn's API does not expose.

A saved context is a copy of the CPU state.  A scratch engine takes exceptions with chosen values;
the offsets at which these appear in its context are valid for every engine of that CPU model.
Nothing is assumed about the layout, and a value found at several offsets is an error.

A scratch engine has ``CODE_SIZE`` bytes of flat memory at ``CODE`` and is in the mode in which a
kernel runs; each architecture creates its own.
"""

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence

import unicorn

from emu.host.errors import MachineError

CODE, CODE_SIZE = 0x1000, 0x2000


class Scratch:
    """A scratch engine that is used several times; creating one takes 6 ms.

    An engine takes a gibibyte of address space, so ``release`` must be called after the last use.

    :param create: creates the engine, with the memory at ``CODE`` mapped.
    """

    def __init__(self, create: Callable[[], unicorn.Uc]) -> None:
        self._create = create
        self._engine: unicorn.Uc | None = None

    def __call__(self) -> unicorn.Uc:
        """Return the engine in its first state.  The caller must remove the hooks that it adds."""
        if self._engine is None:
            self._engine = self._create()
            self._first = self._engine.context_save()
        self._engine.context_restore(self._first)
        self._engine.mem_write(CODE, bytes(CODE_SIZE))
        self._engine.ctl_flush_tb()
        return self._engine

    def release(self) -> None:
        """Free the engine until it is needed again."""
        self._engine = None


class BlockEnds:
    """Predicate for instructions that end the CPU model's translated block.

    The CPU model translates the instruction with others after it.  The answer is cached for each
    encoding.

    :param scratch: creates the scratch engine.
    :param nop: an instruction that does not end a block.
    """

    def __init__(self, scratch: Callable[[], unicorn.Uc], nop: bytes) -> None:
        self._scratch, self._nop = scratch, nop
        self._engine: unicorn.Uc | None = None
        self._known: dict[bytes, bool] = {}

    def __call__(self, code: bytes) -> bool:
        """Return whether an instruction ends its block.

        :param code: bytes of the instruction.
        """
        ends = self._known.get(code)
        if ends is None:
            if self._engine is None:
                self._engine = self._scratch()
            self._engine.mem_write(CODE, code + 4 * self._nop)
            self._engine.ctl_remove_cache(CODE, CODE + CODE_SIZE)
            _pc, count, _size = self._engine.ctl_request_cache(CODE)
            ends = self._known[code] = count == 1
        return ends


class StateFields:
    """CPU state fields without a register number: name -> (offset, struct format)."""

    def __init__(self, fields: Mapping[str, tuple[int, str]]) -> None:
        self.fields = fields

    def read(self, uc: unicorn.Uc) -> dict[str, int]:
        """Return the values of all fields, keyed by name."""
        raw = context_bytes(uc)
        return {name: struct.unpack_from(form, raw, at)[0]
                for name, (at, form) in self.fields.items()}

    def write(self, uc: unicorn.Uc, values: Mapping[str, int]) -> None:
        """Set fields by name.

        :raises struct.error: if a value does not fit.
        """
        context = uc.context_save()
        address = ctypes.cast(context.context, ctypes.c_void_p).value or 0
        for name, value in values.items():
            at, form = self.fields[name]
            raw = struct.pack(form, value)
            ctypes.memmove(address + at, raw, len(raw))
        uc.context_restore(context)


def context_bytes(uc: unicorn.Uc) -> bytes:
    """Return the CPU state of an engine as a context stores it."""
    context = uc.context_save()
    return ctypes.string_at(context.context, context.size)


def find_field(states: Sequence[bytes], values: Sequence[int], form: str, what: str) -> int:
    """Return the only byte offset at which every state holds its own value from ``values``.

    :param form: struct format of the values.
    :param what: description of the field for the error message.
    :raises MachineError: if there is no such offset, or more than one.
    """
    needles = [struct.pack(form, value) for value in values]
    places = []
    offset = states[0].find(needles[0])
    while offset >= 0:
        if all(s[offset : offset + len(n)] == n for s, n in zip(states, needles, strict=True)):
            places.append(offset)
        offset = states[0].find(needles[0], offset + 1)
    if len(places) != 1:
        raise MachineError(
            f"Unicorn {unicorn.__version__} is not supported: expected one offset in its "
            f"CPU state that holds {what}, found {len(places)}; use version 2.1.4"
        )
    return places[0]


def context_field(uc: unicorn.Uc, offset: int, form: str) -> int:
    """Return the field of an engine's state at an offset returned by ``find_field``."""
    context = uc.context_save()
    raw = ctypes.string_at(context.context, context.size)
    value: int = struct.unpack_from(form, raw, offset)[0]
    return value
