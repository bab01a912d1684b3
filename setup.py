"""Builds the native engine; everything else is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [Extension("emu._engine", ["emu/_engine.pyx"], extra_compile_args=["-O2"])],
        compiler_directives={"language_level": 3, "boundscheck": True, "embedsignature": True},
    )
)
