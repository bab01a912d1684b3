"""A base system's own dtrace(1), stopped just before it reads its program.

Starting dtrace(1) takes hundreds of millions of instructions.  The machine is stopped when the
tracer waits for its program, and each program begins from that state.
"""

import re
from dataclasses import dataclass

from emu.elf.image import Image
from emu.host.errors import KinstError
from emu.machine.machine import StopReason
from images.boots import LIMIT, booted
from images.login import ConsoleReader, quoted_last_line
from images.shell import run_command

STATUS = re.compile(rb"\033\]133;D;(\d+)\007")
END_OF_FILE = b"\004"
PROGRAM_LIMIT = 3_000_000_000  # maximum number of instructions for one program
IDLE = 60 * 10**9  # idle virtual time in ns after which a program is abandoned
READING = 10**8  # idle virtual time in ns after which all typed keys were read
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
    """The base system's dtrace(1), waiting for a program.

    :param memory: guest RAM in bytes.
    :raises KinstError: the system does not boot, or has no dtrace(1).
    """

    def __init__(self, image: Image, memory: int) -> None:
        self.machine = booted(image, memory)
        session = self.machine.guest.boot.session
        if session is None or not session.tracing:
            raise TracerError(f"{image.path}: needs a base system with dtrace(1); give --base")
        ran = run_command(self.machine, session.tracing, LIMIT)
        if ran.status:
            raise TracerError(f"{image.path}: the system cannot load its tracing modules: "
                              f"'{session.tracing}' ends with status {ran.status}")
        with ConsoleReader(self.machine) as reader:
            stop = reader.type(f"{session.judge}\r".encode(), (), PROGRAM_LIMIT, IDLE)
            if stop.reason is not StopReason.IDLE or not reader.waits:
                raise TracerError(f"{image.path}: dtrace(1) does not start in the base system; "
                                  f"{quoted_last_line(self.machine)}")
        self._waiting = self.machine.mark()

    def run(self, program: str) -> Judged:
        """Run a program from the state in which dtrace(1) waits for it.

        :raises TracerError: the program cannot be typed.
        """
        refused = next((c for c in program if not (c.isascii() and (c.isprintable() or c in "\n\t"))
                        ), None)
        if refused is not None:
            raise TracerError(f"a program with the character {refused!r} cannot be typed")
        machine = self.machine
        machine.back_to(self._waiting)
        prompts = (machine.guest.boot.shell_prompt,)
        begin = len(machine.console.text)
        with ConsoleReader(machine) as reader:
            for part in _parts(program):
                stop = reader.type(part, prompts, PROGRAM_LIMIT, READING)
                if stop.reason is not StopReason.IDLE:
                    break
            else:
                stop = reader.type(END_OF_FILE, prompts, PROGRAM_LIMIT, IDLE)
        text = bytes(machine.console.text[begin:])
        marks = list(STATUS.finditer(text))  # the program may print such a mark, too
        mark = marks[-1] if marks else None
        if stop.reason is not StopReason.CONSOLE or mark is None:
            return Judged(None, text.decode("utf-8", "backslashreplace"), f"{stop}\n")
        output = text[: mark.start()]
        errors, _escape, _prompt = text[mark.end() :].partition(prompts[0].encode())
        return Judged(int(mark[1]), output.decode("utf-8", "backslashreplace"),
                      errors.decode("utf-8", "backslashreplace"))


def _parts(program: str) -> list[bytes]:
    """Split a program into whole lines of up to ``CHUNK`` bytes together."""
    parts = [b""]
    for line in program.splitlines():
        text = line.encode() + b"\n"
        if parts[-1] and len(parts[-1]) + len(text) > CHUNK:
            parts.append(b"")
        parts[-1] += text
    return parts
