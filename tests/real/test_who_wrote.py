"""Tests that the writes that replay finds match QEMU's watchpoints."""

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
def test_the_writes_to_twenty_variables_match_qemus_watchpoints(arch, tmp_path):
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
    # Prefer words outside the stack, since words of the stack may be reused before the end.
    low = machine.sp - (16 << 10)
    variables = sorted(a for a in stored if not low <= a < low + (32 << 10))
    chosen = sorted(random.Random(7).sample(variables, min(VARIABLES, len(variables))))
    if len(chosen) < VARIABLES:  # add stack words
        extra = sorted(stored - set(variables))
        chosen += random.Random(8).sample(extra, VARIABLES - len(chosen))
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
    for (_count, pc, _address, _new), (their_pc, _at, _value) in zip(ours, theirs, strict=True):
        assert 0 <= their_pc - pc <= 15  # QEMU stops at or after the store


def contents(qemu, addresses):
    """Return the current 64-bit values at some addresses of QEMU's guest."""
    values = {address: qemu.read_u64(address) for address in addresses}
    qemu._qemu.gdb.physical(False)
    return values


def watched(machine, function, arguments, addresses):
    """Return (pc, address, value) for each change that QEMU's watchpoints report in a call."""
    arch, changes = machine.arch, []
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
            if now == known:  # arm64 and riscv64 stop before the store
                for address in addresses:
                    gdb.ask(f"z2,{address:x},8")
                gdb.step()
                qemu._qemu.registers.forget()
                now = contents(qemu, addresses)
                for address in addresses:
                    gdb.ask(f"Z2,{address:x},8")
            changes += [(pc, address, value) for address, value in now.items()
                      if value != known[address]]
            known = now
        assert qemu.pc == back, (reply, len(changes), machine.image.symbols.where(qemu.pc))
    return changes
