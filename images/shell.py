"""Run commands in a booted guest: in the kinst-emu shell, or in the root shell of a base system.

Commands are typed at the shell's prompt. The kinst-emu shell prints marks (OSC 133) around the
output of each command: ``C`` before it, ``D;STATUS`` after it. The root shell of a base system
prints only ``C``; a second command, typed after each command, makes it print ``D;STATUS``.
"""

import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from emu.arch.architectures import arch_of
from emu.devices.late_disk import CAPACITY
from emu.elf.boot_options import DiskImage, disk_image
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import ImageError, KinstError
from emu.host.printable import plain
from emu.machine.machine import Machine, Stop, StopReason, Until
from emu.machine.system_call import behind_call, calls_of
from images import catalog
from images.login import IDLE, ConsoleReader, quoted_last_line

MAX_COMMAND = 1000  # maximum size of a command in bytes; the shell's line buffer is slightly larger
BEGIN, END = b"\033]133;C\007", re.compile(rb"\033\]133;D;(\d{1,3})\007")
TEST_PROGRAM = "work"  # program of the kinst-emu userland
MOST_TO_PROGRAM = 50_000_000  # maximum number of instructions until ``work room`` calls getppid
NO_HEADER = "file not found"  # clang's message for a missing header
NO_FUNCTION = ("undeclared function", "undefined symbol")  # messages for a missing function
OUR_HEADER, OUR_START = b'"system.h"', re.compile(rb"\b_start\b")
# A root file system of at most MOST_SEARCHED bytes has the kinst-emu shell if it contains the first
# HEAD bytes of the shell's file.
SHELL_FILE, HEAD, MOST_SEARCHED = "shell", 40_000, 64 << 20
QUOTED = 4  # number of console lines quoted in an error message
MARKS = re.compile(rb"\033\]133;[A-DP](?:;(?:\d{1,3}|k=s))?\007")
NESTED = b"\033]133;A\007# \033]133;B\007"  # prompt of the kinst-emu shell, but not of a root shell
INTERRUPT = b"\003"  # Ctrl-C
MARK_SIZE = 16  # maximum size of a mark in bytes


class CommandError(KinstError):
    """Error raised if a command is invalid or does not end; ``stop`` says why the run ended."""

    def __init__(self, text: str, stop: Stop | None = None) -> None:
        super().__init__(text)
        self.stop = stop


@dataclass(frozen=True)
class Ran:
    """A command that has ended.

    :param output: its output on the console, including kernel messages.
    :param status: its exit status, or 128 plus the signal that ended it. None if the command
        powered the machine off.
    """

    output: bytes
    status: int | None


def with_userland(image: Image) -> Image:
    """Return a kernel image with a root file system: its own, or else the kinst-emu userland.

    :raises CommandError: the kernel cannot run programs.
    :raises ImageError: the kinst-emu userland was not built.
    """
    arch = arch_of(image).name
    if not guest_of(image, arch).boot.shell_prompt:
        raise CommandError(f"{image.path}: the teaching kernel cannot run programs; give a FreeBSD "
                           "kernel")
    if image.options.programs:
        return image
    disk = disk_image(catalog.userland(arch), in_memory=True)
    return replace(image, options=replace(image.options, memory_disk=disk))


def shown_output(show: Callable[[int], None], inside: bool = False) -> Callable[[int], None]:
    """Return a console listener that shows the output of commands without the shell's marks.

    :param inside: whether the next byte is output of a command, as after ``is_begun``.
    """
    held = bytearray()

    def heard(byte: int) -> None:
        nonlocal inside
        held.append(byte)
        if not inside:
            inside = held.endswith(BEGIN)
            if inside or len(held) > 2 * MAX_COMMAND:
                held.clear()
            return
        if held.startswith(b"\033"):
            if MARKS.fullmatch(held):
                inside = held == BEGIN
                held.clear()
                return
            if len(held) < MARK_SIZE and byte != 0x0A:
                return  # the held bytes may be the start of a mark
        for each in held:
            show(each)
        held.clear()

    return heard


def without_marks(show: Callable[[int], None]) -> Callable[[int], None]:
    """Return a console listener that shows everything except the kinst-emu shell's marks."""
    held = bytearray()

    def heard(byte: int) -> None:
        held.append(byte)
        if held[0] == 0x1B and len(held) < MARK_SIZE and byte != 0x0A:
            if MARKS.fullmatch(held):
                held.clear()
            return  # the held bytes may be the start of a mark
        for each in held:
            show(each)
        held.clear()

    return heard


def at_shell(machine: Machine) -> None:
    """Check that a machine is at the prompt of the kinst-emu shell or of a root shell.

    :raises CommandError: the machine is not at the prompt; the message quotes its console.
    """
    prompt, text = machine.guest.boot.shell_prompt, machine.console.text
    if prompt and (text.endswith(prompt.encode())
                   or (not text and machine.instructions and machine.image.options.programs)):
        return  # a recording starts at the prompt with an empty console
    lines = [bytes(line) for line in text.replace(b"\r", b"").split(b"\n") if line.strip()]
    unmounted = [n for n, line in enumerate(lines) if machine.guest.boot.unmounted
             and re.search(machine.guest.boot.unmounted, line)]
    if not unmounted:
        raise CommandError(f"{machine.image.path}: is not at a shell's prompt."
                           + _quoted(lines[-QUOTED:]))
    where, error = (word.decode() for word in re.findall(
        machine.guest.boot.unmounted, lines[unmounted[-1]])[0])
    symbols = machine.image.symbols
    missing = [option for option, symbol in machine.guest.boot.needs.items()
               if symbols.find(symbol) is None and not symbols.stripped]
    why = f"error {error}"
    if missing:
        why = f"it was built without {' and '.join(missing)}"
    elif int(error) in machine.guest.boot.no_file_system:
        why += ", it is not a file system that the kernel supports"
    raise CommandError(f"{machine.image.path}: the kernel cannot mount {where}: {why}."
                       + _quoted([lines[unmounted[-1]]]))


def _quoted(lines: list[bytes]) -> str:
    """Return the console's last lines as the end of an error message."""
    if not lines:
        return " Its console is empty"
    said = " / ".join(plain(line.decode("utf-8", "replace"))[:200] for line in lines)
    return f" Its console says: {said}"


def is_begun(machine: Machine) -> bool:
    """Return whether a shell that waits for a command has printed the mark ``C`` for its output.

    The root shell of a base system prints it as a part of its prompt, but later than the rest.
    """
    prompt, text = machine.guest.boot.shell_prompt.encode(), machine.console.text
    last = text.rfind(prompt) if prompt else -1
    return last >= 0 and BEGIN in text[last:]


def check_command(command: str) -> str:
    """Return the command unchanged if the kinst-emu shell can read it.

    :raises CommandError: the command is empty, too long or not printable.
    """
    if not command.strip() or not command.isprintable() or len(command.encode()) > MAX_COMMAND:
        raise CommandError(
            f"a command must be one line of at most {MAX_COMMAND} printable characters")
    return command


def run_command(machine: Machine, command: str, limit: int, idle: int = IDLE) -> Ran:
    """Run a command on a machine at a shell's prompt.

    :param limit: instructions after which the command is abandoned.
    :param idle: idle virtual time in ns after which the command is abandoned.
    :raises CommandError: the machine is not at the prompt, or the command is invalid or does not
        end. The machine stays where it stopped.
    """
    check_command(command)
    at_shell(machine)
    return give_command(machine, command, limit, idle)


def give_command(machine: Machine, command: str, limit: int, idle: int = IDLE) -> Ran:
    """Run a valid command on a machine that is known to be at a shell's prompt.

    :param limit: instructions after which the command is abandoned.
    :param idle: idle virtual time in ns after which the command is abandoned.
    :raises CommandError: the command does not end.
    """
    with ConsoleReader(machine) as reader:
        return _carried_out(machine, reader, command, limit, idle)


def _carried_out(machine: Machine, reader: ConsoleReader, command: str, limit: int,
                 idle: int) -> Ran:
    """Type a command and, if the shell does not print the exit status, a command that does."""
    begun, begin = BEGIN if is_begun(machine) else b"", len(machine.console.text)
    stop, text = _typed(machine, reader, command, limit, idle)
    text = begun + text
    output = text[text.find(BEGIN) + len(BEGIN) :] if BEGIN in text else b""
    if stop.reason is StopReason.POWER_OFF:
        return Ran(output, None)
    mark = END.search(output)
    if stop.reason is StopReason.CONSOLE and mark:
        return Ran(output[: mark.start()], int(mark[1]))
    if stop.reason is not StopReason.CONSOLE:
        raise CommandError(_not_ended(
            machine, reader, command, stop, limit, idle, begin), stop)
    session = machine.guest.boot.session
    if session is None or text.endswith(NESTED):
        raise CommandError(f"'{command[:60]}' did not end: it started a shell, which waits for a "
                           "command at its prompt", stop)
    if text.endswith(session.more.encode()):
        _keys(machine, reader, INTERRUPT, limit, idle)
        raise CommandError(f"'{command[:60]}': is not a complete command; close its quotes and "
                           "compound commands", stop)
    ended, status = _typed(machine, reader, session.status, limit, idle)
    mark = END.search(status)
    if ended.reason is not StopReason.CONSOLE or mark is None:
        raise CommandError(f"'{command[:60]}': its exit status is unknown: "
                           f"{quoted_last_line(machine)}", ended)
    return Ran(output.removesuffix(session.prompt.encode()), int(mark[1]))


def _typed(machine: Machine, reader: ConsoleReader, line: str, limit: int,
           idle: int) -> tuple[Stop, bytes]:
    """Type a line and run to the next prompt; return the stop and the console output."""
    return _keys(machine, reader, line.encode() + b"\r", limit, idle)


def _keys(machine: Machine, reader: ConsoleReader, keys: bytes, limit: int,
          idle: int) -> tuple[Stop, bytes]:
    """Type keys and run to the next prompt; return the stop and the console output."""
    boot = machine.guest.boot
    begin = len(machine.console.text)
    prompts = (boot.shell_prompt,) if boot.session is None else (
        boot.shell_prompt, boot.session.more)
    stop = reader.type(keys, prompts, limit, idle)
    return stop, bytes(machine.console.text[begin:])


def _not_ended(machine: Machine, reader: ConsoleReader, command: str, stop: Stop, limit: int,
               idle: int, begin: int) -> str:
    """Return the message for a command that did not end.

    :param begin: size of the console's text when the command was typed.
    """
    name = f"'{command[:60]}'"
    if stop.reason is StopReason.INSTRUCTIONS:
        return f"{name} has not ended after {limit:,} instructions; --limit sets another limit"
    if stop.reason is StopReason.IDLE:
        why = ("waits for input, but nothing is typed" if reader.waits
               else f"has been idle for {idle / 1e9:g} virtual seconds; --idle sets another limit")
        return f"{name} {why}; {quoted_last_line(machine, begin)}"
    return f"{name} did not end: {stop}"


def with_test_program(image: Image) -> Image:
    """Return an image with the program of ``at_system_call``; a base system gets it in ``/files``.

    :raises KinstError: the userland was not built, or the kernel cannot run programs.
    """
    if not image.options.disks or has_our_shell(image):
        return with_userland(image)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(catalog.userland(arch_of(image).name).with_name(TEST_PROGRAM), folder)
        return with_folder(image, Path(folder))


def at_system_call(machine: Machine) -> None:
    """Run a machine from a shell's prompt to just after a system call in a program.

    The program, ``work room``, has mapped pages below its stack pointer. In a base system, a file
    system in memory is mounted on /tmp first: a call that waits for a disk cannot be compared.

    :raises CommandError: the machine does not reach such a system call.
    """
    at_shell(machine)
    folder = ""
    if machine.image.options.files is not None:
        folder = "/files/"
        ran = run_command(machine, "mount -t tmpfs tmpfs /tmp", MOST_TO_PROGRAM)
        if ran.status:
            raise CommandError(f"{machine.image.path}: cannot mount a file system on /tmp: "
                               f"{plain(ran.output.decode('utf-8', 'replace').strip())}")
    machine.type(f"{folder}{TEST_PROGRAM} room 1000000\r".encode())
    limit = machine.instructions + MOST_TO_PROGRAM
    call = machine.symbol(f"{calls_of(machine).prefix}getppid")
    stop = machine.run(Until(addresses=[call.address], instructions=limit))
    while stop.reason in (StopReason.ADDRESS, StopReason.INSTRUCTIONS) and (
            machine.instructions < limit):
        if not machine.pc >> 63 and behind_call(machine):
            return
        stop = machine.run(Until(instructions=machine.instructions + 1))
    raise CommandError(f"{machine.image.path}: the test program made no system call: {stop}",
                       stop)


def with_folder(image: Image, folder: Path | None) -> Image:
    """Return an image with the files of a host directory in the guest's ``/files``.

    They become part of the kinst-emu userland; a system on a disk gets them on another disk, which
    is mounted after the boot.

    :param folder: the host directory; None returns the image unchanged.
    :raises KinstError: the files cannot be read, or do not fit.
    """
    if folder is None:
        return image
    if image.options.disks and has_our_shell(image):
        raise CommandError("files: the kinst-emu userland on a disk cannot mount a second disk; "
                           "leave out --disk, or put the files into the disk image")
    if image.options.disks or not has_our_shell(image):
        return replace(image, options=replace(image.options, files=_disk_of(folder)))
    disk = with_files(folder, arch_of(image).name)
    return replace(image, options=replace(image.options, memory_disk=disk))


def _disk_of(folder: Path) -> DiskImage:
    """Return a disk image with the files of a host directory.

    :raises KinstError: the files cannot be read, or do not fit.
    """
    from images.ufs import image, read_folder

    content = image(read_folder(folder), 0)
    if len(content) > CAPACITY:
        raise CommandError(f"{folder}: its files do not fit on a disk of {CAPACITY >> 20} MiB")
    return DiskImage(folder, memoryview(content))


def has_our_shell(image: Image) -> bool:
    """Return whether the root file system contains the current build of the kinst-emu shell."""
    options = image.options
    root = options.memory_disk or (options.disks[0] if options.disks else None)
    try:
        shell = catalog.userland(arch_of(image).name).with_name(SHELL_FILE).read_bytes()
    except (ImageError, OSError):
        return False
    # Files start at block boundaries, and their first HEAD bytes are contiguous.
    return root is not None and len(root.content) <= MOST_SEARCHED and (
        bytes(root.content[:]).find(shell[:HEAD]) >= 0)


def program_files(image: Image, folder: Path | None = None) -> dict[str, Path]:
    """Return the files that contain the symbols of userland programs, keyed by process name.

    Programs in ``folder``, which the guest sees as ``/files``, are included; programs of other
    userlands than that of kinst-emu are not.
    """
    from images.build_userland import PROGRAMS, SHELL, TOOLS

    files: dict[str, Path] = {}
    if has_our_shell(image):
        built = catalog.userland(arch_of(image).name)
        files = {name: built.with_name(f"{name if name in PROGRAMS else SHELL}.debug")
                 for name in ("init", *TOOLS, *PROGRAMS)}
    if folder is not None:
        files |= {path.name: path for path in folder.rglob("*") if path.is_file()}
    return files


def with_program(image: Image, source: Path, static: bool = False) -> Image:
    """Return an image with one compiled C program in ``/files``.

    :param static: as for ``compile_program``.
    :raises KinstError: the program cannot be read or compiled.
    """
    with tempfile.TemporaryDirectory() as folder:
        compile_program(image, source, Path(folder), static)
        return with_folder(image, Path(folder))


def compile_program(image: Image, source: Path, folder: Path, static: bool = False) -> None:
    """Compile one C file; write the program to a directory.

    A file that includes ``system.h`` or contains ``_start`` is compiled against the kinst-emu
    headers. Any other file is compiled against the base system that was fetched with the kernel,
    or, if there is none, against the kinst-emu headers and common C library functions.

    :param static: whether to link a program for a system on a disk statically, too.
    :raises KinstError: the file cannot be read or compiled.
    """
    from images.build_userland import WITH_LIBRARY, program, program_against

    if not source.is_file():
        raise CommandError(f"{source}: no such file (a command that ends in .c is compiled)")
    arch, output, system = arch_of(image).name, folder / source.stem, catalog.headers(image)
    text = source.read_bytes()
    ours = OUR_HEADER in text or OUR_START.search(text) is not None
    if system is not None and not ours:
        program_against(arch, source, output, system, static or not image.options.disks)
        return
    if image.options.disks and not ours:
        raise CommandError(f"{source}: cannot be compiled without the headers and libraries of a "
                           "base system; run: kinst images fetch RELEASE/ARCH --base")
    try:
        program(arch, source, output, more=() if ours else WITH_LIBRARY)
    except KinstError as error:
        if OUR_HEADER in text and any(phrase in str(error) for phrase in NO_FUNCTION):
            raise CommandError(f"{error}\n{source.name} includes system.h, which provides system "
                               "calls as CALL3(SYS_open, ...). Without this header, open(), "
                               "printf() and other C library functions are available.") from None
        if NO_HEADER in str(error) and system is None:
            raise CommandError(f"{error}\nThe program was compiled with the kinst-emu headers. To "
                               "get the headers of the base system, run: kinst images fetch "
                               "RELEASE/ARCH --base"
                               ) from None
        raise


def with_files(folder: Path, arch: str) -> DiskImage:
    """Return the root file system of the kinst-emu userland, with host files in ``/files``.

    :raises KinstError: the files cannot be read, or do not fit.
    """
    from images.build_userland import FREE, built, root
    from images.ufs import image, read_folder

    files = root(built(catalog.userland(arch).parent))
    files.entries["files"] = read_folder(folder)
    return DiskImage(folder, memoryview(image(files, FREE)))
