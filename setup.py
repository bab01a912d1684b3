"""Build the native extensions, and install the manual pages if they were generated (make man).

All other settings are in pyproject.toml.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
NATIVE = sorted(str(path.relative_to(ROOT)) for room in ("emu", "kinst", "dwarf", "dtrace")
                for path in (ROOT / room).rglob("*.pyx"))

JOBS = len(os.sched_getaffinity(0))
OPTIMIZED = [] if "CFLAGS" in os.environ else ["-O2"]  # CFLAGS replaces the default option

MANUALS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "build" / "man").glob("*.1"))

setup(
    data_files=[("share/man/man1", MANUALS)] if MANUALS else [],
    ext_modules=cythonize(
        [
            Extension(path.removesuffix(".pyx").replace("/", "."), [path],
                      extra_compile_args=OPTIMIZED)
            for path in NATIVE
        ],
        compiler_directives={"language_level": 3, "boundscheck": True, "embedsignature": True},
        nthreads=JOBS,
    ),
    options={"build_ext": {"parallel": JOBS}},
)
