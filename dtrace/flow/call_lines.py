"""Function calls as lines of text, each indented under its caller."""

from collections.abc import Callable, Mapping

INDENT = "  "


class CallLines:
    """Listener of a ``Walk`` that writes a line for each call and each marked instruction.

    :param show: called with each line.
    :param threads: names of threads, by address; some may be missing.
    :param marks: names of the marks, by number.
    """

    def __init__(self, show: Callable[[str], None], threads: Mapping[int, str],
                 marks: list[str]) -> None:
        self._show, self._threads, self._marks = show, threads, marks
        self._depth: dict[int, int] = {0: 0}
        self._shown = -1

    def _line(self, thread: int, position: int, text: str) -> None:
        if thread != self._shown:
            self._shown = thread
            self._show(f"-- thread {thread_name(thread, self._threads)}")
        self._show(f"{position:>12} {INDENT * self._depth.get(thread, 0)}{text}")

    def enter(self, thread: int, position: int, time: int, name: str, how: str,
              site: int | None) -> None:
        """Write the line of an entered function, and indent the lines that follow."""
        self._line(thread, position, name if how == "call" else f"{name} [{how}]")
        self._depth[thread] = self._depth.get(thread, 0) + 1

    def leave(self, thread: int, position: int, time: int) -> None:
        """End the indentation for the function that has ended."""
        self._depth[thread] -= 1

    def ran(self, thread: int, count: int) -> None:
        """Ignore the number of executed instructions."""
        return None

    def mark(self, thread: int, position: int, time: int, number: int) -> None:
        """Write the line for a marked instruction."""
        self._line(thread, position, f"* {self._marks[number]}")

    def named(self, thread: int) -> None:
        """Record the address of the thread that has been reported as thread 0 until now."""
        self._depth[thread] = self._depth.pop(0, 0)
        if self._shown == 0:
            self._shown = thread


def thread_name(thread: int, names: Mapping[int, str]) -> str:
    """Return a thread's address and name; thread 0 is "(boot)", because no thread exists yet."""
    name = names.get(thread, "")
    return "(boot)" if not thread else f"{thread:#x}" + (f" ({name})" if name else "")
