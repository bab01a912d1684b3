"""Where the commands keep what is made again when it is lost.

What is kept is executed, or believed: a folder that another user can write to is refused, and a
file that another user could have written is removed.
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
    """``$KINST_CACHE``, or the user's cache directory."""
    named = os.environ.get("KINST_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("kinst-emu"))


def cached_file(kind: str, name: str) -> Path:
    """Find the place of a file in the cache, and make its folder if possible.  The file need not
    exist; one that another user could have written is removed.

    :param kind: the folder's name; ``name`` the file's.
    :raises KinstError: when another user can write to the folder.
    """
    whole, reachable = cache_directory(), True
    for folder in (whole, whole / kind):
        with contextlib.suppress(OSError):  # whoever writes there says so
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = _of_others(folder)
        if found and not _like_tmp(folder):
            raise KinstError(f"{folder}: {found}; what is kept there is executed: set KINST_CACHE "
                             "to a directory of your own, or take the permission away (chmod go-w)")
        reachable = reachable and _reachable(folder)
    path = whole / kind / name
    if found := _of_others(path, reachable):
        try:
            path.unlink()
        except OSError as error:
            raise KinstError(f"{path}: {found}, and it cannot be removed: {error.strerror}"
                             ) from None
    return path


def _like_tmp(folder: Path) -> bool:
    """Whether nobody can change there what is somebody else's."""
    found = folder.stat()
    return found.st_uid in (ROOT, os.geteuid()) and bool(found.st_mode & stat.S_ISVTX)


def _reachable(folder: Path) -> bool:
    """Whether other users can get at what is in a folder."""
    try:
        return bool(folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    except OSError:
        return True


def _of_others(path: Path, reachable: bool = True) -> str:
    """How another user can write to a file or folder, or point a link elsewhere; empty: nobody else
    can, or it does not exist.

    :param reachable: whether others can get at it, so that its permissions matter.
    """
    try:
        link, found = path.lstat(), path.stat()
    except OSError:
        return ""
    for one in (link, found):
        if one.st_uid not in (ROOT, os.geteuid()):
            return f"is of another user ({_user(one.st_uid)})"
    if not reachable:
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "every user can write to it"
    if found.st_mode & stat.S_IWGRP and not _own_group(found.st_gid):
        return "the users of its group can write to it"
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _own_group(number: int) -> bool:
    """Whether a group is this user's alone, of the same name."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
