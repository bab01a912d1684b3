"""Log in to a complete system on its console, and wait for its prompts."""

import re
from collections.abc import Callable

from emu.guest.guest import ConsoleSession
from emu.host.errors import KinstError, MemoryAccessError
from emu.host.printable import plain
from emu.machine.machine import Machine, Stop, StopReason, Until

IDLE = 3600 * 10**9  # default limit of idle virtual time in ns
QUIET = 10 * 10**9  # idle virtual time in ns after which the console is searched for a prompt
MOST_QUOTED = 200  # maximum number of characters of a console line in a message
PLACE = r"(?:\S{1,80} )?"  # pattern of what a shell's prompt shows before its last characters
TAIL = 4096  # number of bytes at the end of the console that are searched for lines
ESCAPES = re.compile(rb"\033(?:\[[0-9;?]*[ -/]*[@-~]|\][^\007]{0,100}\007|[78=>])")


class LoginError(KinstError):
    """A system did not reach its root shell; ``stop`` is the reason why the machine stopped."""

    def __init__(self, text: str, stop: Stop) -> None:
        super().__init__(text)
        self.stop = stop


def console_lines(machine: Machine, begin: int = 0) -> list[str]:
    """Return the last lines on the console, without escape sequences.

    :param begin: number of bytes at the beginning of the console's text to leave out.
    """
    begin = max(begin, len(machine.console.text) - TAIL, 0)
    text = ESCAPES.sub(b"", bytes(machine.console.text[begin:])).replace(b"\r", b"\n")
    return [plain(line) for line in text.decode("utf-8", "replace").split("\n")]


def quoted_last_line(machine: Machine, begin: int = 0) -> str:
    """Return the last line on the console that is not empty, quoted for a message.

    :param begin: number of bytes at the beginning of the console's text to leave out.
    """
    lines = [line.strip() for line in console_lines(machine, begin) if line.strip()]
    if not lines:
        return "it has printed nothing" if begin else "its console is empty"
    return f"the last console line is '{lines[-1][:MOST_QUOTED]}'"


def shows(machine: Machine, prompt: str) -> bool:
    """Return whether a prompt is the end of the console.

    A message of the kernel may follow the prompt on the same line.
    """
    lines = console_lines(machine)
    if lines[-1]:
        return lines[-1].endswith(prompt)
    finished = [line for line in lines if line]
    place = "" if prompt[0].isalpha() else PLACE
    return bool(finished) and re.match(place + re.escape(prompt), finished[-1]) is not None


def at_session_prompt(machine: Machine) -> bool:
    """Return whether the console ends with a prompt of a login program or a user's shell."""
    session = machine.guest.boot.session
    return session is not None and any(shows(machine, prompt) for prompt in session.prompts)


def asks(machine: Machine) -> bool:
    """Return whether the console ends with an unfinished line that looks like a question."""
    return console_lines(machine)[-1].rstrip().endswith((":", "?", ">"))


def run_to(machine: Machine, until: Until, idle: int, known: Callable[[], bool]) -> Stop:
    """Run until a condition holds, or the guest is idle.

    The run ends with ``StopReason.IDLE`` if the guest has been idle for a short time and ``known``
    returns True, or if the guest has been idle for too long.

    :param until: the other conditions.
    :param idle: limit of idle virtual time in ns, counted from the last console output.
    """
    idled = 0
    while True:
        step, length = min(QUIET, idle - idled), len(machine.console.text)
        stop = machine.run(Until(until.addresses, until.console, until.instructions, idle=step))
        if stop.reason is not StopReason.IDLE:
            return stop
        idled = step + (idled if len(machine.console.text) == length else 0)
        if idled >= idle or known():
            return stop


class ConsoleReader:
    """Recognizes when a program waits for typed input on the console.

    The handler that this context manager installs sees every thread that begins to wait for input
    of a terminal. The first one after keys were typed reads the console.

    :ivar waits: whether a thread has begun to wait for input of the console and no keys are left;
        the thread then waits until keys are typed.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine, self._session = machine, machine.guest.boot.session
        symbol = (None if self._session is None
                  else machine.image.symbols.find(self._session.reads))
        self._address = None if symbol is None else symbol.address
        self._console: int | None = None  # address of the console's terminal structure
        self.waits = False

    def __enter__(self) -> "ConsoleReader":
        if self._address is not None:
            self._machine.handle(self._address, self._began)
        return self

    def __exit__(self, *_: object) -> None:
        if self._address is not None:
            self._machine.handle(self._address, None)

    def type(self, keys: bytes, prompts: tuple[str, ...], limit: int, idle: int) -> Stop:
        """Type keys; run until a prompt is printed or the guest is idle, as ``run_to`` has it.

        :param limit: maximum number of instructions.
        :param idle: limit of idle virtual time in ns.
        :raises KeyboardInterrupt: the run was interrupted.
        """
        machine = self._machine
        self.waits = False
        machine.type(keys)
        until = Until(console=prompts, instructions=machine.instructions + limit)
        stop = run_to(machine, until, idle, lambda: self.waits)
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        return stop

    def _began(self) -> None:
        machine, session = self._machine, self._session
        assert session is not None
        terminal, condition = (machine.read_register(name) for name in machine.arch.arguments[:2])
        try:
            name = machine.read_string(machine.read_u64(condition), 64)
        except MemoryAccessError:
            return
        if name != session.input.encode():
            return
        if machine.keys_left:
            self._console = self._console or terminal
        elif self._console in (None, terminal):
            self.waits = True


def log_in(machine: Machine, limit: int | None, idle: int = IDLE) -> Stop:
    """Run a booting machine to its prompt; log in as root if the system asks for a login.

    :param limit: instruction count at which the run ends, or None.
    :return: a stop at a prompt of the kernel, or at that of a shell which prints OSC 133 marks.
    :raises LoginError: there is no way to a root shell.
    """
    boot = machine.guest.boot
    session = boot.session
    assert session is not None
    texts = tuple(text for text in boot.prompts if text not in dict(session.answers))
    until, answers = Until(console=texts, instructions=limit), list(session.answers)
    ends = (session.locked, *(end for end, _keys in session.answers))
    while True:
        stop = run_to(machine, until, idle, lambda: any(shows(machine, end) for end in ends))
        if stop.reason is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        if stop.reason is not StopReason.IDLE:
            return stop
        found = next((pair for pair in answers if shows(machine, pair[0])), None)
        if found is None:
            raise LoginError(f"{machine.image.path}: {_unanswered(machine, session, idle)}; "
                             f"{quoted_last_line(machine)}", stop)
        answers.remove(found)
        machine.type(found[1].encode())


def _unanswered(machine: Machine, session: ConsoleSession, idle: int) -> str:
    """Return why a system that waits cannot be logged in to."""
    if shows(machine, session.locked):
        return "the system asks for root's password; remove the password, or use --single"
    if any(shows(machine, end) for end, _keys in session.answers):
        return ("the system asks for a login again, so root cannot log in on this terminal; use "
                "--single")
    return (f"the system did not ask for a login and has been idle for {idle / 1e9:g} virtual "
            "seconds; look at its console with kinst boot")
