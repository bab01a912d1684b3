"""DTrace's own probes: BEGIN, END, ERROR, and the profile and tick timers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dtrace.d.compile.program import ListedProbe
from dtrace.d.language.options import UNITS
from kinst.providers.patterns import matches

MOST = 1 << 62  # maximum time between two firings in nanoseconds
LEAST = 200_000  # minimum time between two firings in nanoseconds
READY = ("profile-97", "profile-199", "profile-499", "profile-997", "profile-1999", "profile-4001",
         "profile-4999", "tick-1", "tick-10", "tick-100", "tick-500", "tick-1000", "tick-5000")
TIMER = re.compile(r"(tick|profile)-([0-9]{1,18})([a-zA-Z]*)")
GLOB = re.compile(r"[*?\[]")


def interval(name: str) -> int | None:
    """Return the interval in ns of a timer such as ``tick-10ms``, or None for other names."""
    match = TIMER.fullmatch(name)
    if match is None:
        return None
    count, unit = int(match[2]), match[3].lower()
    if not count:
        return None
    if unit in ("", "hz"):
        nanoseconds = 10**9 // count
    elif unit in UNITS:
        nanoseconds = count * UNITS[unit]
    else:
        return None
    return nanoseconds if LEAST <= nanoseconds <= MOST else None


@dataclass
class OwnProbes:
    """Probes that are available without a kernel."""

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
        """Return the probes that match a description; a timer is created on demand."""
        provider, module, function, name = parts
        if not module and not function and provider in ("", "profile") and interval(name) and all(
                probe.name != name for probe in self.probes):
            self._add("profile", name)
        return [probe for probe in self.probes
                if matches(provider, probe.provider) and matches(module, probe.module)
                and matches(function, probe.function) and matches(name, probe.name)]

    def provides(self, provider: str) -> bool:
        """Return whether a provider has probes."""
        return bool(self.match((provider, "", "", "")))

    def numbered(self, number: int) -> Sequence[ListedProbe]:
        """Return the probe with an ID, or nothing if there is no such probe."""
        return self.probes[number - 1 : number] if number > 0 else []
