"""Animated GIFs of explanations for slides; the first picture of each step is shown longer."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from emu.host.atomic_file import replacing
from emu.host.extras import need
from emu.host.progress import PROGRESS
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.scene import Moment

if TYPE_CHECKING:
    from PIL.Image import Image

# display times in ms: a moment within a step, the first moment of a step, the last moment
MOMENT, STEP, LAST = 400, 2500, 5000
COLOURS = 32
# font files that are part of matplotlib
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf")


def check() -> None:
    """Check that the drawing libraries are installed.

    :raises KinstError: if one of them is missing.
    """
    need("pictures", "--gif")


def write_animation(pictures: Pictures[Moment], path: Path) -> int:
    """Write an animated GIF of all moments to a file, and return the number of pictures.

    :raises OSError: if the file cannot be written.
    """
    import PIL.Image

    step_moments = {moment for moment, _step in pictures.steps}
    count = len(pictures.moments)
    frames, times = list["Image"](), list[int]()
    with PROGRESS.working(f"drawing {count} pictures"):
        for number, png in enumerate(_drawn(pictures)):
            frames.append(PIL.Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS))
            times.append(STEP if number in step_moments else MOMENT)
    times[-1] = LAST
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0,
                   optimize=True)
    with replacing(path) as file:
        file.write(buffer.getvalue())
    return count


def _drawn(pictures: Pictures[Moment]) -> Iterator[bytes]:
    """Yield the picture of each moment as PNG data.

    A moment that several steps describe is drawn for the first of them.
    """
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
