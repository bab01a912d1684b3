"""What a trace prints: as dtrace(1) does, or one JSON object a line."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dtrace.description import arguments
from dtrace.prototypes import plain, result_line
from dwarf.types import Type, declare
from dwarf.values import Memory
from emu.symbols import KERNEL
from kinst.probe_table import Probe
from kinst_emu.json_lines import JsonLines
from kinst_emu.terminal import end_line, show_byte

HEADER = f"{'CPU':>3} {'ID':>6} {'FUNCTION:NAME':>32}"
LISTING = f"{'ID':>5} {'PROVIDER':>10} {'MODULE':>17} {'FUNCTION':>33} NAME"


class TraceOutput(ABC):
    """:param quiet: nothing of firings but what actions print."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    @abstractmethod
    def begin(self) -> None:
        """The trace begins."""

    @abstractmethod
    def firing(self, probe: Probe, instructions: int | None = None,
               registers: Sequence[int] = (), lines: Sequence[str] = (), time: int = 0) -> None:
        """A probe has fired.

        :param instructions: that the guest had executed; None where it does not count.
        :param registers: as they were recorded: its provider knows what arguments they are.
        :param lines: what its actions print.
        :param time: virtual nanoseconds.
        """

    @abstractmethod
    def byte(self, byte: int) -> None:
        """The guest has written to its console."""

    @abstractmethod
    def end_line(self) -> None:
        """End a line of the console that was begun."""

    @abstractmethod
    def failure(self, error: str, stack: Sequence[str]) -> None:
        """The workload has failed there; the error is also said on standard error."""

    @abstractmethod
    def rewritten(self, text: Sequence[str]) -> None:
        """What a description was rewritten to."""

    @abstractmethod
    def result(self, memory: Memory, call: str, kind: Type | None, bits: int) -> None:
        """What the workload's last call gave."""

    @abstractmethod
    def digest(self, digest: str) -> None:
        """Of the machine at the end."""

    @abstractmethod
    def listing(self) -> None:
        """A list of probes begins."""

    @abstractmethod
    def listed(self, number: int, provider: str, module: str, function: str, name: str) -> None:
        """A probe of the list."""

    @abstractmethod
    def left_out(self, where: str, instruction: str, reason: str, module: str = KERNEL) -> None:
        """What is not probed, and why; ``instruction`` is empty for a function."""


class Text(TraceOutput):
    """As dtrace(1) prints it."""

    def begin(self) -> None:
        if not self.quiet:
            print(HEADER)

    def firing(self, probe: Probe, instructions: int | None = None,
               registers: Sequence[int] = (), lines: Sequence[str] = (), time: int = 0) -> None:
        if self.quiet and not lines:
            return
        if not self.quiet:
            print(f"{0:>3} {probe.id:>6} {f'{probe.function}:{probe.name}':>32} ")
        if lines:
            print("\n".join(lines) + "\n")

    def byte(self, byte: int) -> None:
        show_byte(byte)

    def end_line(self) -> None:
        end_line()

    def failure(self, error: str, stack: Sequence[str]) -> None:
        print("".join(f"{line}\n" for line in stack), end="")

    def rewritten(self, text: Sequence[str]) -> None:
        print(",\n".join(text) + "\n{\n}\n")

    def result(self, memory: Memory, call: str, kind: Type | None, bits: int) -> None:
        print(result_line(call, memory, kind, bits))

    def digest(self, digest: str) -> None:
        print(f"digest {digest}")

    def listing(self) -> None:
        print(LISTING)

    def listed(self, number: int, provider: str, module: str, function: str, name: str) -> None:
        print(f"{number:>5} {provider:>10} {module:>17} {function:>33} {name}")

    def left_out(self, where: str, instruction: str, reason: str, module: str = KERNEL) -> None:
        what = f"{where} ({instruction}): {reason}" if instruction else (
            f"{where}: the function {reason}")
        print(f"not probed: kinst:{module}:{what}")


class Json(TraceOutput):
    """One object a line, for programs."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(quiet)
        self._lines = JsonLines()

    def begin(self) -> None:
        pass

    def firing(self, probe: Probe, instructions: int | None = None,
               registers: Sequence[int] = (), lines: Sequence[str] = (), time: int = 0) -> None:
        if self.quiet and not lines:
            return
        row: dict[str, object] = {"probe": f"{probe.provider}:{probe.module}:{probe.function}:"
                                           f"{probe.name}", "id": probe.id}
        if instructions is not None:
            row["instructions"] = instructions
        if registers and (given := arguments(probe, registers)):
            row["arguments"] = list(given)
        if lines:
            row["lines"] = [line.strip() for line in lines]
        self._lines.row(row)

    def byte(self, byte: int) -> None:
        self._lines.byte(byte)

    def end_line(self) -> None:
        self._lines.end_line()

    def failure(self, error: str, stack: Sequence[str]) -> None:
        self._lines.row({"error": error, "stack": [line.strip() for line in stack]})

    def rewritten(self, text: Sequence[str]) -> None:
        self._lines.row({"rewritten": list(text)})

    def result(self, memory: Memory, call: str, kind: Type | None, bits: int) -> None:
        row: dict[str, object] = {"call": call, "value": plain(memory, kind, bits)}
        if kind is not None:
            row["type"] = declare(kind)
        self._lines.row(row)

    def digest(self, digest: str) -> None:
        self._lines.row({"digest": digest})

    def listing(self) -> None:
        pass

    def listed(self, number: int, provider: str, module: str, function: str, name: str) -> None:
        self._lines.row({"id": number, "provider": provider, "module": module,
                         "function": function, "name": name})

    def left_out(self, where: str, instruction: str, reason: str, module: str = KERNEL) -> None:
        function, _, offset = where.partition(":")
        self._lines.row({"not_probed": function, "offset": int(offset) if offset else None,
                          "instruction": instruction or None, "reason": reason})
