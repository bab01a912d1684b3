"""Probe descriptions as dtrace(1) writes them: ``provider:module:function:name``.

Leading parts may be left out; what is empty matches everything, and parts may be shell patterns.
"""

from dataclasses import dataclass

from emu.errors import KinstError
from kinst import fbt, provider
from kinst.breakpoints import Breakpoints, ProbeError
from kinst.functions import is_glob, matches

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


def create(breakpoints: Breakpoints, wanted: Description, unsafe: bool) -> list[int]:
    """Make the probes of a description.

    kinst makes its probes on demand: for the provider named in full, with a function.  The others
    are FBT's.

    :return: their numbers.
    :raises KinstError: dtrace's error line, naming what does not fit.
    """
    try:
        if not matches(wanted.module, MODULE):
            raise ProbeError(f"{wanted.text}: there is no module '{wanted.module}', only {MODULE}")
        if wanted.provider == provider.PROVIDER:
            if not wanted.function:
                raise ProbeError(f"{wanted.text}: kinst needs a function, like kinst::strlen:")
            return provider.create(breakpoints, wanted.function, wanted.name, unsafe)
        if matches(wanted.provider, fbt.PROVIDER):
            return fbt.create(breakpoints, wanted.function, wanted.name, unsafe)
        hint = "" if is_glob(wanted.provider) else ", only kinst and fbt"
        raise ProbeError(f"{wanted.text}: there is no provider '{wanted.provider}'{hint}")
    except ProbeError as error:
        raise KinstError(f"invalid probe specifier {error}") from None
