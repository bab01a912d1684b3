"""Machine proxy that interrupts runs at random points without changing their results.

Runs are split by instruction limits, single steps, breakpoints, snapshots, probes and writes. The
results must be those of an uninterrupted run.
"""

import random
from dataclasses import replace

from emu.gdb.target import LiveTarget
from emu.host.errors import MemoryAccessError
from emu.machine.machine import StopReason, Until
from emu.replay.inputs import MEMORY, Input, give, position_of
from emu.unicorn import snapshot
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers import kinst_provider


class Cutting:
    """Proxy for a ``UnicornMachine`` whose ``run`` interrupts the execution at random points.

    :param every: average number of instructions between two cuts
    :param functions: function symbols to use for stops, handlers and probes
    :param directory: directory for snapshot files
    :param files: largest number of snapshot files to write
    :param start: instruction count from which the kernel can be probed
    """

    def __init__(self, machine, seed, every, functions, directory, files=10, start=0):
        self.machine = machine
        self.random = random.Random(seed)
        self.every, self.functions = every, functions
        self.file, self.files = directory / "cut", files
        self.cuts = dict.fromkeys(self.KINDS, 0)
        self.handled = 0
        self.probes = None
        self.probes_until, self.start = 0, start

    KINDS = ("count", "steps", "address", "time", "memory", "file", "probes", "handle", "look",
             "write", "scribble")
    WEIGHTS = (30, 10, 15, 8, 8, 1, 8, 8, 12, 8, 4)

    def __getattr__(self, name):
        return getattr(self.machine, name)

    @property
    def pc(self):
        return self.machine.pc

    @pc.setter
    def pc(self, value):
        self.machine.pc = value

    def run(self, until):
        while True:
            (kind,) = self.random.choices(self.KINDS, self.WEIGHTS)
            stop = getattr(self, "_" + kind)(until)
            if stop is not None:
                self.cuts[kind] += 1
                if self._is_end(stop, until):
                    self._disable()
                    return stop
            if self.probes is not None and self.machine.instructions >= self.probes_until:
                self._disable()

    def _is_end(self, stop, until):
        if stop.reason is StopReason.INSTRUCTIONS:
            return until.instructions is not None and (
                self.machine.instructions >= until.instructions)
        if stop.reason is StopReason.ADDRESS:
            return stop.pc in until.addresses
        return stop.reason is not StopReason.TIME

    def _piece(self, until, extra=()):
        at = self.machine.instructions + self.random.randrange(1, 2 * self.every)
        at = min(at, until.instructions or at)
        return self.machine.run(
            replace(until, addresses=(*until.addresses, *extra), instructions=at))

    def _count(self, until):
        return self._piece(until)

    def _steps(self, until):
        machine = self.machine
        for _ in range(self.random.randrange(1, 40)):
            at = machine.instructions + 1
            stop = machine.run(replace(until, instructions=min(at, until.instructions or at)))
            if self._is_end(stop, until):
                break
        return stop

    def _address(self, until):
        somewhere = self.random.choice(self.functions)
        return self._piece(until, {somewhere.address, self.random.choice(self.functions).address})

    def _time(self, until):
        at = self.machine.now + self.random.randrange(1, 2 * self.every)
        end = self.machine.instructions + 2 * self.every
        return self.machine.run(
            replace(until, time=at, instructions=min(end, until.instructions or end)))

    def _memory(self, until):
        """Take an in-memory snapshot and run; in half of the cases, restore it and run again."""
        machine = self.machine
        kept = machine.snapshot()
        look = self.random.random() < 0.2  # compute few digests, since computing one is slow
        digest = machine.digest() if look else ""
        stop = self._piece(until)
        if self.random.random() < 0.5 and not self._is_end(stop, until):
            after, digest_after = machine.instructions, machine.digest() if look else ""
            machine.restore(kept)
            assert not look or machine.digest() == digest
            machine.run(Until(instructions=after, addresses=until.addresses))
            if machine.instructions == after and look:
                assert machine.digest() == digest_after
        return stop

    def _file(self, until):
        if self.files == 0 or self.probes is not None:
            return None
        self.files -= 1
        old = self.machine
        snapshot.save(old, self.file)
        digest = old.digest()
        self.machine = snapshot.restore(self.file, old.image)
        assert self.machine.digest() == digest
        return self._piece(until)

    def _probes(self, until):
        if self.probes is not None:
            self._disable()
            return self._piece(until)
        if self.machine.instructions < self.start:
            return None
        probes = Breakpoints(self.machine, path=self.random.choice(PATHS))
        for function in self.random.sample(self.functions, min(8, len(self.functions))):
            try:
                kinst_provider.create(probes, function.name, "")
            except ProbeError:
                continue
        probes.enable()
        self.probes, self.probes_until = probes, self.machine.instructions + 20 * self.every
        return self._piece(until)

    def _code(self):
        """Return (address, size) of code at the pc or in a function, or None for unmapped code.

        Before the kernel turns on paging, the addresses of functions are outside of RAM.
        """
        at = self.machine.pc if self.random.random() < 0.5 else self.random.choice(
            self.functions).address
        size = self.random.randrange(1, 16)
        try:
            self.machine.read(at, size + 1)
        except MemoryAccessError:
            return None
        return at, size

    def _write(self, until):
        """Overwrite code with its current bytes through a randomly chosen write method."""
        code, machine = self._code(), self.machine
        if code is None:
            return None
        at, size = code
        data, physical = machine.read(at, size), machine.translate(at)
        size_in_page = min(size, 4096 - at % 4096)
        word = at & ~7
        self.random.choice([
            lambda: machine.write(at, data),
            lambda: machine.write_code(at, data),
            lambda: machine.write_physical(physical, data[:size_in_page]),
            lambda: machine.write_memory(physical, data[:size_in_page]),
            lambda: machine.write_u64(word, machine.read_u64(word)),
            lambda: LiveTarget(machine).write(at, data),
            lambda: give(machine, Input(position_of(machine), MEMORY, f"{physical:x}",
                                        data[:size_in_page])),
        ])()
        return self._piece(until)

    def _scribble(self, until):
        """Overwrite code with random bytes, run, and restore the snapshot from before the write."""
        code, machine = self._code(), self.machine
        if code is None or self.probes is not None:
            return None
        at, size = code
        kept = machine.snapshot()
        before = len(machine.console.text)
        stream, machine.console.stream = machine.console.stream, None
        machine.write(at, self.random.randbytes(size))
        machine.run(Until(instructions=machine.instructions + self.random.randrange(200)))
        machine.restore(kept)
        machine.console.stream = stream
        assert len(machine.console.text) == before
        return self._piece(until)

    def _disable(self):
        if self.probes is not None:
            self.probes.disable()
            self.probes = None

    def _handle(self, until):
        address = self.random.choice(self.functions).address
        if address in self.machine._loop.handlers or address in until.addresses:
            return None

        def seen():
            self.handled += 1

        self.machine.handle(address, seen)
        try:
            return self._piece(until)
        finally:
            self.machine.handle(address, None)

    def _look(self, until):
        machine = self.machine
        machine.registers()
        machine.read(machine.pc, 1)
        machine.translate(self.random.randrange(1 << 64))
        machine.state()
        self.machine.image.symbols.function_at(machine.pc)
        return self._piece(until)
