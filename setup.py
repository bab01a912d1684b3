"""Build the native extensions, and install the manual pages if they were generated (make man).

All other settings are in pyproject.toml.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
# The largest files first, so that no processor waits for the last one.
NATIVE = [str(path.relative_to(ROOT)) for path in sorted(
    (path for room in ("emu", "kinst", "dwarf", "dtrace") for path in (ROOT / room).rglob("*.pyx")),
    key=lambda path: (-path.stat().st_size, path))]

# Module with the code of memory views, which Cython would repeat in every other module: this halves
# the time of the build.
SHARED = "emu._shared"

JOBS = (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1)
# CFLAGS replaces these options.
OPTIMIZED = [] if "CFLAGS" in os.environ else ["-O2", "-g0"]

MANUALS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "build" / "man").glob("*.1"))


def native() -> list[Extension]:
    """Return the native modules, after their translation to C."""
    found: list[Extension] = cythonize(
        [
            Extension(path.removesuffix(".pyx").replace("/", "."), [path],
                      extra_compile_args=OPTIMIZED)
            for path in NATIVE
        ] + [Extension(SHARED, [SHARED.replace(".", "/") + ".c"], extra_compile_args=OPTIMIZED)],
        shared_utility_qualified_name=SHARED,
        compiler_directives={"language_level": 3, "boundscheck": True, "embedsignature": True},
        nthreads=JOBS,
        force="KINST_FORCE" in os.environ,  # native_cache.py sets it
    )
    return found


setup(
    data_files=[("share/man/man1", MANUALS)] if MANUALS else [],
    # setup-python.sh has compiled the modules, or copied them from a cache.
    ext_modules=[] if "KINST_PREBUILT" in os.environ else native(),
    options={"build_ext": {"parallel": JOBS}},
)
