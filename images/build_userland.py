"""Builds our userland for the three architectures, with clang and lld: a root file system with the
shell, which is the first program and all of its tools, and a few others."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from emu.arch.parts import NAMES
from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from images import catalog, ufs
from images.catalog import TEACHING
from images.compiler import linked, linked_against, target
from images.ufs import File, Folder

SOURCE = Path(__file__).resolve().parent / "userland"
LIBRARY = SOURCE / "libc"  # headers with the usual names of a C library
WITH_LIBRARY = ("-include", str(LIBRARY / "libc.h"))
FLAGS = (
    "-std=gnu17", "-O2", "-gdwarf-4", "-ffreestanding", "-nostdlibinc", "-fno-builtin",
    "-fno-pic", "-fno-pie", "-fno-stack-protector", "-fno-omit-frame-pointer",
    "-fno-asynchronous-unwind-tables", "-Wall", "-Wextra",
    "-fdebug-prefix-map={source}=.", "-fdebug-compilation-dir=.",
)
TOOLS = ("cat", "echo", "false", "kill", "ls", "mkdir", "mount", "rm", "rmdir", "sh", "sleep",
         "sync", "true", "wc")
# A file of C each: the first program; what checks each facility from inside; work to be timed.
SHELL = "shell"
PROGRAMS = (SHELL, "check", "work")
FREE = 4 << 20  # bytes that are left for what programs write
EXECUTABLE = 0o100755
OURS = ("-Werror",)  # for sources of ours alone


def program(arch: str, source: Path, output: Path, options: Sequence[str] = (),
            more: Sequence[str] = ()) -> None:
    """Compile and link one program; the file appears whole or not at all.

    :param options: more of the linker's; and ``more`` of the compiler's.
    :raises KinstError: when a tool is missing or fails.
    """
    made_for = target(SOURCE, arch)
    flags = [*(flag.format(source=SOURCE) for flag in FLAGS), f"--target={made_for.triple}",
             *made_for.flags, *more, f"-I{SOURCE}", f"-I{SOURCE / arch}", f"-I{LIBRARY}"]
    linked(output, [source], flags, options)


def program_against(arch: str, source: Path, output: Path, system: Path) -> None:
    """The same, against a system's headers and libraries.

    :raises KinstError: when a tool is missing or fails.
    """
    linked_against(output, source, system, target(SOURCE, arch))


def root(programs: Mapping[str, bytes]) -> Folder:
    """The files of the root file system; devices are the kernel's own file system.  The tools are
    files of their own: a process is named for the file, not for a link to it.

    :param programs: those of ``PROGRAMS``, by name.
    """
    shell = programs[SHELL]
    files: dict[str, File | Folder] = {
        "sbin/init": File(shell, EXECUTABLE), "dev": Folder(), "tmp": Folder(mode=0o041777),
        "etc/motd": File(b"A userland of a few hundred lines.\n"),
    }
    files |= {f"bin/{name}": File(shell, EXECUTABLE) for name in TOOLS}
    return ufs.tree(files | {f"bin/{name}": File(programs[name], EXECUTABLE)
                             for name in PROGRAMS if name != SHELL})


def built(directory: Path) -> dict[str, bytes]:
    """The programs that ``build`` has left in an architecture's folder.

    :raises OSError: when one is not there.
    """
    return {name: (directory / name).read_bytes() for name in PROGRAMS}


def build(arch: str, target_directory: Path = TEACHING) -> Path:
    """Build the programs and pack them.

    :raises KinstError: when a tool is missing or fails.
    """
    directory = target_directory / arch
    for name in PROGRAMS:
        source = SOURCE / f"{name}.c"
        program(arch, source, directory / name, ["--strip-all"], OURS)
        program(arch, source, directory / f"{name}.debug", more=OURS)
    packed = directory / catalog.ROOT_FILE
    with replacing(packed) as file:
        file.write(ufs.image(root(built(directory)), FREE))
    return packed


def main() -> None:
    """``python -m images.build_userland``: build all three."""
    try:
        for arch in NAMES:
            print(f"userland/{arch}: {build(arch)}")
    except KinstError as error:
        sys.exit(f"images: {error}")


if __name__ == "__main__":
    main()
