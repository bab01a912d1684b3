"""Tests of images.login: how a complete system's console is answered."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from emu.guests.freebsd.kernel import SESSION, SHELL_PROMPT, SINGLE_USER
from emu.machine.machine import ConsoleLog, Stop, StopReason, Until
from images.login import (
    IDLE,
    QUIET,
    ConsoleReader,
    LoginError,
    asks,
    at_session_prompt,
    log_in,
    run_to,
    shows,
)

READS, CONDITION, NAME, CONSOLE, OTHER = 0xFFFF_F000, 0x1000, 0x2000, 0x3000, 0x4000


@dataclass
class Scripted:
    """Machine that prints a prepared text in each run.

    :param script: (text, stop) for each run; None: the machine becomes idle; a string: the run ends
        at this console text.
    """

    script: list
    keys_left: bool = False
    typed: list = field(default_factory=list)
    untils: list = field(default_factory=list)
    handlers: dict = field(default_factory=dict)
    terminal: int = CONSOLE
    condition: str = "ttyin"

    def __post_init__(self):
        self.console = ConsoleLog()
        self.image = SimpleNamespace(path="kernel", symbols=SimpleNamespace(
            find=lambda name: SimpleNamespace(address=READS) if name == "tty_wait" else None))
        self.guest = SimpleNamespace(boot=SimpleNamespace(
            session=SESSION, prompts=("mountroot> ", SHELL_PROMPT, SINGLE_USER)))
        self.arch = SimpleNamespace(arguments=("a0", "a1", "a2"))

    def type(self, data):
        self.typed.append(data.decode())

    def handle(self, address, handler):
        self.handlers[address] = handler

    def read_register(self, name):
        return {"a0": self.terminal, "a1": CONDITION}[name]

    def read_u64(self, address):
        assert address == CONDITION
        return NAME

    def read_string(self, address, limit):
        assert address == NAME
        return self.condition.encode()

    def run(self, until):
        self.untils.append(until)
        text, stop = self.script.pop(0)
        self.console.text += text.encode()
        if stop is None:
            return Stop(StopReason.IDLE, 0)
        assert stop in until.console
        return Stop(StopReason.CONSOLE, 0, stop)


def machine_that_shows(text):
    machine = Scripted([])
    machine.console.text += text.encode()
    return machine


ROOT_SHELL = [("\r\nroot@:~ # ", None), ("exec /bin/sh\r\n# ", None), (SHELL_PROMPT, SHELL_PROMPT)]


@pytest.mark.parametrize("text, prompt, shown", [
    ("login: ", "login: ", True), ("login: random: unblocking device.\r\n", "login: ", True),
    (f"{SINGLE_USER}random: unblocking device.\r\n", SINGLE_USER, True),
    ("root@kinst:~ # lo0: link state changed\r\n", "# ", True), ("# ahd0: reset\r\n", "# ", True),
    ("/dev/vtbd0: clean, 65670 free (0 frags, 0.0% fragmentation)\r\n", "% ", False),
    ("Setting up # of things\r\n", "# ", False), ("Last login: Mon Dec 1\r\n", "login: ", False),
])
def test_a_prompt_may_be_followed_by_a_message_of_the_kernel(text, prompt, shown):
    assert shows(machine_that_shows(text), prompt) == shown


def test_root_logs_in_and_the_shell_is_set_up():
    machine = Scripted([("FreeBSD/amd64 (kinst) (ttyu0)\r\n\r\n", None), ("login: ", None),
                        *ROOT_SHELL])
    assert log_in(machine, None).detail == SHELL_PROMPT
    assert machine.typed[:2] == ["root\r", "exec /bin/sh\r"]
    assert "stty -echo" in machine.typed[2] and len(machine.typed) == 3


def test_a_message_of_the_kernel_after_a_prompt_does_not_hide_the_prompt():
    machine = Scripted([("login: random: unblocking device.\r\n", None), *ROOT_SHELL])
    assert log_in(machine, None).detail == SHELL_PROMPT
    assert machine.typed[0] == "root\r"


def test_single_user_mode_is_answered_with_return():
    machine = Scripted([(f"{SINGLE_USER}", None), *ROOT_SHELL])
    assert log_in(machine, None).detail == SHELL_PROMPT
    assert machine.typed[0] == "\r"


@pytest.mark.parametrize(("script", "message"), [
    ([("login: ", None), ("root\r\nPassword:", None)], "asks for root's password"),
    ([("login: ", None), ("Login incorrect\r\nlogin: ", None)], "asks for a login again"),
    ([("Starting devd.\r\n", None)] + [("", None)] * (IDLE // QUIET),
     "has been idle for 3600 virtual seconds.*the last console line is 'Starting devd.'"),
])
def test_a_system_without_a_way_to_a_root_shell_is_an_error_that_quotes_its_console(
        script, message):
    with pytest.raises(LoginError, match=message):
        log_in(Scripted(script), None)


def test_a_number_sign_before_an_unfinished_question_is_not_a_prompt():
    machine = machine_that_shows("Mounting disk # 3\r\nEnter passphrase for vtbd0: ")
    assert not at_session_prompt(machine) and asks(machine)
    assert not shows(machine_that_shows(""), "# ")


def test_output_starts_the_idle_time_anew():
    script = [("", None), ("", None), ("more", None)]
    machine = Scripted([*script, ("", None), ("", None)])
    assert run_to(machine, Until(), 3 * QUIET, lambda: False).reason is StopReason.IDLE
    assert [until.idle for until in machine.untils] == [QUIET] * 5


def test_a_run_ends_early_only_when_the_condition_is_known():
    machine, answers = Scripted([("", None)] * 3), [False, False, True]
    assert run_to(machine, Until(), IDLE, lambda: answers.pop(0)).reason is StopReason.IDLE
    assert not machine.script and not answers


def test_only_a_thread_that_waits_for_input_of_the_console_counts():
    machine = Scripted([])
    with ConsoleReader(machine) as reader:
        began = machine.handlers[READS]
        machine.keys_left = True
        began()  # the shell waits for the keys that were typed
        machine.keys_left = False
        for terminal, condition, counts in (
                (OTHER, "ttyin", False), (CONSOLE, "ttyout", False), (CONSOLE, "ttyin", True)):
            machine.terminal, machine.condition = terminal, condition
            began()
            assert reader.waits == counts
    assert machine.handlers[READS] is None
