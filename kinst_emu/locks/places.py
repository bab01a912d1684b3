"""Places at which locks are acquired and released, as text."""

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.flow.code import KernelCode
from dwarf.debug_file import debug_file
from kinst.providers.patterns import matches


class LockPlaces:
    """Finder of the code that uses a lock, outside the functions that implement locks.

    :param patterns: patterns for the names of those functions.
    """

    def __init__(self, code: KernelCode, patterns: tuple[str, ...]) -> None:
        self._code, self._patterns = code, patterns
        self._sources = Sources(code.image)
        self._index = debug_index(code.image) if debug_file(code.image.file) is not None else None
        self._names: dict[str, bool] = {}
        self._known: dict[int, bool] = {}
        self._texts: dict[tuple[int, ...], str] = {}

    def is_locking(self, address: int) -> bool:
        """Return whether the function at an address implements locks."""
        return self._matches(self._code.place(address)[0])

    def has_lock_code(self, address: int) -> bool:
        """Return whether an instruction belongs to such a function, which may be inlined."""
        if address not in self._known:
            name, _start, inline = self._code.place(address)
            self._known[address] = self._matches(name) or any(
                self._matches(copy.name) for copy in inline)
        return self._known[address]

    def _matches(self, name: str) -> bool:
        if name not in self._names:
            self._names[name] = any(matches(pattern, name) for pattern in self._patterns)
        return self._names[name]

    def text(self, where: tuple[int, ...]) -> str:
        """Return the function and ``file:line`` that use a lock.

        :param where: address of the instruction and of the calls around it, innermost first.
        """
        if where not in self._texts:
            site = next((at for at in where if not self.is_locking(at)), where[0] if where else 0)
            self._texts[where] = self._at(site) if where else ""
        return self._texts[where]

    def _at(self, address: int) -> str:
        name, start, inline = self._code.place(address)
        if self._index is None:
            return self._code.image.symbols.where(address)
        line = (self._sources.near(start, address) if self._code.image.holds_code(address)
                else self._sources.line(address))
        for copy in reversed(inline):
            if not self._matches(copy.name):
                return f"{copy.name} {line}"
            line = self._sources.call(self._index, copy) if copy.call_line else "?"
        return f"{name} {line}"
