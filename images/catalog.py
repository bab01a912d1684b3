"""Which kernel images there are, by name, and where they lie."""

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

TEACHING = Path(__file__).resolve().parent / "build"
FLAVOURS = ("amd64-illumos",)  # of the teaching kernel, beside one for each architecture
# Our userland, beside the teaching kernel: its root file system, and its one program.
# Of a kernel's base system, beside the kernel: the first, too.
ROOT_FILE, HEADERS = "root.ufs", "base"
STARTUP = "usr/lib/crt1.o"  # what every program of it is linked with


@dataclass(frozen=True)
class KnownImage:
    """A name a user may give to ``-k``; ``path`` is None while the image is not here."""

    name: str
    path: Path | None
    origin: str


def data_directory() -> Path:
    """``$KINST_DATA``, or the user's data directory."""
    named = os.environ.get("KINST_DATA")
    return Path(named) if named else Path(platformdirs.user_data_dir("kinst-emu"))


def store() -> Path:
    return data_directory() / "images"


def is_teaching(image: Image) -> bool:
    """Whether it is one of the teaching kernels, where they are built."""
    return any(image.path.is_relative_to(place) for place in (TEACHING, built_teaching()))


def described(image: Image) -> str:
    """What a heading calls a kernel: the name that ``-k`` takes, which has its architecture in it;
    of a file without one the file, and the architecture."""
    path = image.path.resolve()
    name = next((one.name for one in known() if one.path and one.path.resolve() == path), None)
    return name or f"{image.path} for {arch_of(image).name}"


def built_teaching() -> Path:
    """Where an installed program builds the teaching kernels."""
    return store() / "teaching"


def base(image: Image) -> Path:
    """The root file system of the base system that was fetched with a kernel.

    :raises ImageError: when none was.
    """
    path = image.path.parent / ROOT_FILE
    if not is_teaching(image) and path.is_file():
        return path
    raise ImageError(f"{image.path}: its base system is not here; get it by: kinst images fetch "
                     "RELEASE/ARCH --base")


def headers(image: Image) -> Path | None:
    """The folder with the headers and libraries of that base system, below ``usr``; None: there is
    none."""
    path = image.path.parent / HEADERS
    return path if (path / "usr/include").is_dir() and (path / STARTUP).is_file() else None


def userland(arch: str) -> Path:
    """The image of the disk with our userland.

    :raises ImageError: when it was not built.
    """
    for place in (TEACHING, built_teaching()):
        if (path := place / arch / ROOT_FILE).is_file():
            return path
    raise ImageError(f"our userland for {arch} is not here yet; get it by: kinst images build")


def known() -> list[KnownImage]:
    """Everything ``kinst images`` lists."""
    images = []
    for name, file, kinds in (("teaching", "kernel", (*ARCHITECTURES, *FLAVOURS)),
                              ("races", "races", tuple(ARCHITECTURES))):
        for arch in kinds:
            found = [path for place in (TEACHING, built_teaching())
                     if (path := place / arch / file).is_file()]
            images.append(
                KnownImage(f"{name}/{arch}", found[0] if found else None, "kinst images build"))
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
    """A real kernel of an architecture: of ``$KINST_KERNELS``, or the last one by name of those
    that the user has registered.  None: there is none."""
    kernels = os.environ.get("KINST_KERNELS")
    if kernels:
        path = Path(kernels) / arch / "kernel"
        return path if path.is_file() else None
    return max((path for path in store().glob(f"*/{arch}/kernel")
                if path.parent.parent != built_teaching()), default=None)


def find(text: str, modules: Sequence[str] = ()) -> Image:
    """The image a user named: a file, or a name ``kinst images`` lists.

    :param modules: kernel modules to be loaded behind it: files, or names of files beside the
        kernel (``kinst.ko``, ``kinst``).
    :raises ImageError: when there is no such image, or it is not a usable kernel.
    """
    path = Path(text)
    try:
        there = path.exists()
    except OSError as error:
        raise ImageError(f"{text[:80]}: {error.strerror}") from None
    if not there:
        for image in known():
            if image.name == text:
                if image.path is None:
                    raise ImageError(f"{text}: not here yet; get it by: {image.origin}")
                path = image.path
                break
        else:
            raise ImageError(f"{text}: no such file, and no image of that name; see: kinst images")
    found = load_image(path)
    arch_of(found)
    return with_modules(found, [module_path(found, name) for name in modules])


def module_path(image: Image, name: str) -> Path:
    """The file of a module that a user named: a file, or the name of one beside the kernel.

    :raises ImageError: when there is none.
    """
    path, directory = Path(name), image.path.parent
    found = [path]
    if path.name == name:
        found += [directory / name, directory / f"{name}{SUFFIX}"]
    for candidate in found:
        if candidate.is_file():
            return candidate
    raise ImageError(f"{name}: no such module"
                     + (f", here or beside {image.path}" if path.name == name else ""))


def modules_beside(kernel: Path) -> list[Path]:
    """The modules in a kernel's directory, and their debug files."""
    return [path for pattern in (f"*{SUFFIX}", f"*{SUFFIX}.debug")
            for path in sorted(kernel.parent.glob(pattern)) if path.is_file()]


def add(path: Path, name: str | None = None) -> KnownImage:
    """Copy a kernel (and the debug file and modules beside it) into the store.

    :raises ImageError: when it is not a usable kernel.
    """
    image = load_image(path)
    arch = arch_of(image)
    name = name or f"{path.resolve().parent.name}/{arch.name}"
    parts = name.split("/")
    if len(parts) != 2 or any(not part or part.startswith(".") for part in parts):
        raise KinstError(f"'{name}': an image's name is of the form NAME/ARCH, like 15.0/amd64")
    if parts[0] == built_teaching().name:
        raise KinstError(f"'{name}': these names are for the teaching kernels; give another --name")
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
            for old in target.iterdir():  # of the kernel that had this name
                if old.name not in new and old.suffix in (SUFFIX, ".debug"):
                    old.unlink()
            for file in Path(directory).iterdir():
                os.replace(file, target / file.name)
    except OSError as error:
        raise ImageError(f"{target}: cannot be written: {error.strerror}") from None
    return KnownImage(name, target / "kernel", "kinst images")
