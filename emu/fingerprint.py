"""What made a thing that is kept: the content of our code, and the versions of others'."""

import functools
import hashlib
import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

SUFFIXES = (".py", *EXTENSION_SUFFIXES)


@functools.cache
def fingerprint(modules: tuple[str, ...], distributions: tuple[str, ...] = ()) -> str:
    """Sixteen hexadecimal digits that change when any of it does.

    :param modules: dotted names; of a package, the files in its own folder.
    :param distributions: whose installed version counts.
    :raises ImportError: when a module is not there.
    """
    digest = hashlib.sha256()
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ImportError(f"there is no module {name}")
        origin = Path(spec.origin)
        files = [origin] if spec.submodule_search_locations is None else sorted(
            path for path in origin.parent.iterdir() if path.name.endswith(SUFFIXES))
        for path in files:
            content = path.read_bytes()
            digest.update(f"{name} {path.name} {len(content)}\n".encode() + content)
    from importlib.metadata import version  # not before it is needed: it takes a while to load

    for name in distributions:
        digest.update(f"{name} {version(name)}\n".encode())
    return digest.hexdigest()[:16]
