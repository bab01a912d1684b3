"""``kinst images``: the kernels that are here, and how others come."""

import argparse
import json
from pathlib import Path

from images import catalog


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add = actions.add_parser("add", help="copy a kernel into the store")
    add.add_argument("file", type=Path)
    add.add_argument("--name", help="NAME/ARCH; default: its folder's name")
    get = actions.add_parser("fetch", help="get an official kernel with its debug data")
    get.add_argument("name", metavar="RELEASE/ARCH", help="e.g. 15.0-RELEASE/amd64")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "add":
        image = catalog.add(arguments.file, arguments.name)
        print(f"{image.name}: {image.path}")
        return 0
    if arguments.action == "fetch":
        return _fetch(arguments.name)
    images = catalog.known()
    if arguments.json:
        print(json.dumps([
            {"name": i.name, "path": str(i.path) if i.path else None, "origin": i.origin}
            for i in images
        ]))
        return 0
    width = max(len(image.name) for image in images)
    for image in images:
        print(f"{image.name:<{width}}  {image.path or f'not here; get it by: {image.origin}'}")
    return 0


def _fetch(name: str) -> int:
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
        image = fetch(name, progress)
    finally:
        if tasks:
            bar.stop()
    print(f"{image.name}: {image.path}")
    return 0
