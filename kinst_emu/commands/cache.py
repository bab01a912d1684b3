"""``kinst cache``: show or clear the cache."""

import argparse
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from emu.host.atomic_file import PART
from emu.host.errors import KinstError
from images.cache import cache_directory

BLOCK = 512  # unit in bytes of st_blocks (stat(2)); files with RAM have holes
STATES = "states"  # kind of the files that cannot be made again
KINDS = {"snapshots": ".kinst", "dwarf": ".index", STATES: ".state", "digests": ".sha256",
         "ram": ".ram"}

EXAMPLES = (
    "kinst cache",
    "kinst cache clear",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst cache``."""
    parser.add_argument("--json", action="store_true",
                        help="print the list as JSON (default: text)")
    parser.add_argument("action", nargs="?", choices=["clear"], metavar="clear",
                        help="remove the cached files, except the states that recordings refer "
                        "to (default: list all files)")
    parser.add_argument("--states", action="store_true",
                        help="with clear: remove these states, too; recordings that refer to them "
                        "can then no longer be replayed (default: keep the states)")


def run(arguments: argparse.Namespace) -> int:
    """List or remove the cached files, and return the exit status."""
    directory, clear = cache_directory(), arguments.action == "clear"
    if arguments.states and not clear:
        raise KinstError("--states: works only with clear")
    kinds = [kind for kind in KINDS if not clear or kind != STATES or arguments.states]
    sizes: dict[Path, int] = {}
    try:
        for path in _files(directory, kinds):
            with contextlib.suppress(FileNotFoundError):  # another process may have removed a file
                sizes[path] = path.stat().st_blocks * BLOCK
                if clear:
                    path.unlink()
    except OSError as error:
        raise KinstError(f"{error.filename}: {error.strerror}") from None
    total = sum(sizes.values())
    if arguments.json:
        print(json.dumps({
            "directory": str(directory), "bytes": total, "cleared": clear,
            "files": [{"path": str(path), "bytes": size} for path, size in sizes.items()],
        }))
        return 0
    what = f"{len(sizes)} files, {total / (1 << 20):.1f} MiB"
    if clear:
        kept = "" if arguments.states else "; states are kept, --states removes them, too"
        print(f"{directory}: removed {what}{kept}")
        return 0
    for path, size in sizes.items():
        print(f"{size / (1 << 20):>8.1f} MiB  {path.relative_to(directory)}")
    print(f"{directory}: {what}; 'kinst cache clear' removes them, except states; "
          "KINST_CACHE sets another directory")
    return 0


def _files(directory: Path, kinds: Sequence[str]) -> list[Path]:
    """Return the cached files of some kinds; other files in the directory are not included."""
    return [path for kind in kinds if (directory / kind).is_dir()
            for path in sorted((directory / kind).iterdir())
            if path.is_file() and path.suffix in (KINDS[kind], PART)]
