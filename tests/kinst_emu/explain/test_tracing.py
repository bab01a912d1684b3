"""Tests of explained firings of the kernel's own tracer, on a recording made by hand."""

import asyncio
import re

import pytest

from emu.guest.tracer import TracerPart
from emu.guests.registry import guest_of, guests
from emu.host.errors import KinstError
from images import catalog
from images.guest_tracer import said
from kinst.relocation.trap import trap_of
from kinst_emu.explain.record.instruction import SeenInstruction
from kinst_emu.explain.record.seen_tracing import BREAKPOINT, CALL, SeenTracing
from kinst_emu.explain.record.tracer_memory import SeenChunk, SeenEcb
from kinst_emu.explain.record.tracer_parts import Calls, set_apart
from kinst_emu.explain.steps.explained import ExplainedWay, words_of
from kinst_emu.explain.steps.explained_tracing import probe_of, tracer_of
from kinst_emu.explain.steps.step import Table
from kinst_emu.explain.steps.tracing_steps import ABOUT, tracing_steps
from kinst_emu.explain.steps.tracing_way import tracing_way
from kinst_emu.explain.view.film import film
from kinst_emu.explain.view.page import page
from kinst_emu.explain.view.pictures import Pictures
from kinst_emu.explain.view.terminal import WayStepper
from kinst_emu.explain.view.text import text
from kinst_emu.explain.view.way_picture import way_layout
from kinst_emu.explain.view.way_scenes import WayScenes
from tests.conftest import ARCHES
from tests.kinst_emu.commands.test_commands import refused, run
from tests.kinst_emu.explain.test_terminal import plain

FRAME, RECORD, SLOT = 0x9000, 0xB000, 0xFFFFFFFF00001020
CHUNK = SLOT & -4096


def freebsd(arch):
    """Return the description of FreeBSD's DTrace."""
    return guests(arch)[-1].probes.tracer


def recorded(arch, how=BREAKPOINT, trampoline=True):
    """Return a firing with two instructions of each part, and the words of its kernel."""
    image = catalog.find(f"teaching/{arch}")
    words, guest = words_of(image), guest_of(image, arch)
    function, other = image.symbols.find("strlen"), image.symbols.find("strtoul")
    trap = trap_of(guest, arch)
    seen = SeenTracing("ls /", 1, how, process="ls", pid=7, probe=73, name="kinst:kernel:strlen:4",
                       ecbs=[SeenEcb(1, 12, 0x1000, ("an expression", "count()"))])
    parts = [TracerPart.TRAP, TracerPart.PROVIDER, TracerPart.PROBE, TracerPart.PREDICATE,
             TracerPart.ACTION, TracerPart.COPY, TracerPart.TRAMPOLINE]
    if how == CALL:
        parts = parts[1:5]
    elif not trampoline:
        parts = [*parts[:5], TracerPart.TRAP]
    seen.parts = [TracerPart.CODE, *(part for part in parts for _ in range(2)), TracerPart.CODE]
    for number, part in enumerate(seen.parts):
        address = (function.address + 4 * bool(number) if part is TracerPart.CODE
                   else SLOT + 4 * (number % 2) if part is TracerPart.TRAMPOLINE
                   else other.address + 2 * number)
        code = trap.guest_breakpoint.code if number == 0 else b"\x90\x00\x00\x00"
        registers = dict.fromkeys(words.arch.registers, number) | {words.arch.pc: address}
        seen.rows.append(SeenInstruction(address, code, registers))
        seen.functions.append("" if part in (TracerPart.TRAP, TracerPart.TRAMPOLINE)
                              else "strlen" if part is TracerPart.CODE else f"f_{part.value}")
        seen.stored.append({})
    seen.fired = seen.parts.index(TracerPart.PROBE)
    # A record of ECB 1, after padding, and one of the ERROR probe
    seen.record_at, seen.record = RECORD, bytes.fromhex("00000000 01000000" + "aa" * 8 + "07000000"
                                                        + "bb" * 12)
    seen.predicates = [(seen.parts.index(TracerPart.PREDICATE) + 2, True)]
    frame = range(FRAME, FRAME + guest.traps.trap_frame.size, 8)
    if how != CALL:
        seen.frame, seen.handled, seen.original = FRAME, 2, b"\x90\x00\x00\x00"
        seen.stored[0] = dict.fromkeys(frame, 0)
        seen.stored[2] = {at: number for number, at in enumerate(frame)}
        if trampoline:
            seen.trampoline, seen.slot = SLOT, b"\x90" * 8
            seen.chunks = [SeenChunk(CHUNK, (False, False, True, False, *([True] * 60)))]
            seen.stored[0] |= {SLOT: 0}
    seen.stored[0] |= {RECORD: 0, RECORD + 8: 0}
    return seen, words



def cells(step):
    """Return the tables of a step by the first column's heading."""
    return {part.heads[0]: part.rows for part in step.parts if isinstance(part, Table)}


@pytest.mark.parametrize("arch", ARCHES)
def test_the_numbers_of_the_steps_are_those_of_the_recording(arch):
    seen, words = recorded(arch)
    steps = {step.name: step for step in tracing_steps(seen, freebsd(arch), words)}
    assert list(steps) == ["patch", "exception", "vector", "frame", "lookup", "probe",
                           "predicate", "clause", "record", "trampoline", "displaced", "after",
                           "cost"]
    assert cells(steps["cost"])["part"] == (
        *((part.value, "2", about) for part, about in ABOUT.items()
          if part is not TracerPart.ERROR), ("total", "14", ""))
    assert cells(steps["patch"])["ECB"] == (("1", "yes", "an expression, count()"),)
    frame = cells(steps["frame"])["address"]
    name, (offset, size) = next(iter(words.guest.traps.trap_frame.fields.items()))
    assert frame[0] == (f"{FRAME + offset:#x}", name, f"{offset // 8 & (1 << 8 * size) - 1:#x}")
    assert [row[1:] for row in cells(steps["record"])["address"]] == [
        ("00 00 00 00", "....", "padding"),
        ("01 00 00 00 aa aa aa aa", "........", "ECB 1, time"),
        ("aa aa aa aa", "....", "ECB 1, time"),
        ("07 00 00 00 bb bb bb bb", "........", "ECB 7, time"),
        ("bb bb bb bb", "....", "ECB 7, time"), ("bb bb bb bb", "....", "values of ECB 7")]
    assert steps["predicate"].title == "The predicate is true"
    assert cells(steps["trampoline"])["number"][0] == (
        "0", "##.#.... ........ ........ ........")
    assert f"number {(SLOT - CHUNK) // freebsd(arch).chunks.trampoline} of" in (
        steps["trampoline"].parts[0])
    lines = "\n".join(text(list(steps.values())))
    assert "ls (process 7) makes it fire" in lines.replace("\n    ", " ")
    assert lines.count("f_predicate") == 2 and "None" not in lines


def test_a_fault_of_the_predicate_is_not_a_false_predicate():
    seen, words = recorded("amd64")
    seen.predicates = [(9, False)]
    seen.parts = [TracerPart.ERROR if part is TracerPart.ACTION else part for part in seen.parts]
    steps = {step.name: step for step in tracing_steps(seen, freebsd("amd64"), words)}
    assert steps["predicate"].title == "The predicate faults" and "clause" not in steps
    assert "the probe ERROR fires: 2 instructions" in steps["error"].parts[0]


def test_an_exception_in_the_trampoline_is_not_counted_as_the_tracers():
    seen, _words = recorded("amd64")
    at = seen.parts.index(TracerPart.TRAMPOLINE) + 1
    for rows in (seen.rows, seen.functions):
        rows[at:at] = rows[1:3]
    seen.parts[at:at] = [TracerPart.TRAP] * 2
    set_apart(seen, {b"\xcc"})
    assert seen.parts[at - 1 :] == [TracerPart.TRAMPOLINE, TracerPart.CODE, TracerPart.CODE,
                                    TracerPart.TRAMPOLINE, TracerPart.CODE]


def test_an_emulated_instruction_has_no_trampoline():
    seen, words = recorded("arm64", trampoline=False)
    steps = [step.name for step in tracing_steps(seen, freebsd("arm64"), words)]
    assert "emulated" in steps and "trampoline" not in steps and "displaced" not in steps


def test_a_call_of_the_tracer_has_neither_an_exception_nor_a_trap_frame():
    seen, words = recorded("amd64", CALL)
    steps = {step.name: step for step in tracing_steps(seen, freebsd("amd64"), words)}
    assert list(steps) == ["patch", "lookup", "probe", "predicate", "clause", "record",
                           "after", "cost"]
    assert "calls the tracer" in steps["patch"].parts[-1]


@pytest.mark.parametrize("arch", ARCHES)
def test_the_film_passes_all_parts_and_the_page_shows_the_numbers(arch):
    seen, words = recorded(arch)
    steps = tracing_steps(seen, freebsd(arch), words)
    way = tracing_way(seen, steps, words)
    assert {moment.station for moment in way.moments} == set(range(6))
    numbers = [number for number, _step in way.steps]
    assert numbers == sorted(numbers)
    pictures = Pictures(WayScenes(way, words), way_layout(way))
    shown = page("title", "about", steps, pictures.of_steps(), None)
    last = shown[shown.index('id="cost"'):]
    assert re.search(r"<mark>total</mark>.*?<mark>14</mark>", last, re.DOTALL), last
    assert len(film(pictures).changes) == len(way.moments)
    assert any("trampoline" in names for names in way.labels.values())


def test_functions_are_left_when_an_address_inside_a_caller_is_reached():
    image = catalog.find("teaching/amd64")
    one, two = (image.symbols.find(name) for name in ("strlen", "strtoul"))
    calls = Calls(image.symbols.function_at)
    for address, depth in ((one.address, 0), (one.address + 1, 0), (two.address, 1),
                           (8, 1), (one.address + 2, 0), (one.address, 0), (two.address, 1)):
        assert calls.enter(address) == depth
    assert [function.name for function in calls.functions] == ["strlen", "strtoul"]


def test_places_become_probe_descriptions():
    tracer = freebsd("amd64")
    assert probe_of("malloc:8", tracer) == "kinst::malloc:8"
    assert probe_of("malloc:return", tracer) == "fbt::malloc:return"
    assert probe_of("syscall::open:entry", tracer) == "syscall::open:entry"
    for place in ("malloc", "a:b:c", "", "malloc:8 x"):
        with pytest.raises(KinstError, match="not a place; give FUNCTION:OFFSET"):
            probe_of(place, tracer)


def test_messages_of_the_tracer_are_one_line():
    assert said(b"dtrace: no\r\n  match\r\n[1] + Done(1)   dtrace ...\r\n") == "dtrace: no match"
    assert said(b"") == "dtrace(1) has ended"


def test_a_kernel_without_a_known_tracer_is_refused():
    image = catalog.find("teaching/amd64")
    with pytest.raises(KinstError, match="this kernel's own tracer is not known"):
        tracer_of(image)


@pytest.mark.parametrize("words, says", [
    (("strlen:4", "-c", "f()"), "--real: needs a command that makes the probe fire"),
    (("strlen:4", "-c", "$ ls"), "give --base"),
    (("strlen:4", "--of", "page-fault", "-c", "$ ls"), "leave out --of page-fault"),
    (("strlen:4", "-c", "$ ls", "--base", "--what-if", "copy"), "--what-if: cannot be combined"),
    (("strlen:4", "-c", "$ ls", "--base"), "this kernel's own tracer is not known"),
])
def test_real_refuses_what_it_cannot_explain(words, says):
    refused(run("kinst", "explain", "-k", "teaching/amd64", "--real", *words), says)


def test_the_terminal_shows_each_step_and_each_moment_of_a_path():
    seen, words = recorded("riscv64")
    steps = tracing_steps(seen, freebsd("riscv64"), words)
    explained = ExplainedWay(catalog.find("teaching/riscv64"), "a firing", "ls /",
                             tracing_way(seen, steps, words), steps, words)
    app = WayStepper(explained)

    async def walk():
        async with app.run_test(size=(160, 50)) as pilot:
            titles = []
            for _ in steps:
                titles.append(plain(app, "title"))
                await pilot.press("n")
            await pilot.press("g", *"frame", "enter", "full_stop")
            await pilot.pause()
            return titles, {name: plain(app, name) for name in
                            ("title", "place", "words", "registers", "way")}

    titles, panes = asyncio.run(walk())
    assert all(f"{number}/{len(steps)}  {step.title}" in title
               for number, (step, title) in enumerate(zip(steps, titles, strict=True), 1))
    assert "instruction" in panes["title"] and panes["place"].startswith("pc 0x")
    assert f"0x{FRAME:016x}"[2:] in panes["words"] and "trampoline" in panes["way"]
    assert "zero" in panes["registers"]
