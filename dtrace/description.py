"""Probe descriptions as dtrace(1) writes them: ``provider:module:function:name``.

Leading parts may be left out; what is empty matches everything, and parts may be shell patterns.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dwarf.index import DebugIndex
from emu.errors import KinstError
from kinst import fbt, inline, provider
from kinst.functions import is_glob, matches
from kinst.probe_table import ProbeError, ProbeTable

MODULE = "kernel"
FIELDS = ("provider", "module", "function", "name")


@dataclass(frozen=True)
class Description:
    """:param text: as it was written, for messages."""

    text: str
    provider: str = ""
    module: str = ""
    function: str = ""
    name: str = ""


def parse(text: str, last: str = "name") -> Description:
    """A description whose last part is ``last``: dtrace's -P, -m, -f and -n.

    :raises KinstError: when it is none.
    """
    if "{" in text or "/" in text:
        raise KinstError(
            f"invalid probe specifier {text}: predicates and actions are not supported yet; give "
            "the probe alone"
        )
    known = FIELDS[: FIELDS.index(last) + 1]
    parts = text.strip().split(":")
    if not text.strip() or len(parts) > len(known):
        raise KinstError(
            f"invalid probe specifier {text}: give {':'.join(known)}, like kinst::strlen:4 or "
            "fbt::malloc:entry"
        )
    found = dict(zip(known[len(known) - len(parts) :], parts, strict=True))
    return Description(text, **found)


@dataclass(frozen=True)
class Made:
    """:param numbers: of the probes a description stands for.
    :param text: what it was rewritten to, as dtrace -d prints it.
    :param reports: what of it cannot be probed.
    """

    numbers: list[int]
    text: list[str]
    reports: list[str]


def create(
    breakpoints: ProbeTable, wanted: Description, unsafe: bool,
    index: Callable[[], DebugIndex] | None = None,
) -> Made:
    """Make the probes of a description.

    :param index: gives the debug data, for the ends of inline copies.

    kinst makes its probes on demand: for the provider named in full, with a function.  The others
    are FBT's.

    :raises KinstError: dtrace's error line, naming what does not fit.
    """
    try:
        if not matches(wanted.module, MODULE):
            raise ProbeError(f"{wanted.text}: there is no module '{wanted.module}', only {MODULE}")
        if wanted.provider == provider.PROVIDER:
            if not wanted.function:
                raise ProbeError(f"{wanted.text}: kinst needs a function, like kinst::strlen:")
            if wanted.name in inline.NAMES and not is_glob(wanted.function) and index is not None:
                found = inline.create(breakpoints, index(), wanted.function, wanted.name, unsafe)
                return Made(found.numbers, found.text, found.reports)
            return Made(provider.create(breakpoints, wanted.function, wanted.name, unsafe),
                        [wanted.text], [])
        if matches(wanted.provider, fbt.PROVIDER):
            return Made(fbt.create(breakpoints, wanted.function, wanted.name, unsafe),
                        [wanted.text], [])
        hint = "" if is_glob(wanted.provider) else ", only kinst and fbt"
        raise ProbeError(f"{wanted.text}: there is no provider '{wanted.provider}'{hint}")
    except ProbeError as error:
        raise KinstError(f"invalid probe specifier {error}") from None
