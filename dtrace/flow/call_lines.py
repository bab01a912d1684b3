"""Calls as lines of text, as they happen: each function indented under its caller."""

from collections.abc import Callable, Mapping

INDENT = "  "


class CallLines:
    """A listener of a ``Walk``.

    :param show: is given each line.
    :param threads: names of threads, as far as they are known.
    :param marks: names of the marks.
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
        self._line(thread, position, name if how == "call" else f"{name} [{how}]")
        self._depth[thread] = self._depth.get(thread, 0) + 1

    def leave(self, thread: int, position: int, time: int) -> None:
        self._depth[thread] -= 1

    def ran(self, thread: int, count: int) -> None:
        return None

    def mark(self, thread: int, position: int, time: int, number: int) -> None:
        self._line(thread, position, f"* {self._marks[number]}")

    def named(self, thread: int) -> None:
        self._depth[thread] = self._depth.pop(0, 0)
        if self._shown == 0:
            self._shown = thread


def thread_name(thread: int, names: Mapping[int, str]) -> str:
    name = names.get(thread, "")
    return "(boot)" if not thread else f"{thread:#x}" + (f" ({name})" if name else "")
