"""Read D programs from a command line and from files, and run the C preprocessor for -C."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from dtrace.d.language.attributes import VERSION
from dtrace.d.language.options import Options
from emu.arch.arch import Arch
from emu.host.errors import KinstError

MAX_SCRIPT = 1 << 22  # maximum size of a script, in bytes
RELEASE = 15  # __FreeBSD__ without a kernel, or for a kernel that is not FreeBSD
TIMEOUT = 60  # maximum run time of the preprocessor, in seconds


def source_of(letter: str, text: str, options: Options, preprocess: Sequence[str], arch: Arch,
              release: int) -> str:
    """Return the source text of a program, preprocessed when -C is given for a file.

    :param letter: letter of the program's option; after ``-s``, ``text`` is a file name.
    :param text: the program, or a file name, or ``-`` for standard input.
    :param preprocess: preprocessor arguments from the command line.
    :param arch: architecture whose macros the preprocessor defines.
    :param release: value of ``__FreeBSD__``.
    :raises KinstError: when the file cannot be read or preprocessed.
    """
    if letter != "s":
        return text
    source = _read(text)
    if options.given("cpp"):
        source = _preprocessed(source, text, options, preprocess, arch, release)
    return source


def _read(path: str) -> str:
    try:
        if path == "-":
            if sys.stdin is None:
                raise KinstError("-s -: standard input is closed")
            content = sys.stdin.buffer.read(MAX_SCRIPT + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_SCRIPT + 1)
    except OSError as error:
        raise KinstError(f"failed to open {path}: {error.strerror}") from None
    if len(content) > MAX_SCRIPT:
        raise KinstError(f"failed to compile script {path}: it is larger than {MAX_SCRIPT} bytes")
    text = content.decode("utf-8", "surrogateescape")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _preprocessed(source: str, path: str, options: Options, preprocess: Sequence[str], arch: Arch,
                  release: int) -> str:
    failed = f"failed to compile script {path}: Preprocessor failed to process input program"
    tool = options.text("cpppath") or shutil.which("cpp")
    if tool is None:
        raise KinstError(f"failed to compile script {path}: Preprocessor not found")
    if source.startswith("#!"):
        source = "\n" + source.partition("\n")[2]
    defines = [f"-{'D' if what == 'define' else 'U' if what == 'undef' else 'I'}{value}"
               for what, value in options.defines]
    version = VERSION.split(".")
    number = int(version[0]) << 24 | int(version[1]) << 12
    command = [tool, "-P", "-undef", "-nostdinc", "-D__sun", "-D__unix", "-D__SVR4", "-D__SUNW_D=1",
               f"-D__FreeBSD__={release}", *(f"-D{macro}" for macro in arch.macros),
               f"-D__SUNW_D_VERSION={number:#010x}", f"-I{os.path.dirname(path) or '.'}",
               *defines, *preprocess, "-"]
    try:
        made = subprocess.run(command, input=source, capture_output=True, text=True,
                              errors="surrogateescape", timeout=TIMEOUT, check=False)
    except OSError:
        raise KinstError(f"failed to compile script {path}: Failed to exec preprocessor") from None
    except subprocess.TimeoutExpired:
        raise KinstError(failed) from None
    sys.stderr.write(made.stderr)
    if made.returncode:
        raise KinstError(failed)
    return made.stdout
