"""Workload of the firing-rate benchmarks, and functions that measure the rate of probe firings."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from emu.elf.image import Image
from emu.machine.call import Caller
from emu.qemu import boards
from emu.qemu.gdb_remote import GdbRemote
from kinst.probes.breakpoints import Breakpoints
from kinst.providers import kinst_provider
from kinst.relocation.verdict import Copy, Rewrite

FUNCTION = "ether_crc32_le"
BYTES = 1_000_000  # number of bytes of kernel text whose CRC the workload computes
MEMORY = 512 << 20
PROMPT = b"mountroot>"
PATIENCE = 120
QEMU_SECONDS = 3.0
# Register numbers in QEMU's gdb stub (first two arguments, stack pointer, program counter, link
# register) and the size of a breakpoint.
GDB = {"amd64": ((5, 4), 7, 16, None, 1), "arm64": ((0, 1), 31, 32, 30, 4),
       "riscv64": ((10, 11), 2, 32, 1, 2)}


def work(machine, size: int = BYTES) -> int:
    """Call the workload function on the first bytes of the kernel's code; return its result."""
    text = next(s for s in machine.image.segments if s.executable)
    return Caller(machine).call(machine.symbol(FUNCTION).address, [text.virtual, size], FUNCTION)


def loop(machine) -> tuple[str, int]:
    """Return the function and offset of the workload's most frequently executed probe site.

    Only instructions that run in a trampoline are considered.
    """
    seen: Counter[tuple[str, int]] = Counter()
    breakpoints = Breakpoints(machine, path="direct", records=True)
    kinst_provider.create(breakpoints, FUNCTION, "")
    kept = machine.snapshot()
    breakpoints.enable()
    work(machine, 500)
    breakpoints.disable()
    machine.restore(kept)
    for firing in breakpoints.firings():
        if isinstance(firing.probe.instruction.verdict, Copy | Rewrite):
            seen[firing.probe.function, firing.probe.instruction.offset] += 1
    return seen.most_common(1)[0][0]


def rate(machine, path: str, where: tuple[str, int], runs: int) -> float:
    """Measure a counting probe in several runs; return the highest rate in firings per second."""
    best = 0.0
    kept = machine.snapshot()
    for _ in range(runs):
        breakpoints = Breakpoints(machine, path=path)
        kinst_provider.create(breakpoints, where[0], str(where[1]))
        breakpoints.enable()
        began = time.perf_counter()
        work(machine)
        best = max(best, breakpoints.dispatcher.firings / (time.perf_counter() - began))
        breakpoints.disable()
        machine.restore(kept)
    return best


def qemu_rate(arch: str, image: Image, machine, where: tuple[str, int]) -> float:
    """Return how many times per second gdb can stop QEMU at a breakpoint and step over it."""
    arguments, sp, pc, link, kind = GDB[arch]
    address = machine.symbol(where[0]).address + where[1]
    text = next(s for s in image.segments if s.executable)
    with tempfile.TemporaryDirectory() as directory:
        stub = Path(directory) / "gdb"
        command = [*boards.command(arch, image, MEMORY, Path(directory)), "-chardev",
                   f"socket,path={stub},server=on,wait=off,id=gdb0", "-gdb", "chardev:gdb0"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            seen, began = bytearray(), time.perf_counter()
            while PROMPT not in seen:
                data = os.read(process.stdout.fileno(), 4096)
                if not data or time.perf_counter() - began > PATIENCE:
                    sys.exit(f"no prompt from: {' '.join(command)}")
                seen += data
            gdb = GdbRemote(stub)  # connecting to the stub stops the guest
            stack = (gdb.read_register(sp) & ~15) - 4096
            back = image.entry.to_bytes(8, "little")
            if link is None:
                stack -= 8
                gdb.write(stack, back)
            else:
                gdb.write_register(link, image.entry)
            gdb.write_register(sp, stack)
            for number, value in zip(arguments, (text.virtual, BYTES), strict=True):
                gdb.write_register(number, value)
            gdb.write_register(pc, machine.symbol(FUNCTION).address)
            gdb.insert(address, kind)
            gdb.go()
            if gdb.read_register(pc) != address:
                sys.exit("QEMU did not reach the breakpoint")
            stops, began = 0, time.perf_counter()
            while time.perf_counter() - began < QEMU_SECONDS:
                gdb.remove(address, kind)
                gdb.step()
                gdb.insert(address, kind)
                gdb.go()
                stops += 1
            return stops / (time.perf_counter() - began)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
