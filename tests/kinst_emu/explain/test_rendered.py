"""Tests that rendered pictures are complete, correctly placed, and match the machine."""

import re
import struct
from xml.etree import ElementTree

import pytest
import unicorn

from dtrace.calls.calls import Evaluation, parse
from emu.machine.call import Caller
from images import catalog
from images.boots import booted
from kinst.probes.breakpoints import DOUBLE, Breakpoints
from kinst.probes.kinds import ProbeKind
from kinst_emu.explain.steps.explained import Asked, explain
from kinst_emu.explain.view.firing_moments import Station
from kinst_emu.explain.view.firing_picture import PANES
from kinst_emu.explain.view.pictures import pictures_of
from tests.conftest import ARCHES, MEMORY
from tests.kinst_emu.commands.test_front import run

LETTER = 0.602  # width of a DejaVu Sans Mono letter as a fraction of the font size
# A probe that fires without a breakpoint and therefore cannot have a clause
TAIL = "tail_even:return", "tail_even(7)"
FIRINGS = {
    "amd64": [TAIL, ("tail_even+0x17", "tail_even(4)"), ("fibonacci:35", "fibonacci(5)"),
              ("strlen:16", 'strlen("hello")')],
    "arm64": [TAIL, ("tail_even:4", "tail_even(4)"), ("strlen:4", 'strlen("hello")')],
    "riscv64": [TAIL, ("tail_even:4", "tail_even(4)"), ("strlen:4", 'strlen("hello")')],
    "amd64-illumos": [("strlen:0", 'strlen("hello")')],
}
CLAUSE = "\n".join(["{", *(f"    trace(arg{n % 5} + {n});" for n in range(12)), "}"])


@pytest.fixture(params=[(arch, *one) for arch, some in FIRINGS.items() for one in some],
                ids=lambda one: f"{one[0]}-{one[1]}", scope="module")
def explained(request):
    arch, place, call = request.param
    clause = "" if (place, call) == TAIL else CLAUSE
    return explain(catalog.find(f"teaching/{arch}"), Asked(place, call, clause=clause,
                                                           memory=MEMORY))


def some(moments):
    """Select moments to test: the first three, the last, every 17th, and each change of place."""
    places = [number for number in range(1, len(moments))
              if moments[number].place is not moments[number - 1].place]
    return sorted({0, 1, 2, len(moments) - 1, *places, *range(0, len(moments), 17)})


def panes(svg):
    """Return the texts of each pane as tuples of x, y, font size, class and text."""
    found, root = {}, ElementTree.fromstring(svg)
    for pane in root.iter():
        if not pane.tag.endswith("}g") or "data-pane" not in pane.attrib:
            continue
        texts = found.setdefault(pane.attrib["data-pane"], [])
        for element, size in sized(pane, 13.0):
            if element.tag.endswith("}text") and (element.text or "").strip():
                texts.append((float(element.attrib["x"]), float(element.attrib["y"]), size,
                              element.attrib.get("class", ""), element.text))
    return found


def sized(element, size):
    style = re.search(r"font-size:([\d.]+)px", element.attrib.get("style", ""))
    size = float(style[1] if style else element.attrib.get("font-size", size))
    yield element, size
    for child in element:
        yield from sized(child, size)


def test_texts_are_not_truncated_and_stay_in_their_pane(explained):
    pictures = pictures_of(explained)
    for number in some(pictures.moments):
        svg = pictures.svg(number)
        assert "\N{HORIZONTAL ELLIPSIS}" not in svg
        for name, texts in panes(svg).items():
            for x, y, size, kind, text in texts:
                if kind == "head":
                    continue
                assert y <= PANES[name].height, (number, name, text)
                if kind != "value":  # values are right-aligned
                    assert x + len(text) * size * LETTER <= PANES[name].width + 1, (number, text)


def test_rendered_instructions_match_the_displayed_bytes(explained):
    pictures, arch = pictures_of(explained), explained.words.arch
    disassembled = 0
    for number in some(pictures.moments):
        for code in ElementTree.fromstring(pictures.svg(number)).iter():
            if code.attrib.get("class", "").split()[:1] == ["code"] and code.attrib["data-bytes"]:
                content = bytes.fromhex(code.attrib["data-bytes"])
                texts = [one.text for one in code if one.tag.endswith("}text") and one.text]
                length = arch.instruction_length(content) or len(content)
                shown = arch.disassemble(content[:length], int(code.attrib["data-address"], 16))
                assert texts[-1] in (shown, f"{int.from_bytes(content, 'little'):#x}")
                disassembled += texts[-1] == shown
    assert disassembled > len(some(pictures.moments))


def test_the_trail_names_the_code_and_the_arrow_ends_at_the_instruction(explained):
    pictures, arrows = pictures_of(explained), 0
    for number in some(pictures.moments):
        moment = pictures.moments[number]
        svg = ElementTree.fromstring(pictures.svg(number))
        trail = [text for *_xy, kind, text in panes(pictures.svg(number))["way"] if kind == "trail"]
        assert trail[0].startswith("in ") and trail[0].endswith(":")
        lit = next(one.attrib["data-station"] for one in svg.iter()
                   if one.attrib.get("class") == "station at")
        inside = 0 <= moment.pc - explained.firing.function.address < (
            explained.firing.function.size)
        if moment.place is not Station.FUNCTION or inside:
            assert lit in trail[0]
        else:
            assert explained.words.where(moment.pc) in trail[0]
        tip = next(one for one in svg.iter() if one.attrib.get("class") == "tip").attrib["d"]
        here = [(one, text) for one in svg.iter() if "here" in one.attrib.get("class", "").split()
                for text in one if text.tag.endswith("}text")]
        if tip and moment.place in (Station.FUNCTION, Station.TRAMPOLINE) and here:
            pane = PANES[moment.place.name.lower()]
            assert abs(int(re.match(r"M-?\d+ (-?\d+)", tip)[1])
                       - (pane.y + float(here[0][1].attrib["y"]))) < 10
            arrows += 1
    # After an emulated instruction, execution may continue outside the listed code.
    assert arrows or not explained.firing.slot


# -- the stack, against another machine ------------------------------------------------------------

POISON = 0xA5A5A5A5A5A5A5A5


class Witness:
    """Second execution of a firing; hooks record the bytes that each instruction stores."""

    def __init__(self, arch, place, call):
        self.machine = machine = booted(catalog.find(f"teaching/{arch}"), MEMORY)
        self.stored, self.began = [], False
        breakpoints = Breakpoints(machine, lambda probe, state: None, DOUBLE, python=True)
        function = machine.symbol(place[0])
        found = next(i for i in breakpoints.instructions(function) if i.offset == place[1])
        breakpoints.add(function, ProbeKind.OFFSET, found)
        hooks = [machine.uc.hook_add(unicorn.UC_HOOK_CODE, self._executed, begin=1, end=0),
                 machine.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, self._storing, begin=1, end=0)]
        self._at = found.address
        breakpoints.enable()
        machine.engine.flush_translations()
        Evaluation(Caller(machine, 1_000_000)).run(parse(call))
        breakpoints.disable()
        for hook in hooks:
            machine.engine.unhook(hook)

    def _executed(self, _uc, address, _size, _data):
        if address == self._at and not self.began:
            self.began = True
        if self.began:
            self.stored.append(set())

    def _storing(self, _uc, _access, physical, size, _value, _data):
        if self.began:
            self.stored[-1].update(range(physical, physical + size))


def rendered_words(svg):
    """Return the rendered value and label of each address in the stack pane."""
    found = {}
    for group in ElementTree.fromstring(svg).iter():
        if group.attrib.get("class", "").split()[:1] == ["word"] and group.attrib["data-address"]:
            texts = [one.text or "" for one in group if one.tag.endswith("}text")]
            texts = [text for text in texts if text and not text.startswith("sp")]
            found[int(texts[0], 16)] = (texts[1], texts[2] if len(texts) > 2 else "")
    return found


@pytest.mark.parametrize("arch", ARCHES)
def test_trap_frame_fields_have_values_only_after_they_are_stored(arch):
    place, call = FIRINGS[arch][-1]
    function, offset = place.split(":")
    explanation = explain(catalog.find(f"teaching/{arch}"), Asked(place, call, memory=MEMORY))
    pictures, witness = pictures_of(explanation), Witness(arch, (function, int(offset)), call)
    trap = explanation.words.trap
    saved = set()
    handled = next(n for n, one in enumerate(pictures.moments) if one.handles is not None)
    checked = 0
    for number, moment in enumerate(pictures.moments[:handled]):
        if moment.row >= 2:
            saved |= {at - at % 8 for at in witness.stored[moment.row - 1]}
        for address, (value, label) in rendered_words(pictures.svg(number)).items():
            if not label:
                continue
            physical = witness.machine.translate(address)
            by_cpu = not trap.return_register and moment.row >= 1 and (
                0 <= address - explanation.firing.rows[1].registers[explanation.words.arch.sp]
                < 8 * len(trap.saved))
            assert (value != "not written yet") == (physical in saved or by_cpu), (
                number, hex(address), label)
            checked += 1
    assert checked > 20


@pytest.mark.parametrize("arch", ARCHES)
def test_trap_frame_labels_are_absent_before_and_after_the_trap(arch):
    place, call = FIRINGS[arch][-1]
    pictures = pictures_of(explain(catalog.find(f"teaching/{arch}"),
                                   Asked(place, call, memory=MEMORY)))
    for number in (0, 1, len(pictures.moments) - 1):
        words = rendered_words(pictures.svg(number))
        assert words and not any(label for _value, label in words.values())


def test_the_word_that_a_call_pushes_is_labeled_return_address():
    explanation = explain(catalog.find("teaching/amd64"), Asked("fibonacci:35", "fibonacci(5)",
                                                         memory=MEMORY))
    pictures = pictures_of(explanation)
    words = rendered_words(pictures.svg(len(pictures.moments) - 1))
    instruction = explanation.firing.instruction
    pushed = explanation.firing.rows[0].registers["rsp"] - 8
    assert words[pushed] == (f"{instruction.address + len(instruction.code):016x}",
                             "return address")
    assert not [label for at, (_value, label) in words.items() if label and at != pushed]


# -- the text --------------------------------------------------------------------------------------

def told(arch, place, call):
    result = run("kinst", "explain", "-k", f"teaching/{arch}", place, "-c", call, "--steps")
    assert result.returncode == 0, result.stderr
    return " ".join(result.stdout.split())


@pytest.mark.parametrize("arch", ["amd64", "amd64-illumos"])
def test_the_explained_gate_and_stack_match_the_tables_in_memory(arch):
    place, call = FIRINGS[arch][-1]
    text = told(arch, place, call)
    machine = booted(catalog.find(f"teaching/{arch}"), MEMORY)
    found = re.search(
        r"vector 3\. Its gate in the interrupt descriptor table, at (0x\w+), points to (0x\w+)\. "
        r"It is .*? \(type (\d+)\).*? privilege level is (\d).*? \(IST\) index is (\d)", text)
    at, target, kind, privilege, stack = (int(one, 0) for one in found.groups())
    low, high = struct.unpack("<QQ", machine.read(at, 16))
    assert target == low & 0xFFFF | (low >> 48) << 16 | high << 32
    assert (kind, privilege, stack) == (low >> 40 & 15, low >> 45 & 3, low >> 32 & 7)
    old, new = (int(one, 16) for one in re.search(r"rsp (0x\w+) (0x\w+)", text).groups())
    saved = int(re.search(r"rip (0x\w+)", text[text.index("the CPU itself saves"):])[1], 16)
    assert saved == int(re.search(r"instruction at (0x\w+) is", text)[1], 16) + 1
    if arch == "amd64":
        assert stack == 0 and new == (old & ~15) - 40
        return
    task, top = (int(one, 16) for one in re.search(
        r"The task state segment at (0x\w+) holds its top, (0x\w+)\. ", text).groups())
    assert stack == 1 and top == machine.read_u64(task + 36) and new == top - 40
    assert f"leaves the thread's stack, at {old:#x}, and" in text


def test_the_explanation_of_a_call_shows_the_pushed_return_address():
    text = told("amd64", "fibonacci:35", "fibonacci(5)")
    value, at = re.search(
        r"The return address, (0x\w+), is stored at (0x\w+), 8 bytes below", text).groups()
    machine = booted(catalog.find("teaching/amd64"), MEMORY)
    caller = Caller(machine, 1_000_000)
    target = machine.symbol("fibonacci").address
    stop = caller.call  # the machine has no probes; a handler records the stack at each entry
    machine.handle(target, lambda: seen.append((machine.sp, machine.read_u64(machine.sp))))
    seen = []
    stop(target, [5], "fibonacci")
    assert (int(at, 16), int(value, 16)) in seen
    assert re.search(rf"\* {at} 0x\w+ 0x10 {value}", text)  # the word previously held ss
    assert "first moves the saved words down by 16 bytes" in text
