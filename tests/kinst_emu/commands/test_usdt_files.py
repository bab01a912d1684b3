"""Tests of ``kdtrace -h`` and ``kdtrace -G``, which write files for programs with probes."""

import pytest

from tests.conftest import ARCHES
from tests.dtrace.usdt.object_file import ObjectFile
from tests.dtrace.usdt.test_linked_probes import GO, ROUND, SOURCE
from tests.kinst_emu.commands.test_commands import refused, run


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "probes.d").write_text(SOURCE)
    return tmp_path


def test_a_header_is_written_beside_nothing_else(here):
    result = run("kdtrace", "-h", "-s", "probes.d")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert "#define PROV_TURNED_ROUND(arg0, arg1)" in (here / "probes.h").read_text()
    shown = run("kdtrace", "-h", "-s", "probes.d", "-o", "-")
    assert "PROV_GO_ENABLED" in shown.stdout and "_PROBES_H" not in shown.stdout


@pytest.mark.parametrize("arch", ARCHES)
def test_object_files_are_linked_for_their_architecture(here, arch):
    (here / "main.o").write_bytes(ObjectFile(arch, {"main": [GO, ROUND]}).build())
    result = run("kdtrace", "-G", "-s", "probes.d", "main.o")
    assert (result.returncode, result.stdout) == (0, "probes.o: declares 2 calls for probes\n")
    assert (here / "probes.o").read_bytes().startswith(b"\x7fELF")


def test_h_alone_is_a_request_for_help():
    for words in (("-h",), ("--help",)):
        result = run("kdtrace", *words)
        assert result.returncode == 0 and result.stdout.startswith("usage: kdtrace")


@pytest.mark.parametrize("words, message", [
    (("-h", "-s", "none.d"), "none.d"),
    (("-h", "-n", "BEGIN"), "declares no provider"),
    (("-h", "-n", "provider p { probe a(); };"), "needs -o FILE"),
    (("-G", "-s", "probes.d"), "needs the program's object files"),
    (("-G", "-s", "probes.d", "none.o"), "none.o"),
    (("-G", "-s", "probes.d", "probes.d"), "not an ELF file"),
    (("-G", "-s", "clause.d", "main.o"), "leave out its clauses"),
    (("-G",), "no probes specified"),
    (("-G", "-h", "-s", "probes.d"), "give only one"),
    (("-G", "-s", "probes.d", "-l", "main.o"), "leave out -c, -l"),
    (("-h", "-s", "probes.d", "-o", "none/probes.h"), "none/probes.h: No such file or directory"),
    (("-G", "-s", "probes.d", "main.o", "-o", "main.o"), "main.o is an input, too"),
    (("-h", "-s", "probes.d", "-o", "probes.d"), "probes.d is an input, too"),
    (("-h", "-o", "x.h", "-n", "provider p { probe a(int, double); };"),
     "argument 2 (double) cannot be passed to a probe"),
    (("-h", "-s", "probes.d", "-o", "/dev/full"), "/dev/full: No space left on device"),
])
def test_bad_input_is_one_line_and_nothing_is_written(here, words, message):
    (here / "main.o").write_bytes(ObjectFile("amd64", {"main": [GO]}).build())
    (here / "clause.d").write_text(SOURCE + "BEGIN { exit(0); }")
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    refused(run("kdtrace", *words), message, "dtrace")
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before
