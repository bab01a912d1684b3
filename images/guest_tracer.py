"""A base system's own dtrace(1): what it prints for a program, and which probes it lists.

Starting dtrace(1) takes hundreds of millions of instructions.  For the first program, the machine
is stopped when the tracer waits for it; each program with the same options begins from that state.
"""

import re
import shlex
from dataclasses import dataclass

from emu.elf.image import Image
from emu.host.errors import KinstError
from emu.host.printable import plain
from emu.machine.machine import Stop, StopReason
from emu.unicorn.mark import StateMark
from images.boots import LIMIT, booted
from images.login import ConsoleReader, quoted_last_line
from images.shell import run_command

STATUS = re.compile(rb"\033\]133;D;(\d+)\007")
DONE = re.compile(r" ?\[\d+\] [+-]? ?(?:Done|Exit).*")  # what a shell says of a background command
END_OF_FILE = b"\004"
PROGRAM_LIMIT = 3_000_000_000  # maximum number of instructions for one program
LIST_LIMIT = 100_000_000_000  # maximum number of instructions for one list of probes
IDLE = 60 * 10**9  # idle virtual time in ns after which a program is abandoned
STARTED = 10**9  # idle virtual time in ns after which dtrace(1) waits for its program
READING = 10**8  # idle virtual time in ns after which all typed keys were read
TRACES = "tracing has begun"  # what a program in the background prints first
CHUNK = 1000  # number of bytes that are typed at once; the terminal's queue must hold them


class TracerError(KinstError):
    """The base system's dtrace(1) cannot be used, or a program cannot be typed."""


@dataclass(frozen=True)
class Judged:
    """What came of one program: the fields are those of ``dtrace.judge.outcome.Outcome``."""

    status: int | None
    output: str
    errors: str


class GuestTracer:
    """The base system's dtrace(1), with its modules loaded.

    :param memory: guest RAM in bytes.
    :raises KinstError: the system does not boot, or has no dtrace(1).
    """

    def __init__(self, image: Image, memory: int) -> None:
        self.machine = booted(image, memory)
        session = self.machine.guest.boot.session
        if session is None or not session.tracing:
            raise TracerError(f"{image.path}: needs a base system with dtrace(1); give --base")
        self._session = session
        ran = run_command(self.machine, session.tracing, LIMIT)
        if ran.status:
            raise TracerError(f"{image.path}: the system cannot load its tracing modules: "
                              f"'{session.tracing}' ends with status {ran.status}")
        self._ready = self.machine.mark()  # the shell waits for a command
        self._waiting: dict[tuple[str, str], StateMark] = {}  # dtrace(1) waits for a program

    def run(self, program: str, options: str = "", before: str = "",
            limit: int = PROGRAM_LIMIT) -> Judged:
        """Run a program from the state in which dtrace(1) waits for it.

        :param options: further options for dtrace(1).
        :param before: command that starts something in the background first, or "".
        :param limit: maximum number of instructions.
        :raises TracerError: the program cannot be typed, or dtrace(1) does not start.
        """
        key = options, before
        if key not in self._waiting:
            self.machine.back_to(self._ready)
            self._start(f"{before}{'; ' * bool(before)}"
                        + self._session.judge.replace("{}", options))
            self._waiting[key] = self.machine.mark()
        self.machine.back_to(self._waiting[key])
        return self._typed(program, limit)

    def listed(self, program: str, options: str) -> str:
        """Return the probes of a program's descriptions, as ``ConsoleSession.listing`` prints them.

        :param options: ``-l`` or ``-lv``.
        :raises TracerError: the program cannot be typed, or the list is empty or has no end.
        """
        self.machine.back_to(self._ready)
        self._start(self._session.listing.replace("{}", options))
        judged = self._typed(program, LIST_LIMIT)
        if judged.status is None:
            raise TracerError(f"dtrace(1) does not end its list of probes: {judged.errors.strip()}")
        lines = judged.output.splitlines()
        if not any(line[:1] == " " for line in lines):
            said = next((line[1:] for line in lines if line[:1] == "!"), "")
            raise TracerError(f"dtrace(1) lists no probes: {said or judged.errors.strip()}")
        return judged.output

    def keep(self, program: str) -> None:
        """Store a program in the guest; afterwards, the shell waits for a command.

        :raises TracerError: the program cannot be typed.
        """
        self.machine.back_to(self._ready)
        self._start(self._session.program)
        self._type(program, PROGRAM_LIMIT)

    def trace(self, program: str) -> None:
        """Start to trace in the background; afterwards, the shell waits for a command.

        :raises TracerError: the program cannot be typed, or dtrace(1) ends at once; the message
            has what it printed.
        """
        self.keep(f'{program}\nBEGIN {{ printf("\\n{TRACES}\\n"); }}\n')
        ran = run_command(self.machine, self._session.trace.replace("{}", TRACES), LIMIT)
        if ran.status:
            raise TracerError(said(ran.output))

    def with_target(self, command: str) -> str:
        """Return the shell command that traces another one with the stored program."""
        return self._session.target.replace("{}", shlex.quote(command))

    def _start(self, command: str) -> None:
        """Type a command that waits for a program."""
        with ConsoleReader(self.machine) as reader:
            stop = reader.type(f"{command}\r".encode(), (), PROGRAM_LIMIT, STARTED)
            if self.machine.console.text.endswith(self._session.more.encode()):
                raise TracerError(f"the command '{command[:80]}' is incomplete: a quotation mark "
                                  "or a parenthesis is missing")
            if stop.reason is not StopReason.IDLE or not reader.waits:
                raise TracerError(f"{self.machine.image.path}: dtrace(1) does not start in the "
                                  f"base system; {quoted_last_line(self.machine)}")

    def _type(self, program: str, limit: int) -> Stop:
        """Type a program and an end of file, and run the machine until the shell's prompt."""
        refused = next((c for c in program if not (c.isascii() and (c.isprintable() or c in "\n\t"))
                        ), None)
        if refused is not None:
            raise TracerError(f"a program with the character {refused!r} cannot be typed")
        prompts = (self.machine.guest.boot.shell_prompt,)
        with ConsoleReader(self.machine) as reader:
            for part in _parts(program):
                stop = reader.type(part, prompts, limit, READING)
                if stop.reason is not StopReason.IDLE:
                    return stop
            return reader.type(END_OF_FILE, prompts, limit, IDLE)

    def _typed(self, program: str, limit: int) -> Judged:
        """Type a program, run the machine until the shell's prompt, and return the outcome."""
        machine = self.machine
        begin = len(machine.console.text)
        stop = self._type(program, limit)
        text = re.sub(self._session.noise, b"", bytes(machine.console.text[begin:]))
        marks = list(STATUS.finditer(text))  # the program may print such a mark, too
        mark = marks[-1] if marks else None
        if stop.reason is not StopReason.CONSOLE or mark is None:
            return Judged(None, text.decode("utf-8", "backslashreplace"), f"{stop}\n")
        output = text[: mark.start()]
        prompt = machine.guest.boot.shell_prompt.encode()
        errors, _escape, _prompt = text[mark.end() :].partition(prompt)
        return Judged(int(mark[1]), output.decode("utf-8", "backslashreplace"),
                      errors.decode("utf-8", "backslashreplace"))


def said(output: bytes) -> str:
    """Return what dtrace(1) printed before it ended, in one line."""
    text = plain(" ".join(output.decode("utf-8", "replace").split()))
    return DONE.sub("", text) or "dtrace(1) has ended"


def _parts(program: str) -> list[bytes]:
    """Split a program into whole lines of up to ``CHUNK`` bytes together."""
    parts = [b""]
    for line in program.splitlines():
        text = line.encode() + b"\n"
        if parts[-1] and len(parts[-1]) + len(text) > CHUNK:
            parts.append(b"")
        parts[-1] += text
    return parts
