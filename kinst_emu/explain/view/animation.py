"""A firing as an animated GIF, for slides: all its moments, where a step begins for longer."""

import io
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from emu.host.atomic_file import replacing
from emu.host.errors import KinstError
from emu.host.progress import PROGRESS
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.scene import Moment

if TYPE_CHECKING:
    from PIL.Image import Image

MOMENT, STEP, LAST = 400, 2500, 5000  # ms that a picture is shown
COLOURS = 32
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf")  # matplotlib brings them
NEEDED = ("resvg_py", "PIL", "matplotlib")


def check() -> None:
    """:raises KinstError: when what draws is not installed."""
    if any(find_spec(name) is None for name in NEEDED):
        raise KinstError("--gif needs what draws pictures: pip install 'kinst-emu[pictures]'")


def write_animation(pictures: Pictures[Moment], path: Path) -> int:
    """:return: how many pictures it has.
    :raises OSError: when it cannot be written.
    """
    import PIL.Image

    about = {moment for moment, _step in pictures.steps}
    count = len(pictures.moments)
    frames, times = list["Image"](), list[int]()
    with PROGRESS.working(f"drawing {count} pictures"):
        for number, png in enumerate(_drawn(pictures)):
            frames.append(PIL.Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS))
            times.append(STEP if number in about else MOMENT)
    times[-1] = LAST
    made = io.BytesIO()
    frames[0].save(made, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0,
                   optimize=True)
    with replacing(path) as file:
        file.write(made.getvalue())
    return count


def _drawn(pictures: Pictures[Moment]) -> Iterator[bytes]:
    """Each moment, as PNG; of those that steps are about, as their first."""
    import matplotlib
    import resvg_py

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    names = {moment: step.name for moment, step in reversed(pictures.steps)}
    for number in range(len(pictures.moments)):
        yield bytes(resvg_py.svg_to_bytes(
            svg_string=pictures.svg(number, names.get(number, "")), background="#ffffff",
            skip_system_fonts=True, font_files=[str(folder / name) for name in FONTS],
            font_family="DejaVu Sans", sans_serif_family="DejaVu Sans",
            monospace_family="DejaVu Sans Mono"))
