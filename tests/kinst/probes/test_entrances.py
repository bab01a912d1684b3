"""Tests of the entry addresses of inline copies, in functions of a few instructions."""

import dataclasses

import pytest

from dwarf.index import Function
from emu.arch.architectures import ARCHITECTURES
from emu.elf.image import load_image
from emu.guests.registry import guest_of
from kinst.code.stack_depth import stack_depths
from kinst.probes.dispatcher import new_dispatcher
from kinst.providers.inline import Entrances
from kinst.relocation.trap import trap_of
from tests.elfwriter import Elf

BASE = 0x1000
# The comments give offsets in hexadecimal.  An inline copy consists of the instructions that add to
# edi, a0 or x0, and of the padding before them.
CASES = {
    "padding": ("amd64", """
        83ff01      # 0 cmp edi, 1
        7404        # 3 je 9
        c3          # 5 ret
        6690 90     # 6 nop; nop
        83c702      # 9 add edi, 2
        c3""", [(6, 12)], [9]),
    "several bytes of padding": ("amd64", """
        750c                    # 0 jne e
        ebfe                    # 2 jmp 2
        660f1f840000000000 90   # 4
        83c702                  # e add edi, 2
        c3""", [(4, 0x11)], [0xE]),
    "two ways in": ("amd64", """
        83ff01      # 0 cmp edi, 1
        7403        # 3 je 8
        83c702      # 5 add edi, 2
        83c703      # 8 add edi, 3
        c3""", [(5, 11)], [5, 8]),
    "a second piece after other code": ("amd64", """
        83c701      # 0 add edi, 1
        83c601      # 3 add esi, 1
        83c702      # 6 add edi, 2
        c3""", [(0, 3), (6, 9)], [0]),
    "pieces of two branches": ("amd64", """
        7405        # 0 je 7
        83c701      # 2 add edi, 1
        eb03        # 5 jmp a
        83c702      # 7 add edi, 2
        c3""", [(2, 5), (7, 10)], [2, 7]),
    "a loop": ("amd64", """
        83c601      # 0 add esi, 1
        83c701      # 3 add edi, 1
        75fb        # 6 jne 3
        c3""", [(3, 8)], [3]),
    "a table of addresses": ("amd64", """
        7503        # 0 jne 5
        83c701      # 2 add edi, 1
        ffe0        # 5 jmp rax
        90          # 7 nop
        83c702      # 8 add edi, 2
        c3""", [(2, 5), (7, 11)], [2, 8]),
    "a return in place of the table": ("amd64", """
        7503        # 0 jne 5
        83c701      # 2 add edi, 1
        c3 90       # 5 ret; nop
        90          # 7 nop
        83c702      # 8 add edi, 2
        c3""", [(2, 5), (7, 11)], [2]),
    "a switch of its own": ("amd64", """
        83c701      # 0 add edi, 1
        ffe0        # 3 jmp rax
        83c702      # 5 add edi, 2
        c3          # 8 ret
        83c703      # 9 add edi, 3
        c3""", [(0, 8), (9, 12)], [0]),
    "after unreachable code": ("amd64", """
        c3 90       # 0 ret; nop
        83c701      # 2 add edi, 1
        c3""", [(1, 5)], [2]),
    "a loop behind padding": ("amd64", """
        83c601      # 0 add esi, 1
        90          # 3 nop
        83c701      # 4 add edi, 1
        75fb        # 7 jne 4
        c3""", [(3, 9)], [4]),
    "a loop behind padding, arm64": ("arm64", """
        00040091    # 0 add x0, x0, #1
        1f2003d5    # 4 nop
        00040091    # 8 add x0, x0, #1
        e0ffffb5    # c cbnz x0, 8
        c0035fd6""", [(4, 16)], [8]),
    "a loop behind padding, riscv64": ("riscv64", """
        0505        # 0 addi a0, a0, 1
        0100        # 2 nop
        0505        # 4 addi a0, a0, 1
        e31f05fe    # 6 bnez a0, 4
        8280""", [(2, 10)], [4]),
    "padding to the end of the copy": ("amd64", """
        83c601      # 0 add esi, 1
        90          # 3 nop
        83c701      # 4 add edi, 1
        c3""", [(3, 4)], [3]),
    "only padding": ("amd64", "c3 90 90 c3", [(1, 3)], [1]),
    "padding, riscv64": ("riscv64", """
        63040500    # 0 beqz a0, 8
        8280        # 4 ret
        0100        # 6 nop
        0505        # 8 addi a0, a0, 1
        8280""", [(6, 10)], [8]),
    "a far jump, riscv64": ("riscv64", """
        97000000    # 0 auipc ra, 0
        17030000    # 4 auipc t1, 0
        6700a300    # 8 jr t1 + 10, to e
        0505        # c addi a0, a0, 1
        0505        # e addi a0, a0, 1
        8280""", [(12, 16)], [14]),
    "padding, arm64": ("arm64", """
        600000b4    # 0 cbz x0, c
        c0035fd6    # 4 ret
        1f2003d5    # 8 nop
        00040091    # c add x0, x0, #1
        c0035fd6""", [(8, 16)], [12]),
}


def image_of(tmp_path, arch, text, name="f"):
    code = bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))
    path = tmp_path / "kernel"
    path.write_bytes(Elf(arch=arch, entry=BASE, segments=[(BASE, code, len(code))],
                         symbols=[(name, BASE, len(code), 2)]).build())
    return load_image(path)


def copy_of(pieces, begins=None):
    ranges = tuple((BASE + low, BASE + high) for low, high in pieces)
    made = Function(0, "tiny", ranges, None, True, 0, 0, 0, 0)
    return made if begins is None else dataclasses.replace(made, begins=BASE + begins)


@pytest.mark.parametrize("case", CASES)
def test_an_inline_copy_is_entered_where_control_reaches_it(tmp_path, case):
    arch, text, pieces, wanted = CASES[case]
    found = Entrances(image_of(tmp_path, arch, text)).of(copy_of(pieces))
    assert [at - BASE for at in found] == wanted


def test_an_entry_address_in_the_debug_data_is_the_only_entry(tmp_path):
    arch, text, pieces, _wanted = CASES["two ways in"]
    found = Entrances(image_of(tmp_path, arch, text)).of(copy_of(pieces, begins=8))
    assert [at - BASE for at in found] == [8]


def test_a_cold_part_is_entered_at_each_of_its_pieces(tmp_path):
    text = """
        83c701      # 0 add edi, 1
        c3          # 3 ret
        83c702      # 4 add edi, 2
        c3"""
    for name, wanted in (("f", [0]), ("f.cold", [0, 4])):
        found = Entrances(image_of(tmp_path, "amd64", text, name)).of(copy_of([(0, 3), (4, 7)]))
        assert [at - BASE for at in found] == wanted


def test_stack_depths_are_known_on_all_paths_from_the_start(tmp_path):
    text = """
        7407            # 0 je 9
        55              # 2 push rbp
        e800000000      # 3 call
        5d              # 8 pop rbp
        83c701          # 9 add edi, 1
        4883ec18        # c sub rsp, 0x18
        c9              # 10 leave
        90              # 11 not known
        c3"""
    image = image_of(tmp_path, "amd64", text)
    code = bytes(image.segments[0].data)
    arch = ARCHITECTURES["amd64"]
    guest = guest_of(image, "amd64")
    dispatcher, _templates = new_dispatcher(
        arch, trap_of(guest, "amd64"), guest.traps.trap_frame, None)
    found = stack_depths(arch, code, dispatcher.ways(BASE, code, 0, len(code)))
    assert found == {0: 0, 2: 0, 3: 8, 8: 8, 9: 0, 0xC: 0, 0x10: 0x18}
