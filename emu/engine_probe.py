"""Finds fields of Unicorn's CPU state that its interface does not name.

A saved context is a copy of the CPU state.  A scratch engine is made to take exceptions with
chosen values; where they turn up in its context is where every engine of that CPU model keeps
them.  Nothing is assumed about the layout, and a place that is not unique is refused.
"""

import ctypes
import struct
from collections.abc import Sequence

import unicorn

from emu.errors import MachineError


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
