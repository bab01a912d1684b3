"""Commands given to our shell in a booted machine: typed at its prompt, their output found again by
the marks that the shell sets around it (OSC 133: ``C`` before it, ``D;STATUS`` behind it)."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from emu.arch.architectures import arch_of
from emu.elf.boot_options import DiskImage, disk_image
from emu.elf.image import Image
from emu.guests.registry import guest_of
from emu.host.errors import ImageError, KinstError
from emu.host.printable import plain
from emu.machine.machine import Machine, Stop, StopReason, Until
from emu.machine.system_call import behind_call, calls_of
from images import catalog

MAX_COMMAND = 1000  # characters; the shell takes no longer line
BEGIN, END = b"\033]133;C\007", re.compile(rb"\033\]133;D;(\d{1,3})\007")
MOST_TO_PROGRAM = 50_000_000  # instructions from the prompt into a program
NO_HEADER = "file not found"  # says clang
NO_FUNCTION = ("undeclared function", "undefined symbol")  # say clang and lld
OUR_HEADER, OUR_START = b'"system.h"', b"_start"
# What a file system with our shell is known by: so much of its program, in so large an image.
SHELL_FILE, HEAD, MOST_SEARCHED = "shell", 40_000, 64 << 20
QUOTED = 4  # lines of the console that a message quotes
MARKS = re.compile(rb"\033\]133;[A-D](?:;\d{1,3})?\007")
MARK_SIZE = 16  # bytes of a mark, at the most


class CommandError(KinstError):
    """A command cannot be given, or did not end; ``stop`` says why the machine stopped."""

    def __init__(self, text: str, stop: Stop | None = None) -> None:
        super().__init__(text)
        self.stop = stop


@dataclass(frozen=True)
class Ran:
    """A command that has ended.

    :param output: what it wrote to the console, and what the kernel said meanwhile.
    :param status: its exit status; 128 and the number of a signal that ended it.  None: it switched
        the machine off.
    """

    output: bytes
    status: int | None


def with_userland(image: Image) -> Image:
    """The kernel with a root file system, ours if it has none.

    :raises CommandError: for a kernel that runs no programs.
    :raises ImageError: when our userland was not built.
    """
    arch = arch_of(image).name
    if not guest_of(image, arch).boot.shell_prompt:
        raise CommandError(f"{image.path}: the teaching kernel runs no programs; give a FreeBSD "
                           "kernel")
    if image.options.programs:
        return image
    disk = disk_image(catalog.userland(arch), in_memory=True)
    return replace(image, options=replace(image.options, memory_disk=disk))


def shown_output(show: Callable[[int], None]) -> Callable[[int], None]:
    """For a console's stream: shows a command's output as it comes, without the marks around it."""
    held = bytearray()
    inside = False

    def heard(byte: int) -> None:
        nonlocal inside
        held.append(byte)
        if not inside:
            inside = held.endswith(BEGIN)
            if inside or len(held) > 2 * MAX_COMMAND:
                held.clear()
            return
        if held.startswith(b"\033"):
            if END.fullmatch(held):
                inside = False
                held.clear()
                return
            if len(held) < MARK_SIZE and byte != 0x0A:
                return  # it may become one
        for one in held:
            show(one)
        held.clear()

    return heard


def without_marks(show: Callable[[int], None]) -> Callable[[int], None]:
    """For a console's stream: shows everything but the marks of our shell."""
    held = bytearray()

    def heard(byte: int) -> None:
        held.append(byte)
        if held[0] == 0x1B and len(held) < MARK_SIZE and byte != 0x0A:
            if MARKS.fullmatch(held):
                held.clear()
            return  # it may become one
        for one in held:
            show(one)
        held.clear()

    return heard


def at_shell(machine: Machine) -> None:
    """:raises CommandError: when a machine is not at our shell's prompt."""
    prompt, text = machine.guest.boot.shell_prompt, machine.console.text
    if prompt and (text.endswith(prompt.encode())
                   or (not text and machine.instructions and has_our_shell(machine.image))):
        return  # a recording begins at the prompt, with nothing said
    lines = [bytes(line) for line in text.replace(b"\r", b"").split(b"\n") if line.strip()]
    found = [n for n, line in enumerate(lines) if machine.guest.boot.unmounted
             and re.search(machine.guest.boot.unmounted, line)]
    if not found:
        raise CommandError(f"{machine.image.path}: is not at our shell's prompt."
                           + _quoted(lines[-QUOTED:]))
    where, error = (word.decode() for word in re.findall(
        machine.guest.boot.unmounted, lines[found[-1]])[0])
    missing = [option for option, symbol in machine.guest.boot.needs.items()
               if machine.image.symbols.find(symbol) is None]
    why = f"error {error}"
    if missing:
        why = f"it was built without {' and '.join(missing)}"
    elif int(error) in machine.guest.boot.no_file_system:
        why += ", it is no image of a file system that it knows"
    raise CommandError(f"{machine.image.path}: the kernel cannot mount {where}: {why}."
                       + _quoted([lines[found[-1]]]))


def _quoted(lines: list[bytes]) -> str:
    """The console's last lines as the end of a message."""
    if not lines:
        return " Its console is empty"
    said = " / ".join(plain(line.decode("utf-8", "replace"))[:200] for line in lines)
    return f" Its console says: {said}"


def check_command(command: str) -> str:
    """:raises CommandError: when it is no line."""
    if not command.strip() or not command.isprintable() or len(command.encode()) > MAX_COMMAND:
        raise CommandError(f"a command is a line of at most {MAX_COMMAND} printable characters")
    return command


def run_command(machine: Machine, command: str, limit: int) -> Ran:
    """Run a command of a machine at our shell's prompt.

    :param limit: instructions after which it is given up.
    :raises CommandError: when it is no line, or does not end; the machine stands where it stopped.
    """
    check_command(command)
    at_shell(machine)
    return give_command(machine, command, limit)


def give_command(machine: Machine, command: str, limit: int) -> Ran:
    """The same, of a machine that is known to be there."""
    prompt = machine.guest.boot.shell_prompt
    begin = len(machine.console.text)
    machine.type(command.encode() + b"\r")
    stop = machine.run(Until(console=prompt, instructions=machine.instructions + limit))
    if stop.reason is StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    text = bytes(machine.console.text[begin:])
    output = text[text.find(BEGIN) + len(BEGIN) :] if BEGIN in text else b""
    if stop.reason is StopReason.POWER_OFF:
        return Ran(output, None)
    found = END.search(output)
    if stop.reason is StopReason.CONSOLE and found:
        return Ran(output[: found.start()], int(found[1]))
    if stop.reason is StopReason.INSTRUCTIONS:
        raise CommandError(f"'{command[:60]}' has not ended after {limit:,} instructions; "
                           "--limit sets another limit", stop)
    if stop.reason is StopReason.CONSOLE:
        raise CommandError(f"'{command[:60]}' did not end: a shell in it is at its prompt and "
                           "waits for a command", stop)
    raise CommandError(f"'{command[:60]}' did not end: {stop}", stop)


def at_system_call(machine: Machine) -> None:
    """A machine at our shell's prompt goes on into a program of its own, right behind a call of the
    kernel, with room below its stack.

    :raises CommandError: when it does not come there.
    """
    at_shell(machine)
    machine.type(b"work room 1000000\r")
    limit = machine.instructions + MOST_TO_PROGRAM
    call = machine.symbol(f"{calls_of(machine).prefix}getppid")
    stop = machine.run(Until(addresses=[call.address], instructions=limit))
    while stop.reason in (StopReason.ADDRESS, StopReason.INSTRUCTIONS) and (
            machine.instructions < limit):
        if not machine.pc >> 63 and behind_call(machine):
            return
        stop = machine.run(Until(instructions=machine.instructions + 1))
    raise CommandError(f"{machine.image.path}: does not come to a program: {stop}", stop)


def with_folder(image: Image, folder: Path | None) -> Image:
    """An image with our userland, with the files of a folder of the host; None: as it is.

    :raises KinstError: when they cannot be read, or do not fit.
    """
    if folder is None:
        return image
    disk = with_files(folder, arch_of(image).name)
    return replace(image, options=replace(image.options, memory_disk=disk, disks=()))


def has_our_shell(image: Image) -> bool:
    """Whether the root file system has our shell in it, as it is built here."""
    options = image.options
    root = options.memory_disk or (options.disks[0] if options.disks else None)
    try:
        shell = catalog.userland(arch_of(image).name).with_name(SHELL_FILE).read_bytes()
    except (ImageError, OSError):
        return False
    # A file begins where a block does, and its blocks lie behind each other as far as these go.
    return root is not None and len(root.content) <= MOST_SEARCHED and (
        bytes(root.content[:]).find(shell[:HEAD]) >= 0)


def program_files(image: Image, folder: Path | None = None) -> dict[str, Path]:
    """The files with the symbols of our userland's programs, by the processes' names; and those of
    a folder that is in /files.  Nothing of another root file system.
    """
    from images.build_userland import PROGRAMS, SHELL, TOOLS

    try:
        built = catalog.userland(arch_of(image).name)
    except ImageError:
        return {}
    if folder is None and not has_our_shell(image):
        return {}
    found = {name: built.with_name(f"{name if name in PROGRAMS else SHELL}.debug")
             for name in ("init", *TOOLS, *PROGRAMS)}
    if folder is not None:
        found |= {path.name: path for path in folder.rglob("*") if path.is_file()}
    return found


def with_program(image: Image, source: Path) -> Image:
    """An image with our userland, and a program of one C file in /files.

    :raises KinstError: when it cannot be read or compiled.
    """
    with tempfile.TemporaryDirectory() as folder:
        compile_program(image, source, Path(folder))
        return with_folder(image, Path(folder))


def compile_program(image: Image, source: Path, folder: Path) -> None:
    """Compile one C file into a folder: against the base system that was fetched with the kernel,
    or, without one, or where it names it, with our headers.  A file that does not name our header
    has the usual names of a C library in them.

    :raises KinstError: when it cannot be read or compiled.
    """
    from images.build_userland import WITH_LIBRARY, program, program_against

    if not source.is_file():
        raise CommandError(f"{source}: no such file; a command that ends in .c is compiled")
    arch, output, system = arch_of(image).name, folder / source.stem, catalog.headers(image)
    text = source.read_bytes()
    own = OUR_HEADER in text or OUR_START in text
    if system is not None and not own:
        program_against(arch, source, output, system)
        return
    try:
        program(arch, source, output, more=() if own else WITH_LIBRARY)
    except KinstError as error:
        if OUR_HEADER in text and any(said in str(error) for said in NO_FUNCTION):
            raise CommandError(f"{error}\n{source.name} includes system.h, which has system calls "
                               "as CALL3(SYS_open, ...). Leave it out, and open(), printf() and "
                               "other usual names are there.") from None
        if NO_HEADER in str(error) and system is None:
            raise CommandError(f"{error}\nIt was compiled with our headers alone; a base system's "
                               "come by: kinst images fetch RELEASE/ARCH --base") from None
        raise


def with_files(folder: Path, arch: str) -> DiskImage:
    """Our userland's root file system with a folder's files in it, in /files.

    :raises KinstError: when they cannot be read, or do not fit.
    """
    from images.build_userland import FREE, built, root
    from images.ufs import image, read_folder

    files = root(built(catalog.userland(arch).parent))
    files.entries["files"] = read_folder(folder)
    return DiskImage(folder, memoryview(image(files, FREE)))
