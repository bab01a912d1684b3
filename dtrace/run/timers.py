"""The probes of DTrace's own: BEGIN, END, ERROR, and those that fire by the clock."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtrace.d.compile.program import ListedProbe
from dtrace.d.language.options import UNITS
from kinst.providers.patterns import matches

MOST = 1 << 62  # nanoseconds
LEAST = 200_000  # nanoseconds between two firings
READY = ("profile-97", "profile-199", "profile-499", "profile-997", "profile-1999", "profile-4001",
         "profile-4999", "tick-1", "tick-10", "tick-100", "tick-500", "tick-1000", "tick-5000")
TIMER = re.compile(r"(tick|profile)-([0-9]{1,18})([a-zA-Z]*)")
GLOB = re.compile(r"[*?\[]")


def interval(name: str) -> int | None:
    """Nanoseconds between the firings of ``tick-10ms`` and the like; None where it is none."""
    match = TIMER.fullmatch(name)
    if match is None:
        return None
    count, unit = int(match[2]), match[3].lower()
    if not count:
        return None
    if unit in ("", "hz"):
        found = 10**9 // count
    elif unit in UNITS:
        found = count * UNITS[unit]
    else:
        return None
    return found if LEAST <= found <= MOST else None


@dataclass
class OwnProbes:
    """The probes that need no kernel.

    :param first: the number of the next one that is made.
    """

    probes: list[ListedProbe] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("BEGIN", "END", "ERROR"):
            self._add("dtrace", name)
        for name in READY:
            self._add("profile", name)

    def _add(self, provider: str, name: str) -> ListedProbe:
        probe = ListedProbe(len(self.probes) + 1, provider, "", "", name)
        self.probes.append(probe)
        return probe

    def match(self, parts: tuple[str, str, str, str]) -> Sequence[ListedProbe]:
        """Those of a description; a timer is made when it is asked for."""
        provider, module, function, name = parts
        if not module and not function and provider in ("", "profile") and interval(name) and all(
                probe.name != name for probe in self.probes):
            self._add("profile", name)
        return [probe for probe in self.probes
                if matches(provider, probe.provider) and matches(module, probe.module)
                and matches(function, probe.function) and matches(name, probe.name)]

    def provides(self, provider: str) -> bool:
        return bool(self.match((provider, "", "", "")))

    def numbered(self, number: int) -> ListedProbe | None:
        return self.probes[number - 1] if 0 < number <= len(self.probes) else None
