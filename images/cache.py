"""Cache directory for files that can be regenerated.

Cached files are executed or trusted. A folder that another user can write to is therefore refused,
and a file that another user could have written is removed.
"""

import contextlib
import grp
import os
import pwd
import stat
from pathlib import Path

import platformdirs

from emu.host.errors import KinstError

ROOT = 0


def cache_directory() -> Path:
    """Return ``$KINST_CACHE``, or the user's cache directory if the variable is unset."""
    named = os.environ.get("KINST_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("kinst-emu"))


def cached_file(kind: str, name: str) -> Path:
    """Return the path of a file in the cache, and create the file's directory if possible.

    The file need not exist. A file that another user could have written is removed.

    :param kind: name of the folder in the cache.
    :param name: name of the file.
    :raises KinstError: another user can write to the folder.
    """
    root, reachable = cache_directory(), True
    for folder in (root, root / kind):
        with contextlib.suppress(OSError):  # the caller's write reports the error
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        risk = _of_others(folder)
        if risk and not _like_tmp(folder):
            raise KinstError(f"{folder}: {risk}. Cached files are executed, so set KINST_CACHE to "
                             "a directory of your own, or remove the permission (chmod go-w)")
        reachable = reachable and _reachable(folder)
    path = root / kind / name
    if risk := _of_others(path, reachable):
        try:
            path.unlink()
        except OSError as error:
            raise KinstError(f"{path}: {risk}, and it cannot be removed: {error.strerror}"
                             ) from None
    return path


def _like_tmp(folder: Path) -> bool:
    """Return whether a directory is sticky, so that users cannot replace each other's files."""
    status = folder.stat()
    return status.st_uid in (ROOT, os.geteuid()) and bool(status.st_mode & stat.S_ISVTX)


def _reachable(folder: Path) -> bool:
    """Return whether other users can access the files in a directory."""
    try:
        return bool(folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    except OSError:
        return True


def _of_others(path: Path, reachable: bool = True) -> str:
    """Describe how another user can change a file or its link; return an empty string if none can.

    The string is also empty for a path that does not exist.

    :param reachable: whether other users can access the containing folder. If not, the file's
        permissions do not matter.
    """
    try:
        link, target = path.lstat(), path.stat()
    except OSError:
        return ""
    for status in (link, target):
        if status.st_uid not in (ROOT, os.geteuid()):
            return f"belongs to another user ({_user(status.st_uid)})"
    if not reachable:
        return ""
    if target.st_mode & stat.S_IWOTH:
        return "every user can write to it"
    if target.st_mode & stat.S_IWGRP and not _own_group(target.st_gid):
        return "its group can write to it"
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _own_group(number: int) -> bool:
    """Return whether a group has the user's name and no other members, so that it is private."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
