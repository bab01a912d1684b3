"""Tests of static (SDT) probes with linker sets built in the layout of sdt.h on LP64."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emu.elf.image import load_image
from emu.guest.static_probe import StaticProbeError, Tracepoint
from emu.guests.freebsd.static_probes import static_probes
from emu.host.errors import MemoryAccessError
from tests.elfwriter import Elf

BASE = 0xFFFFFFFF80000000
SIZE = 1 << 16
SETS = ("providers", "probes", "argtypes", "tracepoint")


class Memory:
    def __init__(self):
        self.data, self.used = bytearray(SIZE), 64

    def read(self, address, size):
        at = address - BASE
        if at < 0 or size < 0 or at + size > SIZE:
            raise MemoryAccessError(f"{address:#x} is not mapped")
        return bytes(self.data[at : at + size])

    def put(self, data):
        at = self.used
        self.data[at : at + len(data)] = data
        self.used += len(data) + 7 & ~7
        return BASE + at

    def text(self, text):
        return self.put(text.encode() + b"\0")


def built(tmp_path, declared, size=112):
    """Build a kernel with linker sets and return (image, memory).

    :param declared: (provider, module, function, name, [(type, translated)], [(address, target)]).
    """
    memory = Memory()
    providers, sets = {}, {name: b"" for name in SETS}
    for provider, module, function, name, arguments, points in declared:
        if provider not in providers:
            providers[provider] = memory.put(struct.pack("<5Q", memory.text(provider), 0, 0, 0, 0))
            sets["providers"] += struct.pack("<Q", providers[provider])
        probe = memory.put(struct.pack(
            "<i4x10Qqi4xQ", size, providers[provider], *[0] * 6, memory.text(module),
            memory.text(function), memory.text(name), 0, 0, 0))
        sets["probes"] += struct.pack("<Q", probe)
        # The linker puts argument types into the set in no particular order.
        for index, (kind, translated) in reversed(list(enumerate(arguments))):
            sets["argtypes"] += struct.pack("<Q", memory.put(struct.pack(
                "<i4x5Q", index, memory.text(kind), memory.text(translated) if translated else 0, 0,
                0, probe)))
        for address, target in points:
            sets["tracepoint"] += struct.pack("<4Q", probe, address, target, 0)
    symbols = [("start", 0x1000, 1, 2)]
    for name, content in sets.items():
        begin = memory.put(content)
        symbols += [(f"__start_set_sdt_{name}_set", begin, 0, 0),
                    (f"__stop_set_sdt_{name}_set", begin + len(content), 0, 0)]
    path = tmp_path / "kernel"
    path.write_bytes(Elf(symbols=symbols).build())
    return load_image(path), memory


EXEC = ("proc", "", "", "exec__success", [("char *", "")], [(0x1000, 0x2000)])
START = ("io", "", "", "start",
         [("struct bio *", "bufinfo_t *"), ("struct devstat *", "devinfo_t *")],
         [(0x1010, 0x2010), (0x1020, 0x2020)])
LOOKUP = ("vfs", "namei", "lookup", "entry", [], [])


def test_probes_have_dtrace_names_ordered_arguments_and_tracepoints(tmp_path):
    success, start, lookup = static_probes(*built(tmp_path, [EXEC, START, LOOKUP]))
    assert (success.provider, success.module, success.function, success.name) == (
        "proc", "kernel", "none", "exec-success")
    assert [a.type for a in success.arguments] == ["char *"]
    assert success.tracepoints == (Tracepoint(0x1000, 0x2000),)
    assert [(a.type, a.translated) for a in start.arguments] == START[4]
    assert [t.target for t in start.tracepoints] == [0x2010, 0x2020]
    assert (lookup.module, lookup.function, lookup.arguments, lookup.tracepoints) == (
        "namei", "lookup", (), ())


def test_a_kernel_without_linker_sets_has_no_static_probes(tmp_path):
    path = tmp_path / "kernel"
    path.write_bytes(Elf().build())
    assert static_probes(load_image(path), Memory()) == []


def test_probes_with_an_unknown_layout_are_refused(tmp_path):
    with pytest.raises(StaticProbeError, match="a static probe has 120 bytes instead of 112"):
        static_probes(*built(tmp_path, [EXEC], size=120))


@pytest.mark.parametrize(("index", "said"), [(7, "argument number 7"), (-1, "number -1"),
                                             (3, r"consecutive: \[0, 3\]")])
def test_argument_numbers_with_gaps_are_refused(tmp_path, index, said):
    image, memory = built(tmp_path, [START])
    begin = image.symbols.find("__start_set_sdt_argtypes_set").address - BASE
    (first,) = struct.unpack_from("<Q", memory.data, begin)
    struct.pack_into("<i", memory.data, first - BASE, index)  # replaces the index 1
    with pytest.raises(StaticProbeError, match=said):
        static_probes(image, memory)


def test_reading_the_probes_of_an_unstarted_kernel_is_reported(tmp_path):
    image, memory = built(tmp_path, [EXEC])
    begin = image.symbols.find("__start_set_sdt_probes_set").address - BASE
    # The kernel sets this word when it relocates itself.
    struct.pack_into("<Q", memory.data, begin, 0)
    with pytest.raises(StaticProbeError, match="boot the kernel first"):
        static_probes(image, memory)


def test_an_unterminated_name_is_refused(tmp_path):
    image, memory = built(tmp_path, [EXEC])
    memory.data[SIZE - 4096 :] = b"x" * 4096
    begin = image.symbols.find("__start_set_sdt_providers_set").address - BASE
    (provider,) = struct.unpack_from("<Q", memory.data, begin)
    struct.pack_into("<Q", memory.data, provider - BASE, BASE + SIZE - 4096)
    with pytest.raises(StaticProbeError, match="not terminated"):
        static_probes(image, memory)


@given(st.integers(0, SIZE - 1), st.binary(min_size=1, max_size=16))
def test_reading_damaged_linker_sets_succeeds_or_raises_an_error(tmp_path_factory, at, garbage):
    image, memory = built(tmp_path_factory.mktemp("damaged"), [EXEC, START, LOOKUP])
    memory.data[at % memory.used : at % memory.used + len(garbage)] = garbage
    try:
        assert len(static_probes(image, memory)) == 3
    except StaticProbeError as error:
        assert "\n" not in str(error)
