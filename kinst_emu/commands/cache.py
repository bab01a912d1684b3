"""``kinst cache``: show or clear the cache of booted kernels and debug data indexes."""

import argparse
import contextlib
import json
from pathlib import Path

from emu.host.atomic_file import PART
from emu.host.errors import KinstError
from images.cache import cache_directory

KINDS = {"snapshots": ".kinst", "dwarf": ".index"}

EXAMPLES = (
    "kinst cache",
    "kinst cache clear",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst cache``."""
    parser.add_argument("--json", action="store_true",
                        help="print the list as JSON (default: text)")
    parser.add_argument("action", nargs="?", choices=["clear"], metavar="clear",
                        help="remove all cached files (default: list them)")


def run(arguments: argparse.Namespace) -> int:
    """List or remove the cached files, and return the exit status."""
    directory = cache_directory()
    sizes: dict[Path, int] = {}
    try:
        for path in _files(directory):
            with contextlib.suppress(FileNotFoundError):  # another process may have removed a file
                sizes[path] = path.stat().st_size
                if arguments.action == "clear":
                    path.unlink()
    except OSError as error:
        raise KinstError(f"{error.filename}: {error.strerror}") from None
    total = sum(sizes.values())
    if arguments.json:
        print(json.dumps({
            "directory": str(directory), "bytes": total, "cleared": arguments.action == "clear",
            "files": [{"path": str(path), "bytes": size} for path, size in sizes.items()],
        }))
        return 0
    what = f"{len(sizes)} files, {total / (1 << 20):.1f} MiB"
    if arguments.action == "clear":
        print(f"{directory}: removed {what}")
        return 0
    for path, size in sizes.items():
        print(f"{size / (1 << 20):>8.1f} MiB  {path.relative_to(directory)}")
    print(f"{directory}: {what}; 'kinst cache clear' removes them; KINST_CACHE sets another "
          "directory")
    return 0


def _files(directory: Path) -> list[Path]:
    """Return the cached files; other files in the cache directory are not included."""
    return [path for kind, suffix in KINDS.items() if (directory / kind).is_dir()
            for path in sorted((directory / kind).iterdir())
            if path.is_file() and path.suffix in (suffix, PART)]
