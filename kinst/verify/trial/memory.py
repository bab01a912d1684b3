"""Guest memory for random states: data pages and a stack, allocated by the guest itself."""

import random

from emu.elf.symbols import Symbol
from emu.guests.freebsd.kernel import M_WAITOK_ZERO
from emu.host.errors import KinstError
from emu.machine.call import Caller
from emu.unicorn.machine import UnicornMachine
from kinst.verify.laboratory.outcome import ChangedPages
from kinst.verify.trial.sample import Sample

PAGE = 4096
DATA_PAGES, STACK_PAGES = 2, 8
# number of zeroed pages before, between and after data and stack, for operands with displacements
AROUND = 128
STACK = DATA_PAGES + AROUND  # index of the stack's first page, counted from the first data page
ABOVE_STACK = 2 * PAGE + 0x800  # number of bytes of stack above the initial stack pointer
LEAST_STACK = 3 * PAGE  # number of bytes of stack that the kernel needs to handle a breakpoint
# Number of bytes at a function's end that serve as jump targets; fraction of random words that are
# addresses of these bytes
LANDING, CODE_SHARE = 64, 0.4
# Size of a watched pc-relative operand in bytes; fill byte of an operand that serves as a divisor
WATCHED, DIVISOR = 64, b"\x40"


class TrialMemory:
    """Guest pages for random states: their initial contents, and an execution's changes to them.

    :param function: function whose end serves as the target of jumps.
    :param protection: register and its bit that write-protect the kernel's code, or None.
    """

    def __init__(self, machine: UnicornMachine, function: Symbol, seed: int,
                 protection: tuple[str, int] | None) -> None:
        self._machine, self._function, self._protection = machine, function, protection
        size = (STACK + STACK_PAGES + 2 * AROUND) * PAGE
        self.data = Caller(machine).call(machine.symbol("kmem_malloc").address,
                                         [size, M_WAITOK_ZERO], "kmem_malloc")
        if not self.data:
            raise KinstError("the guest cannot allocate memory for the trial's data")
        self.data += AROUND * PAGE
        self.stack = self.data + STACK * PAGE, self.data + (STACK + STACK_PAGES) * PAGE
        self.sp = self.stack[1] - ABOVE_STACK
        pages = [*range(DATA_PAGES), *range(STACK, STACK + STACK_PAGES)]
        self._pages = [self.data + PAGE * page for page in pages]
        self._views = []
        for address in self._pages:
            physical = machine.translate(address)
            assert physical is not None
            at = physical - machine.ram_base
            self._views.append(machine.memory_part.view[at : at + PAGE])
        self._content = [self._random_page(random.Random(seed ^ page)) for page in pages]
        # Put a valid return address on the stack; all states have the same return address.
        page, at = divmod(self.sp - self.stack[0], PAGE)
        top = bytearray(self._content[DATA_PAGES + page])
        top[at : at + 8] = self.landing(random.Random(seed)).to_bytes(8, "little")
        self._content[DATA_PAGES + page] = bytes(top)
        # Pc-relative operands of the current sample, with their original contents
        self._watched: tuple[Sample | None, dict[int, bytes]] = None, {}
        self._before: dict[int, bytes] = {}  # initial contents of the operands in the current state

    def landing(self, generator: random.Random) -> int:
        """Return a random valid jump target near the function's end."""
        return self._function.address + self._function.size - LANDING + 4 * generator.randrange(8)

    def _random_page(self, generator: random.Random) -> bytes:
        """Return a page of random words, some of which are code addresses."""
        return b"".join(
            (self.landing(generator) if generator.random() < CODE_SHARE
             else generator.getrandbits(64)).to_bytes(8, "little") for _ in range(PAGE // 8))

    def forget(self) -> None:
        """Discard data about the current sample before other instructions are placed."""
        self._watched = None, {}

    def fill(self, sample: Sample, divided: bool) -> None:
        """Write the initial contents of memory for a state.

        :param divided: whether to place nonzero divisors in the memory that the sample's
            pc-relative operands read.
        """
        for view, content in zip(self._views, self._content, strict=True):
            view[:] = content
        self._watch(sample, divided)

    def _watch(self, sample: Sample, divided: bool) -> None:
        """Write the initial contents of a sample's pc-relative operands."""
        machine = self._machine
        if self._watched[0] is not sample:
            self._put(self._watched[1])
            operands = {at: machine.read(at, WATCHED) for segment, at in
                        machine.arch.placed_operands(sample.code, sample.address) if not segment
                        and None not in (machine.translate(at),
                                         machine.translate(at + WATCHED - 1))}
            self._watched = sample, operands
        before = self._watched[1]
        if divided:
            before = {at: content if machine.image.holds_code(at) else DIVISOR * WATCHED
                      for at, content in before.items()}
        self._put(before)
        self._before = before
        if self._protection is not None:
            self._protect(*self._protection, not (before and divided))

    def _protect(self, register: str, bit: int, wanted: bool) -> None:
        """Set or clear the register bit that write-protects the kernel's code.

        The bit is clear in states with divisors, in which a sample may write to code pages.
        """
        value = self._machine.read_register(register)
        if bool(value & bit) != wanted:
            self._machine.write_register(register, value ^ bit)

    def _put(self, contents: dict[int, bytes]) -> None:
        for at, content in contents.items():
            if self._machine.read(at, WATCHED) != content:
                self._machine.write(at, content)

    def changed(self, like: ChangedPages | None, sp: int) -> ChangedPages:
        """Return the pages that have changed.

        :param like: pages that the execution in place changed, or None.  Below the initial and the
            current stack pointer, where traps write, only bytes that it changed are compared.
        :param sp: current stack pointer.
        """
        changed, end = dict[int, bytes](), max(self.sp, sp)
        for address, content in self._before.items():
            now = self._machine.read(address, WATCHED)
            if now != content and (like is None or address in like):  # ignore the kernel's writes
                changed[address] = now
        for address, view, content in zip(self._pages, self._views, self._content, strict=True):
            now = bytes(view)
            if now == content:
                continue
            below = max(0, min(PAGE, end - address)) if address >= self.stack[0] else 0
            if like is not None and below:
                was, did = content[:below], like.get(address, content)[:below]
                masked = was if was == did else bytes(
                    new if old != then else old
                    for new, old, then in zip(now[:below], was, did, strict=True))
                now = masked + now[below:]
            if now != content:
                changed[address] = now
        return changed
