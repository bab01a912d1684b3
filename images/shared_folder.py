"""The files of a host folder that the network's peer offers to the guest."""

import os
from pathlib import Path

from emu.elf.boot_options import MAX_NAME, MAX_SHARED, SharedFile
from emu.host.errors import KinstError
from emu.host.input_file import taken

MAX_SIZE = 256 << 20  # maximum size of all files together in bytes


def shared_files(folder: Path) -> tuple[SharedFile, ...]:
    """Return copies of the regular files below a folder, sorted by name.

    Symbolic links and empty files are left out: links may lead out of the folder.

    :raises KinstError: if the folder or a file cannot be read, or there are too many.
    """
    if not folder.is_dir():
        raise KinstError(f"{folder}: is not a folder; --net peer:FOLDER serves the files of a "
                         "folder")
    paths: list[Path] = []
    for directory, _directories, names in os.walk(folder):
        paths += [path for name in names if not (path := Path(directory, name)).is_symlink()
                  and path.is_file() and path.stat().st_size]
        if len(paths) > MAX_SHARED:
            raise KinstError(f"{folder}: has more than {MAX_SHARED} files")
    files, left = [], MAX_SIZE
    for path in sorted(paths):
        name = path.relative_to(folder).as_posix()
        if not name.isprintable() or len(name) > MAX_NAME:
            raise KinstError(f"{folder}: the file name {name[:80]!r} is not printable, or longer "
                             f"than {MAX_NAME} characters")
        if path.stat().st_size > left:
            raise KinstError(f"{folder}: its files have more than {MAX_SIZE >> 20} MiB")
        file = SharedFile(name, taken(path, left).content)
        left -= len(file.content)
        files.append(file)
    return tuple(files)
