"""Animated GIFs of explanations for slides; the first picture of each step is shown longer."""

import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emu.host.atomic_file import replacing
from emu.host.extras import need
from emu.host.progress import PROGRESS
from emu.host.system import processors
from kinst.verify.sweep.task import Task
from kinst.verify.sweep.workers import Processes
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.scene import Moment

if TYPE_CHECKING:
    from PIL.Image import Image

# display times in ms: a moment within a step, the first moment of a step, the last moment
MOMENT, STEP, LAST = 400, 2500, 5000
COLOURS = 32
# font files that are part of matplotlib
FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf")
# What a user can do if drawing processes are lost
ADVICE = ("--gif", "free memory, or make the pictures with --svg")


def check() -> None:
    """Check that the drawing libraries are installed.

    :raises KinstError: if one of them is missing.
    """
    need("pictures", "--gif")


@dataclass(frozen=True)
class Drawing(Task[str, bytes, None]):
    """Task that draws SVG pictures, each as a GIF with one frame."""

    @property
    def prepared_for(self) -> None:
        """Nothing is prepared."""
        return None

    def prepare(self) -> None:
        """Prepare nothing."""

    def results(self, prepared: None, items: Sequence[str]) -> list[bytes]:
        """Draw SVG pictures."""
        return [_drawn(picture) for picture in items]


def write_animation(pictures: Pictures[Moment], path: Path) -> int:
    """Write an animated GIF of all moments to a file, and return the number of pictures.

    Every CPU of this host draws pictures.

    :raises KinstError: if a process that draws is lost.
    :raises OSError: if the file cannot be written.
    """
    import PIL.Image

    for name in ("matplotlib", "resvg_py"):  # before the processes that draw are forked
        importlib.import_module(name)
    step_moments = {moment for moment, _step in pictures.steps}
    # A moment that several steps describe is drawn for the first of them.
    names = {moment: step.name for moment, step in reversed(pictures.steps)}
    count = len(pictures.moments)
    frames, times = list["Image"](), list[int]()
    with PROGRESS.working(f"drawing {count} pictures"), \
            Processes(processors(), 1, ADVICE) as workers:
        parts = ([pictures.svg(number, names.get(number, ""))] for number in range(count))
        for done in workers.done(Drawing(), parts, ordered=True):
            frames.append(PIL.Image.open(io.BytesIO(done.results[0])))
            times.append(STEP if len(times) in step_moments else MOMENT)
    times[-1] = LAST
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0,
                   optimize=True)
    with replacing(path) as file:
        file.write(buffer.getvalue())
    return count


def _drawn(picture: str) -> bytes:
    """Return an SVG picture as a GIF with one frame."""
    import matplotlib
    import PIL.Image
    import resvg_py

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    png = bytes(resvg_py.svg_to_bytes(
        svg_string=picture, background="#ffffff", skip_system_fonts=True,
        font_files=[str(folder / name) for name in FONTS], font_family="DejaVu Sans",
        sans_serif_family="DejaVu Sans", monospace_family="DejaVu Sans Mono"))
    buffer = io.BytesIO()
    PIL.Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS).save(buffer, "GIF")
    return buffer.getvalue()
