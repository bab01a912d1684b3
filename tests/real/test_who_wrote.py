"""Who wrote, on FreeBSD: held to watchpoints that QEMU sets through gdb's protocol."""

import random

import pytest

from dtrace.flow.steps import steps
from emu.machine.call import Caller
from emu.qemu.machine import QemuMachine
from emu.replay.player import Player
from emu.replay.recording import Recorder, Recording
from emu.replay.starts import BOOTED
from emu.replay.writes import last_write, physical_of
from images import boots
from images.recordings import machine_at
from tests.conftest import ARCHES, real_kernel

VARIABLES = 20


@pytest.mark.parametrize("arch", ARCHES)
def test_the_writes_to_twenty_variables_are_those_of_qemu_s_watchpoints(arch, tmp_path):
    image, path = real_kernel(arch), tmp_path / "call.rec"
    machine = boots.booted(image)
    machine.console.text.clear()
    symbols = image.symbols
    malloc, arguments = symbols.find("malloc"), [5000, symbols.find("M_TEMP").address, 2]
    before = machine.snapshot()
    with Recorder(machine, path, BOOTED, "malloc"):
        Caller(machine).call_symbol(malloc, arguments)
    recording = Recording(path)
    player = Player(recording, machine_at(recording.start, image))
    player.give()
    stored = {address & -8 for piece in steps(player, recording.last, False, True)
              if not isinstance(piece, bytes) for s in piece
              for address, _physical, _data in s.stores if address is not None}
    # The kernel's variables, in its image or its memory; its stack holds other things by the end.
    low = machine.sp - (16 << 10)
    variables = sorted(a for a in stored if not low <= a < low + (32 << 10))
    chosen = sorted(random.Random(7).sample(variables, min(VARIABLES, len(variables))))
    if len(chosen) < VARIABLES:  # and of the stack, what is written often
        more = sorted(stored - set(variables))
        chosen += random.Random(8).sample(more, VARIABLES - len(chosen))
    player.advance_to_end()
    ours = []
    for address in chosen:
        position, physical = recording.last, physical_of(player, address)
        while (write := last_write(player, physical, 8, position)) is not None:
            position = write.position
            if write.pc is None:
                break
            if write.new != write.old:
                ours.append((position.instructions, write.pc, address,
                             int.from_bytes(write.new, "little")))
    ours.sort()
    machine.restore(before)
    theirs = watched(machine, malloc.address, arguments, chosen)
    assert len({address for _count, _pc, address, _new in ours}) >= VARIABLES // 2
    assert [(address, new) for _count, _pc, address, new in ours] == [
        (address, new) for _pc, address, new in theirs]
    for (_count, pc, _address, _new), (there, _at, _value) in zip(ours, theirs, strict=True):
        assert 0 <= there - pc <= 15  # QEMU stands at the store, or behind it


def contents(qemu, addresses):
    found = {address: qemu.read_u64(address) for address in addresses}
    qemu._qemu.gdb.physical(False)
    return found


def watched(machine, function, arguments, addresses):
    """(pc, address, value) of each change that QEMU's watchpoints see in a call."""
    arch, found = machine.arch, []
    with QemuMachine.carry(machine) as qemu:
        back = machine.guest.entry_address(machine.image)
        caller = Caller(qemu)
        qemu.write_register(arch.sp, caller._room.free)
        arch.prepare_call(qemu, tuple(arguments), back)
        qemu.pc = function
        gdb = qemu._qemu.gdb
        known = contents(qemu, addresses)
        gdb.insert(back, qemu.board.breakpoint_kind)
        for address in addresses:
            gdb.ask(f"Z2,{address:x},8")
        for _ in range(5000):
            reply = gdb.go()
            qemu._qemu.registers.forget()
            if "watch:" not in reply:
                break
            pc = qemu.pc
            now = contents(qemu, addresses)
            if now == known:  # it stands before the store (arm64, riscv64)
                for address in addresses:
                    gdb.ask(f"z2,{address:x},8")
                gdb.step()
                qemu._qemu.registers.forget()
                now = contents(qemu, addresses)
                for address in addresses:
                    gdb.ask(f"Z2,{address:x},8")
            found += [(pc, address, value) for address, value in now.items()
                      if value != known[address]]
            known = now
        assert qemu.pc == back, (reply, len(found), machine.image.symbols.where(qemu.pc))
    return found
