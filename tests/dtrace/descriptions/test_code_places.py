"""Tests that each spelling of a code place means the same instruction in every tool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtrace.debug.debug_data import Sources
from dtrace.debug.debug_index import debug_index
from dtrace.descriptions.code_places import CodePlace, code_place, code_places
from dtrace.run.kernel import KernelSymbols
from emu.elf.image import load_image
from emu.host.errors import KinstError
from images import catalog
from tests.conftest import ARCHES
from tests.elfwriter import Elf


@pytest.fixture(scope="module", params=ARCHES)
def image(request):
    return catalog.find(f"teaching/{request.param}")


def second(image):
    """Return the place of the second instruction of strlen."""
    (symbol,) = image.symbols.named("strlen")
    return CodePlace(symbol, {"amd64": 1, "arm64": 4, "riscv64": 2}[
        image.path.parent.name])


def spellings(place):
    name, offset, address = place.function.name, place.offset, place.address
    return [f"{name}+{offset:#x}", f"{name}+{offset}", f"{name}:{offset}", f"{name}:{offset:#x}",
            f"{address:#x}", f"kernel`{name}+{offset:#x}", f"kinst::{name}:{offset}",
            f"kinst:kernel:{name}:{offset:#x}"]


def test_every_spelling_means_the_same_instruction(image):
    place = second(image)
    for text in spellings(place):
        assert code_places(image, text) == [place], text
    assert str(place) in spellings(place)


def test_a_source_line_resolves_to_every_start_of_its_code(image):
    sources = Sources(image)
    found = code_places(image, "lesson.c:18")
    assert found == code_places(image, "lesson.c@18") == code_places(image, "kinst::lesson.c@18:")
    # The line is inlined into several functions.
    assert len({place.function.name for place in found}) > 3
    assert all(sources.line(place.address).endswith("lesson.c:18") for place in found)


def test_entries_of_an_inline_function_are_the_entries_of_its_copies(image):
    places = code_places(image, "charge:entry")
    assert len(places) == len(debug_index(image).copies("charge"))
    names = {place.function.name for place in places}
    assert "charge" not in names and "account" in names
    assert set(places) <= set(code_places(image, "*arg*:entry"))


def test_a_line_that_only_makes_inlined_calls_resolves_to_their_entries(image):
    index, sources = debug_index(image), Sources(image)
    copies = index.copies("charge")
    assert len(copies) == 5
    for copy in copies:
        line = sources.call(index, copy)
        caller = {place.function for place in code_places(image, line)}
        assert image.symbols.function_at(copy.pieces[0][0]) in caller


def test_a_place_that_cannot_be_resolved_raises_a_clear_error(image):
    for text, says in (
            ("", "not a place in code"), ("strlen+0x", "not a place in code"),
            ("strlen:0x10000", "ends at offset"),
            ("charge", "inline copies"), ("charge:0", "inline copies"),
            ("strlne:4", "did you mean strlen"), ("lesson.c:1", "the nearest lines with code"),
            ("nosuch.c:4", "no source file is named nosuch.c"),
            ("0x10", "no function contains this address"), ("nosuch*:entry", "no function"),
            ("syscall::open:entry", "give a kinst or fbt probe of a function"),
            ("nomodule`strlen+0x4", "the module nomodule has no function 'strlen'")):
        with pytest.raises(KinstError, match=says.replace("(", r"\(")) as error:
            code_places(image, text)
        assert "\n" not in str(error.value)
    with pytest.raises(KinstError, match=r"matches \d places; choose one of"):
        code_place(image, "charge:entry")


@given(text=st.text(alphabet="strlen:+@`*?[]0x14.c/ -", max_size=20))
def test_arbitrary_text_resolves_or_raises_an_error(text):
    image = catalog.find("teaching/amd64")
    try:
        assert code_places(image, text)
    except KinstError as error:
        assert str(error)


def test_a_jump_into_the_cold_part_of_a_function_is_not_a_return(tmp_path):
    code = bytes.fromhex("7403 c3 90 90 83c701 c3")  # 0: je 5; 2: ret; 5: the cold part
    path = tmp_path / "kernel"
    path.write_bytes(Elf(entry=0x1000, segments=[(0x1000, code, len(code))], symbols=[
        ("f", 0x1000, 5, 2), ("f.cold", 0x1005, 4, 2)]).build())
    assert [str(place) for place in code_places(load_image(path), "f:return")] == ["f+0x2"]


def test_data_symbols_are_named_like_code_symbols(image):
    symbols = KernelSymbols(image)
    variable = image.symbols.find("kept")
    assert symbols.symbol(variable.address + 1) == "kernel`kept"
    assert symbols.address(variable.address) == "kernel`kept"
    assert symbols.address(variable.address + 1) == "kernel`kept+0x1"
    assert symbols.start("sym", variable.address + 1) == variable.address
    assert symbols.module(variable.address) == "kernel"
    assert symbols.symbol(5) == symbols.address(5) == "0x5"
