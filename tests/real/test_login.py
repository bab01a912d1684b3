"""Tests of logging in on the console of a system that has no shell of ours.

A small init takes the place of getty(8), login(1) and sh(1): it prints their prompts, reads from
the terminal as they do, and understands the few commands that the tests and ``images.login`` type.
"""

from dataclasses import replace

import pytest

from emu.machine.machine import StopReason
from emu.replay.starts import STATE
from emu.unicorn.machine import UnicornMachine
from images import catalog
from images.boots import BootError, boot_to_shell, booted
from images.shell import CommandError, give_command, run_command, with_program, with_userland
from kinst_emu.api.record_run import recorded
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import run

LIMIT = 2_000_000_000
INIT = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

static int marks, status;
static const char *prompt = "root@:~ # ";

/* Read a line of the terminal; return -1 if a signal interrupted the read. */
static int
line_of(char *line, int size)
{
	int at = 0;

	while (at + 1 < size) {
		long n = read(0, line + at, 1);
		if (n < 0)
			return -1;
		if (n == 0 || line[at] == '\n')
			break;
		at++;
	}
	line[at] = '\0';
	return at;
}

static void
say(const char *text)
{
	write(1, text, strlen(text));
}

static void
interrupted(int number, struct siginfo *info, void *context)
{
	(void)number, (void)info, (void)context;
}

static void
no_echo(void)
{
	unsigned termios[11];

	if (CALL3(SYS_ioctl, 0, 0x402c7413, termios) == 0) { /* TIOCGETA */
		termios[3] &= ~8u; /* ECHO */
		CALL3(SYS_ioctl, 0, 0x802c7414, termios); /* TIOCSETA */
	}
}

static void
carry_out(const char *line)
{
	char answer[100];

	if (strncmp(line, "printf", 6) == 0) {
		printf("\033]133;D;%d\007", status);
		return;
	}
	status = 0;
	if (strncmp(line, "echo ", 5) == 0)
		printf("%s\n", line + 5);
	else if (strcmp(line, "false") == 0)
		status = 1;
	else if (strcmp(line, "nap") == 0) {
		sleep(100);
		say("awake\n");
	} else if (strcmp(line, "ask") == 0) {
		say("Really? ");
		line_of(answer, sizeof(answer));
		printf("<%s>\n", answer);
	} else if (line[0] == '\'') {
		say("\033]133;P;k=s\007");
		status = line_of(answer, sizeof(answer)) < 0 ? 130 : 2;
	} else if (line[0] != '\0')
		status = 127;
}

int
main(void)
{
	static char line[1200];
	struct sigaction action = { interrupted, 0, { { 0 } } };
	int file = open("/dev/console", O_RDWR);

	dup2(file, 0);
	dup2(file, 1);
	dup2(file, 2);
	CALL0(SYS_setsid);
	CALL3(SYS_ioctl, 0, 0x20007461, 0); /* TIOCSCTTY */
	CALL3(SYS_sigaction, SIGINT, &action, NULL); /* so that Ctrl-C ends a read */
	say("\r\nFreeBSD/test (kinst) (ttyu0)\r\n\r\n");
	do {
		say("login: ");
		line_of(line, sizeof(line));
	} while (strcmp(line, "USER") != 0);
	if (PASSWORD) {
		say("Password:");
		line_of(line, sizeof(line));
	}
	for (;;) {
		say(prompt);
		if (line_of(line, sizeof(line)) < 0)
			continue;
		if (strcmp(line, "exec /bin/sh") == 0)
			prompt = "# ";
		else if (strncmp(line, "set +o", 6) == 0) {
			prompt = "\033]133;B\007\033]133;C\007";
			no_echo();
		} else
			carry_out(line);
	}
}
"""


def system(arch, folder, user="root", password=False):
    """Return a kernel whose first program is the stand-in for a system.

    :param user: the only user who can log in.
    :param password: whether the system asks for a password.
    """
    source = folder / "first.c"
    source.write_text(INIT.replace("USER", user).replace("PASSWORD", str(int(password))))
    with pytest.MonkeyPatch.context() as patch:  # a fetched base system must not be used
        patch.setattr(catalog, "headers", lambda _image: None)
        image = with_program(with_userland(real_kernel(arch)), source)
    return replace(image, options=replace(image.options,
                                          environment=("init_path=/files/first",)))


@pytest.fixture(params=ARCHES, scope="module")
def machine(request, tmp_path_factory):
    machine = booted(system(request.param, tmp_path_factory.mktemp("system")))
    return machine, machine.snapshot()


def at_start(machine):
    machine, start = machine
    machine.restore(start)
    return machine


def test_commands_run_in_a_system_that_asks_for_a_login(machine):
    machine = at_start(machine)
    ran = run_command(machine, "echo hello", LIMIT)
    assert (ran.output, ran.status) == (b"hello\r\n", 0)
    ran = run_command(machine, "false", LIMIT)
    assert (ran.output, ran.status) == (b"", 1)
    ran = run_command(machine, "nothing", LIMIT)
    assert (ran.output, ran.status) == (b"", 127)


def test_two_boots_to_the_root_shell_end_in_the_same_state(machine):
    machine = at_start(machine)
    other = UnicornMachine(machine.image, machine.memory)
    other.boot()
    assert boot_to_shell(other).detail == machine.guest.boot.shell_prompt
    assert other.digest() == machine.digest()


def test_a_command_that_waits_for_input_ends_with_the_last_console_line(machine):
    machine = at_start(machine)
    with pytest.raises(CommandError, match=r"'ask' waits for input, but nothing is typed; the last "
                       r"console line is 'Really\?") as caught:
        run_command(machine, "ask", LIMIT)
    assert caught.value.stop.reason is StopReason.IDLE
    assert machine.instructions < LIMIT


def test_a_sleeping_command_is_not_taken_for_one_that_waits_for_input(machine):
    machine = at_start(machine)
    # The kernel may print a message of its own meanwhile.
    assert run_command(machine, "nap", LIMIT).output.endswith(b"awake\r\n")
    with pytest.raises(CommandError, match="has been idle for 50 virtual seconds"):
        run_command(machine, "nap", LIMIT, 50 * 10**9)


def test_an_incomplete_command_is_interrupted_and_the_shell_can_be_used_again(machine):
    machine = at_start(machine)
    with pytest.raises(CommandError, match="is not a complete command"):
        give_command(machine, "'", LIMIT)
    assert run_command(machine, "echo again", LIMIT).output == b"again\r\n"


@pytest.mark.parametrize(("user", "password", "says"), [
    ("root", True, "asks for root's password"), ("nobody", False, "asks for a login again")])
def test_a_system_that_root_cannot_enter_is_an_error(tmp_path, user, password, says):
    with pytest.raises(BootError, match=says) as caught:
        booted(system("amd64", tmp_path, user, password))
    assert b"login: " in caught.value.console


def test_boot_types_keys_at_texts_and_ends_at_a_prompt(tmp_path):
    source = tmp_path / "first.c"
    source.write_text(INIT.replace("USER", "guest").replace("PASSWORD", "1"))
    words = ("--env", "init_path=/files/first", "--at", "login: ", "--type", r"guest\r",
             "--at", "Password:", "--type", r"x\r")
    disk = tmp_path / "disk.ufs"
    with pytest.MonkeyPatch.context() as patch:  # a fetched base system must not be used
        patch.setattr(catalog, "headers", lambda _image: None)
        disk.write_bytes(bytes(with_program(with_userland(real_kernel("amd64")), source)
                               .options.memory_disk.content[:]))
    kernel = str(real_kernel("amd64").path)
    done = run("kinst", "boot", "-k", kernel, "--disk", str(disk), *words)
    assert done.returncode == 0 and done.stdout.count("root@:~ # ") == 1, done.stderr
    done = run("kinst", "boot", "-k", kernel, "--disk", str(disk), *words[:6])
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "the guest waits for more keys; the last console line is 'Password:'" in done.stderr
    saved = tmp_path / "saved"
    done = run("kinst", "boot", "-k", kernel, "--disk", str(disk), *words, "--save", str(saved))
    assert done.returncode == 0, done.stderr
    done = run("kinst", "boot", "-k", kernel, "--disk", str(disk), "--env",
               "init_path=/files/first", "--restore", str(saved), "--type", r"echo hi\r")
    assert done.returncode == 0 and "hi" in done.stdout, done.stderr


def test_root_logs_in_on_a_machine_with_two_cpus(tmp_path):
    image = system("amd64", tmp_path)
    image = replace(image, options=replace(image.options, cpus=2))
    assert run_command(booted(image), "echo two", LIMIT).output.endswith(b"two\r\n")


def test_a_recorded_run_is_idle_for_as_long_as_an_unrecorded_one(machine, tmp_path):
    machine = at_start(machine)
    ends = []
    for path in (None, tmp_path / "file.rec"):
        machine = at_start((machine, ends[0][1])) if ends else machine
        start = machine.snapshot()
        with recorded(machine, path, STATE, "nap"), pytest.raises(
                CommandError, match="has been idle for 50 virtual seconds"):
            run_command(machine, "nap", LIMIT, 50 * 10**9)
        ends.append((machine.instructions, start))
    assert ends[0][0] == ends[1][0]
