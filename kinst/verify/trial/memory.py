"""The pages that random states have: data, and the stack, which the guest's allocator has given."""

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
AROUND = 128  # pages of zeros before, between and behind them, for displacements
STACK = DATA_PAGES + AROUND  # the stack's first page, from the data's
ABOVE_STACK = 2 * PAGE + 0x800  # bytes of the stack's pages above the stack pointer
LEAST_STACK = 3 * PAGE  # bytes of stack that the kernel's way through a breakpoint is given
LANDING, CODE_SHARE = 64, 0.4  # bytes at a function's end that are jumped to; share of such words
WATCHED, DIVISOR = 64, b"\x40"  # bytes


class TrialMemory:
    """The guest's pages that random states have: what they begin with, and what an execution has
    changed.

    :param function: at whose end what is jumped to lands.
    :param protection: the register and the bit of it that keep the kernel's code from being
        written, where there are.
    """

    def __init__(self, machine: UnicornMachine, function: Symbol, seed: int,
                 protection: tuple[str, int] | None) -> None:
        self._machine, self._function, self._protection = machine, function, protection
        size = (STACK + STACK_PAGES + 2 * AROUND) * PAGE
        self.data = Caller(machine).call(machine.symbol("kmem_malloc").address,
                                         [size, M_WAITOK_ZERO], "kmem_malloc")
        if not self.data:
            raise KinstError("the guest has no memory for the trial's data")
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
        # What returns comes back: the stack is the same in all states.
        page, at = divmod(self.sp - self.stack[0], PAGE)
        top = bytearray(self._content[DATA_PAGES + page])
        top[at : at + 8] = self.landing(random.Random(seed)).to_bytes(8, "little")
        self._content[DATA_PAGES + page] = bytes(top)
        # Where a sample writes relative to itself, and what is there before.
        self._watched: tuple[Sample | None, dict[int, bytes]] = None, {}
        self._before: dict[int, bytes] = {}  # this state began with

    def landing(self, generator: random.Random) -> int:
        """An address of code that may be jumped to: at the function's end."""
        return self._function.address + self._function.size - LANDING + 4 * generator.randrange(8)

    def _random_page(self, generator: random.Random) -> bytes:
        """Random words, and addresses of code among them."""
        return b"".join(
            (self.landing(generator) if generator.random() < CODE_SHARE
             else generator.getrandbits(64)).to_bytes(8, "little") for _ in range(PAGE // 8))

    def forget(self) -> None:
        """Other instructions are placed, and nothing of them is known."""
        self._watched = None, {}

    def fill(self, sample: Sample, divided: bool) -> None:
        """What a state begins with.

        :param divided: what a sample reads relative to itself is a number that can be divided by.
        """
        for view, content in zip(self._views, self._content, strict=True):
            view[:] = content
        self._watch(sample, divided)

    def _watch(self, sample: Sample, divided: bool) -> None:
        """What a sample reads and writes relative to itself is what it was."""
        machine = self._machine
        if self._watched[0] is not sample:
            self._put(self._watched[1])
            there = {at: machine.read(at, WATCHED) for segment, at in
                     machine.arch.placed_operands(sample.code, sample.address) if not segment
                     and None not in (machine.translate(at), machine.translate(at + WATCHED - 1))}
            self._watched = sample, there
        before = self._watched[1]
        if divided:
            before = {at: content if machine.image.holds_code(at) else DIVISOR * WATCHED
                      for at, content in before.items()}
        self._put(before)
        self._before = before
        if self._protection is not None:
            self._protect(*self._protection, not (before and divided))

    def _protect(self, register: str, bit: int, wanted: bool) -> None:
        """In mixed states what a sample writes relative to itself may be code."""
        value = self._machine.read_register(register)
        if bool(value & bit) != wanted:
            self._machine.write_register(register, value ^ bit)

    def _put(self, contents: dict[int, bytes]) -> None:
        for at, content in contents.items():
            if self._machine.read(at, WATCHED) != content:
                self._machine.write(at, content)

    def changed(self, like: ChangedPages | None, sp: int) -> ChangedPages:
        """The pages that have changed.

        :param like: what has changed in place: below the stack pointer, before and after, which
            traps write to, nothing else counts.
        """
        found, end = dict[int, bytes](), max(self.sp, sp)
        for address, content in self._before.items():
            now = self._machine.read(address, WATCHED)
            if now != content and (like is None or address in like):  # the kernel may write there
                found[address] = now
        for address, view, content in zip(self._pages, self._views, self._content, strict=True):
            now = bytes(view)
            if now == content:
                continue
            below = max(0, min(PAGE, end - address)) if address >= self.stack[0] else 0
            if like is not None and below:
                was, did = content[:below], like.get(address, content)[:below]
                mine = was if was == did else bytes(new if old != then else old for new, old, then
                                                    in zip(now[:below], was, did, strict=True))
                now = mine + now[below:]
            if now != content:
                found[address] = now
        return found
