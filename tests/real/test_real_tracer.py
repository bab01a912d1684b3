"""Tests that explanations of FreeBSD's own tracer match what the guest's memory and CPU held."""

import json

import pytest

from emu.guest.tracer import TracerPart
from images import catalog
from images.systems import with_disks
from kinst_emu.explain.record.seen_tracing import BREAKPOINT, CALL, PROGRAM
from kinst_emu.explain.steps.explained_tracing import explain_tracing, modules_of
from kinst_emu.explain.steps.step import Table
from kinst_emu.explain.view.film import film
from kinst_emu.explain.view.pictures import way_pictures
from kinst_emu.explain.view.text import text
from tests.conftest import ARCHES, real_kernel
from tests.kinst_emu.commands.test_commands import refused, run

MEMORY, LIMIT = 512 << 20, 20_000_000_000
KINST = {"amd64": "malloc:8", "arm64": "malloc:16", "riscv64": "malloc:4"}
HEADER = 12  # size of what precedes the recorded values: the ECB's number and the time


@pytest.fixture(scope="module", params=ARCHES)
def image(request):
    kernel = real_kernel(request.param)
    if not kernel.path.with_name(catalog.ROOT_FILE).is_file():
        pytest.skip(f"no base system for {request.param}: put the root.ufs of 'kinst images fetch "
                    f"RELEASE/ARCH --base' next to {kernel.path}")
    return with_disks(catalog.find(str(kernel.path), modules_of(kernel)), [], base=True)


def explained(image, place, clause="", command="ls /", hit=2):
    return explain_tracing(image, place, clause, command, hit, LIMIT, MEMORY)


def cells(step):
    return [row for part in step.parts if isinstance(part, Table) for row in part.rows]


def test_a_firing_of_kinst_passes_all_parts(image):
    arch = catalog.arch_of(image).name
    found = explained(image, KINST[arch], "/pid > 1/ { trace(pid); trace(0x1122334455667788); }")
    seen, steps = found.seen, {step.name: step for step in found.steps}
    assert seen.how == BREAKPOINT and seen.name.startswith("kinst:kernel:malloc:")
    # What the actions have recorded
    assert int.from_bytes(seen.record[HEADER : HEADER + 4], "little") == seen.pid
    assert bytes.fromhex("8877665544332211") in seen.record
    assert seen.ecbs[0].predicate and len(seen.ecbs) == 1 and seen.predicates[0][1]
    assert seen.count(TracerPart.CODE) == 1
    assert cells(steps["cost"])[-1][1] == str(len(seen.rows) - 2)
    for part in (TracerPart.TRAP, TracerPart.PROVIDER, TracerPart.PROBE, TracerPart.PREDICATE,
                 TracerPart.ACTION, TracerPart.TRAMPOLINE):
        assert seen.count(part) > 0, part
    assert bool(seen.count(TracerPart.COPY)) == (arch == "amd64")
    # The trap frame has the registers of the interrupted code
    first, last = seen.rows[0], seen.rows[-1]
    frame = {row[1]: int(row[2], 16) for row in cells(steps["frame"])}
    same = [name for name in frame if name in first.registers and name not in ("rip", "x18")]
    assert len(same) >= 15
    assert all(frame[name] == first.registers[name] for name in same)
    # The displaced instruction is in the trampoline, and its effect is the only one
    assert seen.slot.startswith(seen.original)
    assert last.address == first.address + len(seen.original)
    changed = {name for name, value in first.registers.items() if last.registers[name] != value}
    assert changed <= {found.words.arch.pc, found.words.arch.sp, "x29", "s0"}
    # The trampoline is one of those that the bit set has as used
    chunk = next(one for one in seen.chunks if one.address <= seen.trampoline < one.address + 4096)
    size = 4096 // len(chunk.free)
    assert not chunk.free[(seen.trampoline - chunk.address) // size]
    pictures = way_pictures(found)
    assert len(film(pictures).changes) == len(found.way.moments) > 60
    assert {moment.station for moment in found.way.moments} == set(range(6))
    shown = " ".join(" ".join(text(found.steps)).split())
    assert f"{seen.process} (process {seen.pid}) makes it fire" in shown


def test_a_false_predicate_ends_the_firing(image):
    arch = catalog.arch_of(image).name
    seen = explained(image, KINST[arch], "/pid == 1/ { trace(pid); }").seen
    assert seen.count(TracerPart.PREDICATE) > 0
    assert seen.count(TracerPart.ACTION) == 0 and not seen.record


def test_fbt_emulates_the_displaced_instruction(image):
    found = explained(image, "malloc:entry")
    seen = found.seen
    assert seen.how == BREAKPOINT and seen.name == "fbt:kernel:malloc:entry"
    assert seen.count(TracerPart.TRAMPOLINE) == 0 and seen.trampoline == 0
    assert "emulated" in [step.name for step in found.steps]
    assert len(seen.record) == HEADER


def test_a_call_of_the_tracer_at_the_end_of_a_function_returns_to_its_caller(image):
    seen = explained(image, "sched:::on-cpu", hit=1).seen
    assert seen.how == CALL and len(seen.rows) < 2000
    assert seen.count(TracerPart.CODE) == 1


def test_predicates_of_several_clauses_are_told_apart(image):
    arch = catalog.arch_of(image).name
    place = f"kinst::{KINST[arch]}"
    found = explained(image, KINST[arch], "/pid == 1/ { trace(1); } "
                      f"{place} /pid == 2/ {{ trace(2); }} {place} /pid > 2/ {{ trace(3); }}")
    assert [true for _row, true in found.seen.predicates] == [False, False, True]
    steps = {step.name: step for step in found.steps}
    assert steps["predicate"].title == "The predicates are false, false, true"
    assert len(found.seen.record) == HEADER + 4


def test_a_fault_of_the_predicate_is_an_error(image):
    arch = catalog.arch_of(image).name
    found = explained(image, KINST[arch], "/ *(int *)0 == 1/ { trace(1); }")
    steps = {step.name: step for step in found.steps}
    assert steps["predicate"].title == "The predicate faults"
    assert found.seen.count(TracerPart.ERROR) > 100 and "clause" not in steps


def test_a_trampoline_that_fbt_lets_kinst_skip_is_shown_from_its_beginning(image):
    if catalog.arch_of(image).name != "arm64":
        pytest.skip("only arm64 asks the other providers after kinst")
    found = explained(image, "malloc:4")
    seen, steps = found.seen, {step.name: step for step in found.steps}
    assert seen.slot.startswith(seen.original) and seen.count(TracerPart.TRAMPOLINE) == 1
    assert steps["displaced"].title == "The trampoline is left at once"


def test_a_page_fault_of_the_displaced_instruction_is_its_own(image):
    if catalog.arch_of(image).name != "amd64":
        pytest.skip("the place is known only for amd64")
    found = explained(image, "copyout_nosmap_std:221", hit=1)
    seen = found.seen
    assert seen.rows[-1].address == seen.rows[0].address + len(seen.original)
    assert seen.count(TracerPart.CODE) > 100 and seen.count(TracerPart.TRAMPOLINE) >= 3


@pytest.mark.parametrize("probe", ["syscall::open:entry", "syscall::open:return",
                                   "vfs:namecache:lookup:hit", "sched:::on-cpu"])
def test_providers_that_the_kernel_calls_need_no_trap(image, probe):
    found = explained(image, probe, "{ trace(1); }")
    seen = found.seen
    assert seen.how == CALL
    assert seen.count(TracerPart.PROBE) > 100
    outer = [n for n, part in enumerate(seen.parts) if part is TracerPart.CODE]
    assert outer == [0, len(seen.rows) - 1]


def test_a_probe_in_a_program_is_followed_from_its_breakpoint(image):
    if catalog.arch_of(image).name != "amd64":
        pytest.skip("FreeBSD 15.0 has fasttrap only on amd64")
    seen = explained(image, "pid$target:libc.so.7:malloc:4", "{ trace(arg0); }").seen
    assert seen.how == PROGRAM and seen.process == "ls"
    assert not seen.rows[0].address >> 63 and not seen.rows[-1].address >> 63
    assert seen.count(TracerPart.TRAMPOLINE) == 2 and seen.count(TracerPart.PROVIDER) > 1000


def test_two_recordings_are_equal(image):
    one, two = (explained(image, "malloc:entry", "{ trace(timestamp); }").seen for _ in range(2))
    assert one == two


def test_the_command_writes_a_page_and_json(tmp_path):
    kernel = real_kernel("amd64")
    result = run("kinst", "explain", "-k", str(kernel.path), "--base", "--real", "malloc:8", "-c",
                 "$ ls /", "--json", "--html", str(tmp_path / "a.html"))
    assert result.returncode == 0, result.stderr
    names = [step["name"] for step in json.loads(result.stdout)["steps"]]
    page = (tmp_path / "a.html").read_text()
    assert names[0] == "patch" and all(f'id="{name}"' in page for name in names)


@pytest.mark.parametrize("words, says", [
    (("nosuch:4",), "probe description kinst::nosuch:4 does not match any probes"),
    (("malloc:8", "-n", "{ nosuch(); }"), "undefined function name: nosuch"),
    (("malloc:8", "--hit", "99999999"), "--hit 99999999: too few firings in"),
    (("malloc:8", "--cpus", "2"), "works with one CPU only"),
    (("pid$target:libc.so.7:malloc:entry", "-c", "$ sh -c 'ls /'"), "without a shell"),
])
def test_what_cannot_be_explained_is_one_line(words, says):
    kernel = real_kernel("amd64")
    refused(run("kinst", "explain", "-k", str(kernel.path), "--base", "--real", "-c", "$ ls /",
                *words), says)
