"""Catalog of kernel images: their names and where they are stored."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from emu.arch.architectures import ARCHITECTURES, arch_of
from emu.elf.image import Image, load_image
from emu.elf.linked_image import SUFFIX, with_modules
from emu.host.errors import ImageError, KinstError
from images.known_digests import with_known_identity

TEACHING = Path(__file__).resolve().parent / "build"
FLAVOURS = ("amd64-illumos",)  # additional variants of the teaching kernel
# Names in a kernel's directory: the root file system (of the kinst-emu userland, or of the base
# system that was fetched with the kernel), and the directory with the base system's headers.
ROOT_FILE, HEADERS = "root.ufs", "base"
STARTUP = "usr/lib/crt1.o"  # startup code of every C program, part of the base system


@dataclass(frozen=True)
class KnownImage:
    """An image name that ``-k`` accepts; ``path`` is None if the image is missing."""

    name: str
    path: Path | None
    origin: str


def data_directory() -> Path:
    """Return ``$KINST_DATA``, or the user's data directory if the variable is unset."""
    named = os.environ.get("KINST_DATA")
    return Path(named) if named else Path(platformdirs.user_data_dir("kinst-emu"))


def store() -> Path:
    """Return the directory of the image store."""
    return data_directory() / "images"


def is_teaching(image: Image) -> bool:
    """Return whether an image is in one of the directories where teaching kernels are built."""
    return any(image.path.is_relative_to(place) for place in (TEACHING, built_teaching()))


def described(image: Image) -> str:
    """Return the name that headings show for a kernel.

    This is the name that ``-k`` takes, which contains the architecture, or else the file and the
    architecture.
    """
    path = image.path.resolve()
    name = next((one.name for one in known() if one.path and one.path.resolve() == path), None)
    return name or f"{image.path} for {arch_of(image).name}"


def built_teaching() -> Path:
    """Return the directory where an installed program builds the teaching kernels."""
    return store() / "teaching"


def base(image: Image) -> Path:
    """Return the path of the disk image of the base system, which is fetched along with a kernel.

    :raises ImageError: no base system was fetched.
    """
    path = image.path.parent / ROOT_FILE
    if not is_teaching(image) and path.is_file():
        return path
    raise ImageError(f"{image.path}: its base system is not installed; run: kinst images fetch "
                     "RELEASE/ARCH --base")


def headers(image: Image) -> Path | None:
    """Return the directory with the headers and libraries of the fetched base system, or None.

    They are in the folder's ``usr``.  None means that no base system was fetched with the kernel.
    """
    path = image.path.parent / HEADERS
    return path if (path / "usr/include").is_dir() and (path / STARTUP).is_file() else None


def userland(arch: str) -> Path:
    """Return the path of the disk image with the kinst-emu userland.

    :raises ImageError: the userland was not built.
    """
    for place in (TEACHING, built_teaching()):
        if (path := place / arch / ROOT_FILE).is_file():
            return path
    raise ImageError(f"the kinst-emu userland for {arch} is not built yet; run: kinst images build")


def known() -> list[KnownImage]:
    """Return all images that ``kinst images`` lists."""
    images = []
    for name, file, names_of_kind in (("teaching", "kernel", (*ARCHITECTURES, *FLAVOURS)),
                              ("races", "races", tuple(ARCHITECTURES))):
        for arch in names_of_kind:
            paths = [path for place in (TEACHING, built_teaching())
                     if (path := place / arch / file).is_file()]
            images.append(
                KnownImage(f"{name}/{arch}", paths[0] if paths else None, "kinst images build"))
    kernels = os.environ.get("KINST_KERNELS")
    if kernels:
        for arch in ARCHITECTURES:
            path = Path(kernels) / arch / "kernel"
            if path.is_file():
                images.append(KnownImage(f"kernels/{arch}", path, "$KINST_KERNELS"))
    if store().is_dir():
        for path in sorted(store().glob("*/*/kernel")):
            name = str(path.parent.relative_to(store()))
            if path.parent.parent != built_teaching():
                images.append(KnownImage(name, path, "kinst images"))
    names = {image.name for image in images}
    for arch in ARCHITECTURES:
        name = f"15.0-RELEASE/{arch}"
        if name not in names:
            images.append(KnownImage(name, None, f"kinst images fetch {name}"))
    return images


def real_kernel(arch: str) -> Path | None:
    """Return the path of a FreeBSD kernel for an architecture, or None.

    The kernel is the one in ``$KINST_KERNELS`` if that is set, or else the last one of the image
    store in alphabetical order.
    """
    kernels = os.environ.get("KINST_KERNELS")
    if kernels:
        path = Path(kernels) / arch / "kernel"
        return path if path.is_file() else None
    return max((path for path in store().glob(f"*/{arch}/kernel")
                if path.parent.parent != built_teaching()), default=None)


def find(text: str, modules: Sequence[str] = ()) -> Image:
    """Load the image that a user named by a path or by a name that ``kinst images`` lists.

    :param modules: kernel modules to load after the kernel: files, or names of files next to the
        kernel (``kinst.ko``, ``kinst``).
    :raises ImageError: there is no such image, or it is not a usable kernel.
    """
    path = Path(text)
    try:
        exists = path.exists()
    except OSError as error:
        raise ImageError(f"{text[:80]}: {error.strerror}") from None
    if not exists:
        for image in known():
            if image.name == text:
                if image.path is None:
                    raise ImageError(f"{text}: not installed; run: {image.origin}")
                path = image.path
                break
        else:
            raise ImageError(f"{text}: no such file, and no image of that name; run 'kinst images' "
                             "for a list")
    kernel = load_image(path)
    arch_of(kernel)
    kernel = with_known_identity(kernel)
    return with_modules(kernel, [module_path(kernel, name) for name in modules])


def module_path(image: Image, name: str) -> Path:
    """Find a module by its path, or by the name of a file next to the kernel; return its path.

    :raises ImageError: there is no such file.
    """
    path, directory = Path(name), image.path.parent
    candidates = [path]
    if path.name == name:
        candidates += [directory / name, directory / f"{name}{SUFFIX}"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ImageError(f"{name}: no such module"
                     + (f", here or next to {image.path}" if path.name == name else ""))


def modules_beside(kernel: Path) -> list[Path]:
    """Return the modules in a kernel's directory and their debug files."""
    return [path for pattern in (f"*{SUFFIX}", f"*{SUFFIX}.debug")
            for path in sorted(kernel.parent.glob(pattern)) if path.is_file()]


def add(path: Path, name: str | None = None) -> KnownImage:
    """Copy a kernel, with its debug file and modules, into the image store.

    :raises ImageError: the file is not a usable kernel, or the copy cannot be written.
    :raises KinstError: the name is invalid.
    """
    image = load_image(path)
    arch = arch_of(image)
    name = name or f"{path.resolve().parent.name}/{arch.name}"
    parts = name.split("/")
    if len(parts) != 2 or any(not part or part.startswith(".") for part in parts):
        raise KinstError(f"'{name}': an image name has the form NAME/ARCH, for example 15.0/amd64")
    if parts[0] == built_teaching().name:
        raise KinstError(f"'{name}': the name is reserved for teaching kernels; use another --name")
    if parts[1] != arch.name:
        raise KinstError(f"'{name}': {path} is a kernel for {arch.name}, not for {parts[1]}")
    target = store() / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".adding-") as directory:
            shutil.copyfile(path, Path(directory) / "kernel")
            debug = path.with_name(path.name + ".debug")
            if debug.is_file():
                shutil.copyfile(debug, Path(directory) / "kernel.debug")
            for module in modules_beside(path):
                shutil.copyfile(module, Path(directory) / module.name)
            target.mkdir(exist_ok=True)
            new = {file.name for file in Path(directory).iterdir()}
            for old in target.iterdir():  # remove files of the previous kernel of this name
                if old.name not in new and old.suffix in (SUFFIX, ".debug"):
                    old.unlink()
            for file in Path(directory).iterdir():
                os.replace(file, target / file.name)
    except OSError as error:
        raise ImageError(f"{target}: cannot be written: {error.strerror}") from None
    return KnownImage(name, target / "kernel", "kinst images")
