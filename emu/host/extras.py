"""Optional packages: whether they are installed, and the command that installs them."""

import importlib.metadata
import importlib.util
import re
import shlex
import sys

from emu.host.errors import KinstError

DISTRIBUTION = "kinst-emu"
# Name of each extra in pyproject.toml -> the modules that it must provide
EXTRAS = {
    "assembler": ("keystone",), "cluster": ("distributed",), "perfetto": ("perfetto",),
    "plot": ("matplotlib",), "pictures": ("resvg_py", "PIL", "matplotlib"), "shell": ("IPython",),
}
OF_EXTRA = re.compile(r"([^;]+);.*\bextra\s*==\s*[\"']([^\"']+)[\"']")


def missing(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def command(extra: str) -> str:
    """Return the shell command that installs an extra's packages for the running Python.

    It names the packages, because kinst-emu itself may be installed from a clone or from a file.
    """
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    found = [match[1].strip() for line in lines
             if (match := OF_EXTRA.fullmatch(line)) is not None and match[2] == extra]
    python = shlex.quote(sys.executable)
    installer = (f"{python} -m pip install" if importlib.util.find_spec("pip") is not None
                 else f"uv pip install --python {python}")
    return " ".join([installer, *map(shlex.quote, found or EXTRAS[extra])])


def need(extra: str, what: str) -> None:
    """Check that an extra's packages are installed.

    :param what: the option or command that needs them, for the message.
    :raises KinstError: if one of them is missing; the message has the command that installs them.
    """
    if missing(extra):
        raise KinstError(f"{what} needs packages that are not installed; run: {command(extra)}")
