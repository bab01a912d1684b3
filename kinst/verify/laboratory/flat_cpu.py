"""Unicorn CPU on flat memory, without a kernel."""

import random
from collections.abc import Sequence
from typing import Any

import unicorn

from emu.unicorn._engine import Engine, EngineStop
from emu.unicorn.guest_memory import GuestMemory
from emu.unicorn.new_engine import new_engine
from emu.unicorn.wired_machine import library_symbols
from kinst.verify.laboratory.architecture import LaboratoryArch
from kinst.verify.laboratory.memory_map import CODE, DATA, MASK, PAGE, SLOTS
from kinst.verify.laboratory.outcome import ChangedPages

MAX_PAGES = 64


class FlatCpu:
    """Unicorn CPU on flat memory; each side of an experiment has its own CPU."""

    def __init__(self, facts: LaboratoryArch, seed: int) -> None:
        self.facts, self.seed = facts, seed
        self.uc = new_engine(facts.uc_arch, facts.uc_mode)
        self.uc.ctl_set_cpu_model(facts.cpu_model)
        self.uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        facts.prepare(self.uc)
        self.engine = Engine(self.uc, library_symbols(), facts.pc, facts.fixed)
        self.engine.set_flat()
        self.area = GuestMemory((MAX_PAGES + 1) * PAGE)
        self.pages: dict[int, int] = {}  # guest address of a page -> offset in the area
        self.contents: dict[int, bytes] = {}
        self.kept: dict[int, bytes] = {}  # reference contents of the code and trampoline pages
        self.size = 0
        self.wanted: set[int] = set()  # unmapped pages on which an access ended an execution
        self.uc.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, self._unmapped)
        for page in (CODE, SLOTS, DATA):
            self.map(page)
        self.keep(0)

    def _unmapped(self, _uc: Any, kind: int, address: int, size: int, _value: int,
                  _data: object) -> bool:
        """Record the unmapped page and end the execution.

        Mapping the page in this hook would not be safe: Unicorn continues with the result of an
        earlier lookup, which may be stale by then.
        """
        if kind != unicorn.UC_MEM_FETCH_UNMAPPED:
            self.wanted |= {at & MASK & ~(PAGE - 1) for at in (address, address + size - 1)}
        return False

    def map(self, address: int) -> bool:
        """Map the page of an address; return False if too many pages are mapped."""
        page = address & MASK & ~(PAGE - 1)
        if page not in self.pages:
            if len(self.pages) == MAX_PAGES:
                return False
            offset = len(self.pages) * PAGE
            self.engine.map_ram(page, self.area.view[offset : offset + PAGE])
            self.pages[page] = offset
            self.contents[page] = random.Random(self.seed ^ page).randbytes(PAGE)
            self.area.view[offset : offset + PAGE] = self.contents[page]
        return True

    def read(self, address: int, size: int) -> bytes:
        """Read memory; the pages must be mapped."""
        out = bytearray()
        for i in range(address, address + size):
            page = i & MASK & ~(PAGE - 1)
            out.append(self.area.view[self.pages[page] + (i & PAGE - 1)])
        return bytes(out)

    def write(self, address: int, data: bytes) -> None:
        """Write memory; the pages must be mapped."""
        for i, byte in enumerate(data):
            at = address + i & MASK
            self.area.view[self.pages[at & ~(PAGE - 1)] + at % PAGE] = byte

    def place(self, code: bytes) -> None:
        """Place an instruction at CODE and reset the rest of its page."""
        offset = self.pages[CODE]
        self.area.view[offset : offset + PAGE] = code + self.contents[CODE][len(code) :]
        self.engine.remove_translations(CODE, CODE + PAGE)

    def keep(self, size: int) -> None:
        """Save the code and trampoline pages, so that ``memory`` can find later changes to them.

        :param size: length of the instruction at CODE, which a breakpoint may overwrite.
        """
        self.kept = {page: self._around(page, size) for page in (CODE, SLOTS)}
        self.size = size

    def _around(self, page: int, size: int) -> bytes:
        offset = self.pages[page]
        content = bytes(self.area.view[offset : offset + PAGE])
        return bytes(size) + content[size:] if page == CODE else content

    def refill(self) -> None:
        """Reset the data pages to their initial contents."""
        for page in self.memory():
            if page not in self.kept:
                offset = self.pages[page]
                self.area.view[offset : offset + PAGE] = self.contents[page]

    def memory(self) -> ChangedPages:
        """Return the changed pages, ignoring changes to the instruction itself."""
        changed = {}
        for page, offset in self.pages.items():
            if page in self.kept:
                content = self._around(page, self.size)
                if content != self.kept[page]:
                    changed[page] = content
                continue
            content = bytes(self.area.view[offset : offset + PAGE])
            if content != self.contents[page]:
                changed[page] = content
        return changed

    def set(self, values: dict[str, int], vectors: Sequence[int]) -> None:
        """Set the general and vector registers, and those that ``facts.preset`` lists."""
        for register, value in self.facts.preset:
            self.engine.write(register, value)
        for name, value in values.items():
            self.engine.write(self.facts.general[name], value)
        for (register, bits), value in zip(self.facts.vectors, vectors, strict=True):
            self.engine.write_bytes(register, value.to_bytes(bits // 8, "little"))

    def get(self) -> tuple[dict[str, int], tuple[int, ...]]:
        """Return the general and vector registers; the flags contain only the compared bits."""
        name, bits = self.facts.flags
        values = {n: self.engine.read(r) for n, r in self.facts.general.items()}
        if name:
            values[name] &= bits
        return values, tuple(
            int.from_bytes(self.engine.read_bytes(register, size // 8), "little")
            for register, size in self.facts.vectors
        )

    def put_slot(self, body: bytes) -> None:
        """Place a trampoline at SLOTS and reset the rest of its page."""
        offset = self.pages[SLOTS]
        self.area.view[offset : offset + PAGE] = body + self.contents[SLOTS][len(body) :]
        self.engine.remove_translations(SLOTS, SLOTS + PAGE)

    def run(self, after: int, steps: int) -> tuple[int, str]:
        """Execute the instruction at CODE; the run ends before ``after``.

        :param steps: maximum number of instructions executed.
        :return: the next pc, and the fault or an empty string.
        """
        return self.run_from(CODE, [after], steps)

    def run_from(self, start: int, exits: Sequence[int], steps: int) -> tuple[int, str]:
        """Execute code at ``start`` up to an exit, or at most ``steps`` instructions.

        :param exits: addresses to stop before.
        :return: the next pc, and the fault or an empty string.
        """
        engine, facts = self.engine, self.facts
        after = exits[0]
        engine.detour.thaw()
        engine.instructions = 0
        engine.limit = steps
        engine.set_exits(list(exits))
        why, detail = engine.run(start)
        for _ in range(steps):
            if why != EngineStop.STOP_UNCOUNTED:
                break
            begin, size = engine.unknown_block
            if begin != start and not (start == SLOTS <= begin < SLOTS + PAGE):
                break  # the code has jumped elsewhere
            count = 1 if begin == CODE else len(facts.arch.split(self.read(begin, size)))
            engine.learn(begin, size, max(1, count))
            why, detail = engine.run(begin)
        pc = engine.read(facts.pc)
        fault = ""
        if why == EngineStop.STOP_EXCEPTION:
            fault, pc = f"exception {detail}", pc - facts.trap_pc_offset
        elif why == EngineStop.STOP_INVALID:
            fault = "invalid instruction"
        elif why == EngineStop.STOP_IN_PLACE:
            fault = "inaccessible memory"
        elif why == EngineStop.STOP_ERROR and (
            detail != unicorn.UC_ERR_FETCH_UNMAPPED or CODE <= pc < after
        ):  # a jump to an unmapped target does not fault; the fetch of the target does
            fault = f"libunicorn error {detail}"
        return (engine.detour.abandon(pc) if fault else pc), fault
