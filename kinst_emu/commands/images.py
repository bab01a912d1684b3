"""``kinst images``: list, add, fetch and build kernel images."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from emu.arch.architectures import ARCHITECTURES
from emu.host.progress import PROGRESS
from images import catalog
from images.catalog import KnownImage

if TYPE_CHECKING:
    from images.fetch import Fetched

EXAMPLES = (
    "kinst images",
    "kinst images fetch 15.0-RELEASE/amd64",
    "kinst images fetch 15.0-RELEASE/amd64 --base",
    "kinst images add /boot/kernel/kernel --name mine/amd64",
    "kinst images build",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``kinst images``."""
    parser.add_argument("--json", action="store_true",
                        help="print the list as JSON (default: text)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add = actions.add_parser("add", help="copy a kernel into the image store")
    add.add_argument("file", type=Path, help="kernel image to copy (required)")
    add.add_argument("--name", help="name of the copy, in the form NAME/ARCH (default: the name of "
                     "the file's directory and the kernel's architecture)")
    get = actions.add_parser(
        "fetch", help="download an official kernel with its modules and debug data")
    get.add_argument("name", metavar="RELEASE/ARCH",
                     help="release and architecture, e.g. 15.0-RELEASE/amd64 (required)")
    get.add_argument("--base", action="store_true",
                     help="also download the base system, as a disk image and as headers and "
                     "libraries to compile against (default: only the kernel)")
    build = actions.add_parser("build", help="build the teaching kernels with clang and lld")
    for action in (add, get, build):
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS,
                            help="print the new kernels as JSON (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """List the known images, or add, fetch or build images; return 0."""
    if arguments.action is not None:
        new_images, added = _get(arguments)
        if arguments.json:
            print(json.dumps(_rows(new_images)))
        else:
            print("".join(f"{image.name}: {image.path}\n" for image in new_images), end="")
            if arguments.action == "fetch" and arguments.base:
                print(f"added to the base system: {', '.join(added)}")
                print(f"try: kinst run -k {arguments.name} --base -- 'ls -l / | wc -l'")
        return 0
    images = catalog.known()
    if arguments.json:
        print(json.dumps(_rows(images)))
        return 0
    width = max(len(image.name) for image in images)
    for image in images:
        print(f"{image.name:<{width}}  "
              f"{image.path or f'not installed; get it with: {image.origin}'}")
    return 0


def _rows(images: list[KnownImage]) -> list[dict[str, str | None]]:
    return [{"name": i.name, "path": str(i.path) if i.path else None, "origin": i.origin}
            for i in images]


def _get(arguments: argparse.Namespace) -> tuple[list[KnownImage], tuple[str, ...]]:
    """Add, fetch or build images as the options ask.

    :return: the new images, and what was added to the base system if one was fetched.
    """
    if arguments.action == "add":
        return [catalog.add(arguments.file, arguments.name)], ()
    if arguments.action == "fetch":
        fetched = _fetch(arguments.name, arguments.base)
        return [fetched.image], fetched.added
    from images import build_userland
    from images.build_teaching import build, build_flavours

    new_images = []
    for arch in ARCHITECTURES:
        with PROGRESS.working(f"building the teaching kernel for {arch}"):
            paths = [build(arch, catalog.built_teaching()),
                     *build_flavours(arch, catalog.built_teaching())]
        with PROGRESS.working(f"building the kinst-emu userland for {arch}"):
            build_userland.build(arch, catalog.built_teaching())
        new_images += [KnownImage(f"teaching/{path.parent.name}", path, "kinst images build")
                 for path in paths]
    return new_images, ()


def _fetch(name: str, base: bool) -> "Fetched":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TransferSpeedColumn,
    )

    from images.fetch import fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(),
               TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def progress(file: str, done: int, total: int) -> None:
        bar.start()
        if file not in tasks:
            tasks[file] = bar.add_task(file, total=total or None)
        bar.update(tasks[file], completed=done)

    try:
        return fetch(name, progress, base=base)
    finally:
        if tasks:
            bar.stop()
