"""Tests of headers for providers that a program declares, with the compiler that reads them."""

import shutil
import subprocess

import pytest

from dtrace.usdt.header import header
from images.compiler import tool
from tests.dtrace.usdt.test_linked_probes import declared

USE = """
#include "probes.h"
int main(void) {
    if (PROV_GO_ENABLED())
        PROV_GO(1, (char *)"text");
    PROV_TURNED_ROUND(1, 2);
    return PROV_TURNED_ROUND_ENABLED();
}
"""


def compiled(tmp_path, text, language, with_probes):
    compiler = shutil.which(tool("clang")) or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "sys").mkdir(exist_ok=True)
    (tmp_path / "sys" / "sdt.h").write_text(f"#define _DTRACE_VERSION {int(with_probes)}\n")
    (tmp_path / "probes.h").write_text(text)
    source = tmp_path / f"use.{language}"
    source.write_text(USE)
    return subprocess.run([compiler, "-Wall", "-Werror", "-I", str(tmp_path), "-S", "-o", "-",
                           str(source)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("with_probes", [True, False])
@pytest.mark.parametrize("language", ["c", "cc"])
def test_a_header_compiles_with_probes_and_without(tmp_path, language, with_probes):
    made = compiled(tmp_path, header(declared().values(), "probes.h"), language, with_probes)
    assert made.returncode == 0, made.stderr
    for name in ("__dtrace_prov___go", "__dtraceenabled_prov___go",
                 "__dtrace_prov___turned__round", "__dtraceenabled_prov___turned__round"):
        assert (name in made.stdout) == with_probes


def test_the_guard_is_named_for_the_file():
    lines = header(declared().values(), "my-probes.h").splitlines()
    assert lines[:2] == ["#ifndef _MY_PROBES_H", "#define _MY_PROBES_H"]
    assert "#ifndef" not in header(declared().values())
