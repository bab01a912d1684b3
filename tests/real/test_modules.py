"""Tests that FreeBSD kernels link FreeBSD modules, whose functions can be called and traced."""

import json

import pytest

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.debug.kernel_types import kernel_types
from emu.host.errors import KinstError
from emu.machine.call import Caller
from emu.replay.recording import Recorder
from emu.replay.starts import BOOTED
from images import catalog
from images.boots import booted
from images.recordings import played
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.providers.fbt import create
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_front import run

MODULES = ["opensolaris.ko", "dtrace.ko", "fbt.ko", "kinst.ko"]


@pytest.fixture(scope="module", params=ARCHES)
def loaded(request):
    image = real_kernel(request.param)
    if not (image.path.parent / "kinst.ko").is_file():
        pytest.skip(f"no kinst.ko beside {image.path}")
    image = catalog.find(str(image.path), ["kinst.ko", "fbt.ko"])
    return image, booted(image)


def test_the_kernel_links_the_modules_as_expected(loaded):
    image, machine = loaded
    assert {m.name for m in image.modules} == set(MODULES)
    for module in image.modules:
        same = sum(machine.read(module.address + at, len(data)) == data
                   for at, data in module.links)
        assert same > len(module.links) * 0.9, module.name  # others: ifuncs, changed variables
    seam = machine.read_u64(machine.symbol("dtrace_invop_jump_addr").address)
    assert image.symbols.where(seam) == "dtrace_invop_start+0x0"


def called(machine, path):
    """Return the digest after a call of kinst_excluded(), and the probes that fired."""
    caller, fired = Caller(machine), []
    name = caller.place(b"cpu_switch\0")
    probes = Breakpoints(machine, lambda probe, state: fired.append(probe), path or "guest")
    if path is not None:
        create(probes, "kinst_*excluded", "", module="kinst")
        probes.enable()
    assert caller.call(machine.symbol("kinst_excluded").address, [name], "x") & 0xFF == 1
    probes.disable()
    return machine.digest(), [(probe.module, probe.function, probe.name) for probe in fired]


def test_functions_of_a_module_are_called_and_traced(loaded):
    _image, machine = loaded
    kept = machine.snapshot()
    digests = set()
    for path in (None, *PATHS):
        machine.restore(kept)
        digest, fired = called(machine, path)
        digests.add(digest)
        assert path is None or fired == [
            ("kinst", "kinst_excluded", "entry"), ("kinst", "kinst_md_excluded", "entry"),
            ("kinst", "kinst_md_excluded", "return"), ("kinst", "kinst_excluded", "return")]
    assert len(digests) == 1
    machine.restore(kept)


def test_types_lines_and_inline_copies_of_a_module_are_known(loaded):
    image, _machine = loaded
    types, index, sources = kernel_types(image), debug_index(image), Sources(image)
    assert types.named("struct kinst_probe") and types.named("struct thread")
    f = image.symbols.find("kinst_invop")
    assert sources.line(f.address).rpartition(":")[0].endswith("/kinst_isa.c")
    assert [one.name for one in index.stack(f.address)][-1] == "kinst_invop"
    assert types.function("kinst_excluded", image.symbols.find("kinst_excluded").address)
    inline = [one for one in index.copies("kinst_trampoline_populate")
              + index.copies("kinst_instr_dissect")]
    assert all(image.module_at(low) for one in inline for low, _high in one.pieces)


def test_a_recording_names_its_modules_and_replays(loaded, tmp_path):
    image, machine = loaded
    kept = machine.snapshot()
    machine.console.text.clear()
    path = tmp_path / "call.rec"
    with Recorder(machine, path, BOOTED, "kinst_excluded"):
        caller = Caller(machine)
        caller.call(machine.symbol("kinst_excluded").address, [caller.place(b"malloc\0")], "x")
    machine.restore(kept)
    player = played(path, str(image.path))
    assert [name for name, _id in player.recording.start.modules] == [
        m.name for m in image.modules]
    player.advance_to_end()
    assert not player.difference()
    with pytest.raises(KinstError, match="needs the module"):
        played(path, str(catalog.find("teaching/amd64").path))


def test_commands_accept_modules(loaded):
    image, _machine = loaded
    words = ["-k", str(image.path), "--module", "kinst.ko"]
    result = run("kinst", "call", *words, 'kinst_excluded("dtrace_probe")', "--json")
    assert json.loads(result.stdout)["value"] == 1
    result = run("kdtrace", *words, "-n", "kinst:kinst:kinst_excluded:0", "--stack", "1",
                 "-c", 'kinst_excluded("malloc")')
    assert "kinst.ko`kinst_excluded+0x" in result.stdout
    result = run("kdtrace", *words, "-l", "-n", "fbt:kinst:kinst_ex*:")
    assert "fbt kinst kinst_excluded entry" in " ".join(result.stdout.split())
    result = run("kinst", "xval", *words, "-c", 'kinst_excluded("malloc")')
    assert "1 calls agree" in result.stdout
