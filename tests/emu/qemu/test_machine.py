"""Tests of the QEMU machine with the teaching kernels."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dtrace.calls.calls import Evaluation, parse
from emu.host.errors import MachineError, MemoryAccessError
from emu.machine import machine as machines
from emu.machine.call import Caller
from emu.machine.machine import StopReason, Until
from emu.qemu.boards import BOARDS
from emu.qemu.machine import QemuMachine
from emu.qemu.process import IF_OURS

MEMORY = 64 << 20


def children():
    """Return the process IDs of the QEMU processes that this process started."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if f" {os.getpid()} " in text and "(qemu-system" in text:
            found.add(int(status.parent.name))
    return found


def gone(process, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_a_kernel_in_qemu_boots_and_prints_the_same_as_in_unicorn(image, booted):
    with QemuMachine.boot(image, MEMORY) as machine:
        stop = machine.run(Until(console="teaching> "))
        assert stop.reason is StopReason.CONSOLE
        machine.type(b"strings\r")
        assert machine.run(Until(console="teaching> ")).reason is StopReason.CONSOLE
        text = bytes(machine.console.text)
    booted.type(b"strings\r")
    booted.run(Until(console="teaching> "))
    ours = bytes(booted.console.text)
    assert text[text.index(b"The teaching"):] == ours[ours.index(b"The teaching"):]


def test_a_state_carried_to_qemu_has_the_same_registers_and_memory(booted):
    snapshot = booted.snapshot()
    with QemuMachine.carry(booted, snapshot) as machine:
        assert machine.registers() == booted.registers()
        assert machine.changed(snapshot.memory) == []
        for name in ("strlen", "kernel_main"):
            address = booted.symbol(name).address
            assert machine.translate(address) == booted.translate(address)
            assert machine.read(address, 64) == booted.read(address, 64)


def test_both_machines_execute_a_call_from_the_same_state(booted):
    program = parse('strtoul("1234zz", 0, 10); fibonacci(10)')
    with QemuMachine.carry(booted) as machine:
        before = machine.registers()
        assert Evaluation(Caller(machine)).run(program) == 55
        assert machine.registers() == before
    assert Evaluation(Caller(booted)).run(program) == 55


def test_execution_stops_at_addresses_and_calls_handlers(booted):
    strlen = booted.symbol("strlen").address
    with QemuMachine.carry(booted) as machine:
        seen = []
        machine.handle(strlen, lambda: seen.append(machine.pc))
        assert Evaluation(Caller(machine)).run(parse('strlen("ab"); strlen("c")')) == 1
        assert seen == [strlen, strlen]
        machine.handle(strlen, None)
        back = machine.guest.entry_address(machine.image)
        machine.arch.prepare_call(machine, (0,), back)
        machine.pc = booted.symbol("fibonacci").address
        stop = machine.run(Until(addresses=[back]))
        assert stop.reason is StopReason.ADDRESS and stop.pc == machine.pc == back


def test_memory_and_registers_can_be_written_and_read(booted):
    address = booted.symbol("worker_stack").address
    with QemuMachine.carry(booted) as machine:
        machine.write(address + 4000, bytes(range(200)))
        assert machine.read(address + 4000, 200) == bytes(range(200))
        machine.write_register(machine.arch.result, 0x1122334455667788)
        assert machine.read_register(machine.arch.result) == 0x1122334455667788
        with pytest.raises(MachineError, match="no register 'nosuch'"):
            machine.read_register("nosuch")
        with pytest.raises(MemoryAccessError):
            machine.read_physical(1 << 40, 8)


def jump_to_itself(machine):
    machine.pc = machine.symbol("run_ticks").address
    machine.write_code(machine.pc, {"amd64": b"\xeb\xfe", "arm64": b"\0\0\0\x14",
                                    "riscv64": b"\x01\xa0"}[machine.arch.name])


def test_a_silent_run_ends_when_patience_runs_out(booted):
    with QemuMachine.carry(booted) as machine:
        machine.patience = 0.5
        jump_to_itself(machine)
        stop = machine.run(Until(console="never said"))
        assert stop.reason is StopReason.PATIENCE
        with pytest.raises(MachineError, match="it counts neither"):
            machine.run(Until(instructions=5))


def test_a_run_ends_at_the_time_limit(booted):
    with QemuMachine.carry(booted) as machine:
        machine.longest = 0.2
        jump_to_itself(machine)
        stop = machine.run(Until(console="never said"))
        assert (stop.reason, stop.detail) == (StopReason.PATIENCE, "QEMU ran for 0.2 seconds")


def test_a_run_that_writes_too_much_to_the_console_ends(booted, monkeypatch):
    monkeypatch.setattr(machines, "MAX_CONSOLE", 50)
    booted.console.text.clear()
    with QemuMachine.boot(booted.image, MEMORY) as machine:
        stop = machine.run(Until(console="never said"))
        assert stop.reason is StopReason.OUTPUT and "to its console" in stop.detail


def test_no_qemu_process_is_left_after_success_or_failure(booted):
    with QemuMachine.carry(booted):
        assert len(children()) == 1
    assert not children()
    with pytest.raises(ZeroDivisionError), QemuMachine.carry(booted):
        raise ZeroDivisionError
    assert not children()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_qemu_process_is_left_when_its_parent_is_killed(arch, how):
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from images import catalog\nfrom images import boots\n"
        "from emu.qemu.machine import QemuMachine\n"
        f"machine = boots.booted(catalog.find('teaching/{arch}'), {MEMORY})\n"
        "with QemuMachine.carry(machine) as other:\n"
        "    print(other._qemu.process.pid, flush=True)\n    time.sleep(60)\n")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:
        qemu = int(process.stdout.readline())
        assert Path(f"/proc/{qemu}").exists()
        process.send_signal(how)
        process.wait(timeout=10)
    assert gone(qemu)


@pytest.mark.parametrize("parent, runs", [(os.getpid, True), (lambda: 1, False)],
                         ids=["ours", "another's"])
def test_a_program_runs_only_if_its_parent_is_still_the_starter(parent, runs):
    done = subprocess.run(["/bin/sh", "-c", IF_OURS, str(parent()), "echo", "ran", "a b"],
                          capture_output=True, text=True, check=False)
    assert done.stdout == ("ran a b\n" if runs else "")


def test_qemu_opens_no_network_port(booted):
    """QEMU opens no ports, not even local ones; the gdb stub and the console are socket pairs."""
    with QemuMachine.carry(booted):
        (process,) = children()
        names = [os.readlink(f) for f in Path(f"/proc/{process}/fd").iterdir()]
        inodes = {name.removeprefix("socket:[").rstrip("]") for name in names
                  if name.startswith("socket:")}
        assert len(inodes) >= 2  # sockets of the gdb stub and the console
        for table in ("tcp", "tcp6", "udp", "udp6"):
            path = Path(f"/proc/{process}/net/{table}")
            rows = [line.split() for line in path.read_text().splitlines()[1:]]
            assert not [row for row in rows if row[9] in inodes]


def test_a_missing_qemu_is_reported_with_the_package_to_install(booted, monkeypatch):
    monkeypatch.setattr("emu.qemu.boards.shutil.which", lambda program: None)
    with pytest.raises(MachineError, match=r"not installed; on Debian: apt-get install"):
        QemuMachine.carry(booted)


def test_a_qemu_that_does_not_start_reports_why(booted, monkeypatch):
    from dataclasses import replace
    board = replace(BOARDS[booted.arch.name], cpu="nosuch")
    monkeypatch.setattr(f"emu.qemu.{booted.arch.name}.board.BOARD", board)
    with pytest.raises(MachineError, match="nosuch"):
        QemuMachine.carry(booted)
    assert not children()


