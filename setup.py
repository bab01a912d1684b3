"""Builds the native engine; everything else is in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

NATIVE = (
    "emu.unicorn._engine", "emu.replay._pieces",
    "emu.amd64._breakpoint", "emu.arm64._breakpoint", "emu.riscv64._breakpoint",
    "emu.amd64._page_walk", "emu.riscv64._page_walk",
    "kinst._dispatch", "kinst.amd64._encoding", "kinst.arm64._encoding",
    "kinst.riscv64._encoding", "dwarf._scan",
    "dwarf._lines", "dtrace.bpf._runtime",
)

JOBS = len(os.sched_getaffinity(0))

setup(
    ext_modules=cythonize(
        [
            Extension(name, [name.replace(".", "/") + ".pyx"], extra_compile_args=["-O2"])
            for name in NATIVE
        ],
        compiler_directives={"language_level": 3, "boundscheck": True, "embedsignature": True},
        nthreads=JOBS,
    ),
    options={"build_ext": {"parallel": JOBS}},
)
