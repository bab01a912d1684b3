"""Tests that faults match QEMU in cause, address, error code, pc and earlier writes.

The rows of ``fault_tables`` are executed in kernel mode and in user mode, which is entered with
the architecture's own return instruction.  Our machine executes each row twice, with exceptions
delivered natively and in Python.
"""

import itertools
import struct

import pytest
import unicorn.x86_const as x86

from emu.machine.machine import StopReason, Until
from emu.qemu.machine import QemuMachine
from emu.unicorn.machine import UnicornMachine
from images import boots, catalog
from tests.conftest import FULL, MEMORY
from tests.emu.qemu.fault_tables import PAGE, TABLES
from tests.kinst.verify.test_upstream_mistakes import assemble

MMR = struct.Struct("<H6xQII")  # uc_x86_mmr: selector, base, limit, flags
PROTECTION = 13
PAGE_FAULT, BREAKPOINT = 14, 3  # amd64 vectors; 3 is also riscv64's scause for a breakpoint
INSIDE = 64  # offset of an access inside a page, in bytes
SHARE = 1 if FULL else 23  # test one row in so many
TEXT_ROOM = 32  # distance between two instructions in bytes


class Ground:
    """Machine with a table's pages and instructions, and with vectors at known addresses."""

    def __init__(self, image, mode="kernel"):
        self.machine = machine = UnicornMachine(image, MEMORY)
        self.name = machine.arch.name
        self.table = TABLES[self.name]()
        self.kernels = kernels = self.table.pages
        self.user = mode == "user"
        if self.user:
            self.table = self.table.for_user_mode()
        self.free = machine.board.ram_base + (32 << 20)
        if self.name == "amd64":
            self.machine = machine = boots.booted(image, MEMORY)
        else:
            machine.place_image()
        self.base, self.leaves = getattr(self, f"_{self.name}")()
        self.text = self._page(0, "rx")
        self.stack = self._page(2, "rw") + PAGE - 256
        self.vectors = self._page(1, "rx", kernels)
        self.kernel_stack = self._page(508, "rw", kernels) + PAGE - 256
        self.leaving = self._page(509, "rx", kernels)  # code that returns to user mode
        kinds = self.table.pages
        self.pairs = {}
        at = 4
        for one, other in itertools.product(kinds, kinds):
            self.pairs[one, other] = self._page(at, one)
            self._page(at + 1, other)
            at += 2
        assert at <= 508
        self.codes = [*self.table.accesses, self.table.fetch, *self.table.others]
        assert len(self.codes) * TEXT_ROOM < PAGE
        nop = {"amd64": b"\x90", "arm64": b"\x1f\x20\x03\xd5", "riscv64": b"\x13\0\0\0"}[self.name]
        for number, access in enumerate(self.codes):
            padded = (access.code + nop * 4)[: TEXT_ROOM]
            machine.write_physical(self._physical(0) + TEXT_ROOM * number, padded)
        machine.write_physical(self._physical(0) + TEXT_ROOM * len(self.codes), CALL[self.name])
        machine.write_physical(self._physical(1), nop * (PAGE // len(nop)))
        machine.write_physical(self._physical(509), LEAVE[self.name])
        self.ends = getattr(self, f"_{self.name}_vectors")()

    def _physical(self, number):
        return self.free + (2 << 20) + number * PAGE

    def _page(self, number, kind, kinds=None):
        """Map a page of a given kind and return its virtual address.

        :param kinds: page kinds by name; those of the table if omitted.
        """
        entry = (kinds or self.table.pages)[kind](self._physical(number))
        self.machine.write_physical(self.leaves + 8 * number, entry.to_bytes(8, "little"))
        return self.base + number * PAGE

    def _put(self, at, entry):
        self.machine.write_physical(at, entry.to_bytes(8, "little"))

    # -- page tables: (address of the first test page, address of its page table entry) ---------

    def _amd64(self):
        machine = self.machine
        # NXE (no-execute enable)
        machine.write_register("efer", machine.read_register("efer") | 1 << 11)
        near = machine.symbol("strlen").address
        hole = machine.guest.traps.hole(machine, near, self.free, 1, self.free + (1 << 20))
        for place, entry in hole.writes:
            self._put(place, self.free | 7 if place == self.free + (1 << 20) else entry | 4)
        root = (machine.read_register("cr3") & 0xFFFFFFFFF000) + 8 * (hole.virtual >> 39 & 0x1FF)
        self._put(root, int.from_bytes(machine.read_physical(root, 8), "little") | 4)
        return hole.virtual, self.free

    def _arm64(self):
        tables = self.machine.read_register("ttbr0_el1")
        self._put(tables + 64, self.free + PAGE | 3)  # map the GiB at virtual address 8 GiB
        self._put(self.free + PAGE, self.free | 3)
        return 8 << 30, self.free

    def _riscv64(self):
        root = (self.machine.read_register("satp") & (1 << 44) - 1) << 12
        self._put(root + 64, self.free + PAGE >> 2 | 1)
        self._put(self.free + PAGE, self.free >> 2 | 1)
        return 8 << 30, self.free

    # -- vectors --------------------------------------------------------------------------------

    def _amd64_vectors(self):
        """Install an IDT whose gates each lead to a different address, and return the addresses."""
        machine, table = self.machine, self._physical(3)
        idt = b"".join(struct.pack(
            "<HHBBHII", at & 0xFFFF, machine.read_register("cs"), 0, 0x8E, at >> 16 & 0xFFFF,
            at >> 32, 0) for at in (self.vectors + 8 * n for n in range(256)))
        machine.write_physical(table, idt)
        machine.engine.write_bytes(x86.UC_X86_REG_IDTR, MMR.pack(
            0, self._page(3, "rw", self.kernels), len(idt) - 1, 0))
        # The double fault handler uses a separate stack.
        machine.write_physical(table + 16 * 8 + 4, b"\1")
        for number in (BREAKPOINT, 0x80):  # gates that user mode can enter
            machine.write_physical(table + 16 * number + 5, b"\xee")
        task = self._page(510, "rw", self.kernels)
        stack = self._page(511, "rw", self.kernels) + PAGE
        _selector, base, limit, _flags = MMR.unpack(machine.engine.read_bytes(
            x86.UC_X86_REG_GDTR, MMR.size))
        segments = machine.read(base, limit + 1)
        low = (103 | (task & 0xFFFFFF) << 16 | 0x89 << 40 | (task >> 24 & 0xFF) << 56)
        segments += struct.pack("<QQQQ", low, task >> 32, USER_CODE, USER_DATA)
        self.user_code, self.user_data = limit + 17 | 3, limit + 25 | 3
        machine.write(task, bytes(4) + struct.pack("<Q", self.kernel_stack) + bytes(24)
                      + struct.pack("<Q", stack) + bytes(60))
        machine.write_register("efer", machine.read_register("efer") | 1)  # SCE (enable SYSCALL)
        machine.write_register("lstar", self.vectors + 8 * 0x90)
        machine.write_register("star", machine.read_register("cs") << 32)
        machine.write_register("sfmask", 0x300)
        machine.write(task + 256, segments)
        machine.engine.write_bytes(x86.UC_X86_REG_GDTR, MMR.pack(
            0, task + 256, len(segments) - 1, 0))
        machine.engine.write_bytes(x86.UC_X86_REG_TR, MMR.pack(limit + 1, task, 103, 0x8900))
        return [self.vectors + 8 * n for n in (*range(64), 0x80, 0x81, 0x90)]

    def _arm64_vectors(self):
        self.machine.write_register("vbar_el1", self.vectors)
        self.machine.write_register("cpacr_el1", 3 << 20)
        return [self.vectors + 0x80 * n for n in range(16)]

    def _riscv64_vectors(self):
        self.machine.write_register("stvec", self.vectors)
        self.machine.write_register("sstatus", 1 << 13 | 1 << 8)  # FS and SPP set, SUM clear
        return [self.vectors]


# Code that returns to user mode, keyed by architecture
LEAVE = {"amd64": b"\x48\xcf",  # iretq
         # msr elr_el1, x0; msr spsr_el1, x1; msr esr_el1, xzr; msr far_el1, xzr; eret
         "arm64": bytes.fromhex("204018d5 014018d5 1f5218d5 1f6018d5 e0039fd6"),
         "riscv64": bytes.fromhex("73002010")}  # sret
USER_CODE, USER_DATA = 0x00AFFA000000FFFF, 0x00CFF2000000FFFF
CALL = {"amd64": b"\xcd\x80", "arm64": bytes.fromhex("010000d4"),
        "riscv64": bytes.fromhex("73000000")}

STATUS = {"amd64": ("cr2",), "arm64": ("esr_el1", "far_el1", "elr_el1", "spsr_el1"),
          "riscv64": ("scause", "stval", "sepc", "sstatus")}
FLAGS = {"amd64": "rflags", "arm64": "pstate", "riscv64": None}
BEFORE = {"amd64": 2, "arm64": 0x3C5}


def in_user_mode(machine):
    return {"amd64": lambda: machine.read_register("cs") & 3 == 3,
            "arm64": lambda: machine.read_register("pstate") & 0xF == 0,
            "riscv64": lambda: machine.read_register("priv") == 0}[machine.arch.name]()


def advance(machine, ends, steps):
    """Execute until the machine reaches one of the given addresses.

    :return: why our machine stopped before any of them, or None if one was reached.
    """
    if isinstance(machine, QemuMachine):
        for _ in range(steps):
            machine.step()
            if machine.pc in ends:
                return None
        raise AssertionError(hex(machine.pc))
    stop = machine.run(Until(addresses=sorted(set(ends) - {machine.pc}),
                             instructions=machine.instructions + 9))
    if stop.reason is StopReason.UNHANDLED:
        return stop.detail
    assert stop.reason in (StopReason.ADDRESS, StopReason.INSTRUCTIONS), stop
    return None


def to_kernel(ground, machine):
    """Enter kernel mode through a system call, since no register write does so on both machines."""
    if ground.user and in_user_mode(machine):
        machine.pc = ground.text + TEXT_ROOM * len(ground.codes)
        assert advance(machine, ground.ends, 1) is None and not in_user_mode(machine)


def to_user(ground, machine, pc):
    """Enter user mode at `pc` through the architecture's exception return instruction."""
    if ground.name == "amd64":
        frame = struct.pack("<5Q", pc, ground.user_code, BEFORE["amd64"], ground.stack,
                            ground.user_data)
        at = ground._physical(508) + PAGE - 64
        machine.write_physical(at, frame)
        machine.write_register("rsp", ground.kernel_stack + 256 - 64)
    elif ground.name == "arm64":
        machine.write_register("sp", ground.kernel_stack)
        machine.write_register("x0", pc)
        machine.write_register("x1", 0x3C0)
    else:
        machine.write_register("sepc", pc)
        machine.write_register("sstatus", 1 << 13)
    machine.pc = ground.leaving
    assert advance(machine, {pc}, 5) is None and machine.pc == pc and in_user_mode(machine)


def outcome(ground, machine, number, access, address, pair):
    """Execute an instruction and return the final pc, registers, trap information and memory."""
    arch, first = machine.arch, ground.pairs[pair] if pair else None
    physical = {} if first is None else {
        page: ground._physical((page - ground.base) // PAGE) for page in (first, first + PAGE)}
    fill = ground.table.fetched * (PAGE // len(ground.table.fetched) + 1)
    for at in physical.values():
        machine.write_physical(at, fill[:PAGE])
    pc = ground.text + TEXT_ROOM * number
    to_kernel(ground, machine)
    for stack in (2, 508):
        machine.write_physical(ground._physical(stack), bytes(PAGE))
    if ground.user:
        to_user(ground, machine, ground.text + TEXT_ROOM * len(ground.codes))
    for i, name in enumerate(arch.registers):
        if name not in (arch.pc, arch.sp, FLAGS[ground.name], "zero"):
            machine.write_register(name, 0x1010 + i)
    for name in STATUS[ground.name]:
        if name != "sstatus":
            machine.write_register(name, 0)
    machine.write_register(arch.sp, ground.stack)
    if ground.name == "amd64":
        if not ground.user:  # QEMU clears ss when a gate switches stacks
            machine.write_register("ss", 16)
        machine.write_register("rbx", pc + len(access.code))
    if FLAGS[ground.name] and not ground.user:
        machine.write_register(FLAGS[ground.name], BEFORE[ground.name])
    if ground.name == "riscv64" and not ground.user:
        machine.write_register("sstatus", 1 << 13 | 1 << 8)
    for name, value in access.setup.items():
        machine.write_register(name, value)
    if address is not None:
        for name in stands_for(ground, access):
            machine.write_register(name, address)
    machine.pc = pc
    ends = {*ground.ends, pc + len(access.code)}
    if access is ground.table.fetch and pair is not None and address % PAGE == INSIDE:
        ends.add(address + len(ground.table.fetched))
    trouble = advance(machine, ends, 8)
    if trouble is not None:
        return {"stop": trouble}
    if isinstance(machine, QemuMachine):
        if machine.pc == ground.vectors + 8 * PAGE_FAULT and (
                (code := machine.read_u64(machine.sp)) & 9 == 8):
            # QEMU 7.2 clears P in the error code for reserved bits; SDM volume 3, 4.7, sets it.
            machine.write_u64(machine.sp, code | 1)
        if access.name.startswith("int ") and machine.pc == ground.vectors + 8 * PROTECTION:
            # QEMU 7.2 reports index 16 * n in the error code; SDM volume 3, 6.13, says 8 * n.
            number_of = int(access.name.split()[1], 16)
            if (number_of, ground.user) != (PROTECTION, False):
                assert machine.read_u64(machine.sp) == 16 * number_of + 2
                machine.write_u64(machine.sp, 8 * number_of + 2)
    found = {name: machine.read_register(name) for name in arch.registers}
    if machine.pc in ground.ends:
        found |= {name: machine.read_register(name) for name in STATUS[ground.name]}
        if "esr_el1" in found and not 0x20 <= found["esr_el1"] >> 26 <= 0x25:
            del found["far_el1"]  # FAR_EL1 is defined for aborts only
        if found.get("scause") == BREAKPOINT:
            del found["stval"]  # stval may be 0 (privileged manual, "Supervisor Trap Value")
    if "sstatus" in found:
        found["sstatus"] &= ~(3 << 32)  # clear UXL, which Unicorn's CPU model lacks
    for name, page in (("stack", 2), ("kernel stack", 508)):
        stack = machine.read_physical(ground._physical(page), PAGE)
        found |= {f"{name} {at:#x}": int.from_bytes(stack[at : at + 8], "little")
                  for at in range(0, PAGE, 8) if any(stack[at : at + 8])}
    for page, at in physical.items():
        index = (page - ground.base) // PAGE
        found[f"entry {(page - first) // PAGE}"] = machine.read_physical(
            ground.leaves + 8 * index, 8).hex()
        content = machine.read_physical(at, PAGE)
        found[f"page {(page - first) // PAGE}"] = [
            (i, content[i]) for i in range(PAGE) if content[i] != fill[i]]
    return found


def stands_for(ground, access):
    """Return the names of the registers that must hold the address of an access."""
    if ground.name == "amd64":
        if access.name in ("push", "push16", "call", "enter", "pop", "ret"):
            return ("rsp",)
        return {"leave": ("rbp",), "lods": ("rsi",)}.get(access.name, ("rdi",))
    return (ground.table.address,)


def rows(table):
    """Yield (number, instruction, kinds of two adjacent pages, offset from the page boundary)."""
    every = list(enumerate([*table.accesses, table.fetch]))
    kinds = list(table.pages)
    for number, access in every:
        fetch = access is table.fetch
        for one in kinds:
            # Test accesses in the middle, at the start, at the end and across the end of a page.
            yield number, access, (one, "rw"), INSIDE - PAGE
            if fetch:  # the next instruction, or the end of this instruction, is on the other page
                if one not in table.translates_on:
                    yield number, access, (one, "rw"), -4
                if table.crossing:
                    yield number, access, (one, "rw"), -2
                continue
            width = access.width
            places = {-width, -1, *(-p for p in table.places if p <= max(width, 1) + 1)}
            if access.aligned:
                places = {-width, 0}
            if access.below:
                places = {p + width for p in places}
            for other in kinds:
                if "rw" not in (one, other) and (one, other) != (other, one):
                    continue
                for place in sorted(places):
                    yield number, access, (one, other), place


@pytest.fixture(scope="module", params=[
    (arch, mode) for arch in ("amd64", "arm64", "riscv64") for mode in ("kernel", "user")
], ids="-".join)
def grounds(request):
    arch, mode = request.param
    ground = Ground(catalog.find(f"teaching/{arch}"), mode)
    with QemuMachine.carry(ground.machine) as other:
        if ground.name == "arm64":
            other.write_register("vbar_el1", ground.vectors)
        yield ground, other


def compared(ground, other, number, access, address, pair):
    ours, theirs = (outcome(ground, machine, number, access, address, pair)
                    for machine in (ground.machine, other))
    ground.machine.engine.slow = True  # deliver exceptions in Python
    assert outcome(ground, ground.machine, number, access, address, pair) == ours, access.name
    ground.machine.engine.slow = False
    return {name: (ours.get(name), theirs.get(name)) for name in ours.keys() | theirs.keys()
            if ours.get(name) != theirs.get(name) and ("stop" not in ours or name in (
                "stop", *STATUS[ground.name], ground.machine.arch.pc))}


def shown(differences):
    return {name: tuple(hex(v) if isinstance(v, int) else v for v in pair)
            for name, pair in differences.items()}


def test_memory_accesses_fault_as_in_qemu(grounds):
    ground, other = grounds
    wrong = []
    every = list(rows(ground.table))
    share = every[::SHARE]
    for number, access, pair, place in share:
        address = ground.pairs[pair] + PAGE + place
        found = compared(ground, other, number, access, address, pair)
        if found:
            wrong.append((access.name, pair, place, shown(found)))
    print(f"{ground.name}, {ground.table.mode} mode: {len(share)} of {len(every)} rows")
    assert not wrong, (len(wrong), wrong[:5])


def test_other_exceptions_match_qemu(grounds):
    ground, other = grounds
    first = len(ground.table.accesses) + 1
    wrong = {}
    for number, access in enumerate(ground.table.others, first):
        found = compared(ground, other, number, access, None, None)
        if found:
            wrong[access.name] = shown(found)
    assert not wrong


def test_port_instructions_in_user_mode_are_refused():
    """IN and OUT must not access a device, although the machine cannot deliver their fault."""
    image = catalog.find("teaching/amd64")
    for code in (b"\xec", b"\xee"):
        ground = Ground(image, "user")
        machine = ground.machine
        written = bytes(machine.console.text)
        machine.write_physical(ground._physical(0), code + b"\xeb\xfe")
        to_user(ground, machine, ground.text)
        machine.write_register("rdx", 0x3F8)
        stop = machine.run(Until(instructions=machine.instructions + 20))
        assert stop.reason is StopReason.UNHANDLED and "IN or OUT" in stop.detail
        assert machine.console.text == written


def test_the_syndrome_of_a_trapped_msr_immediate_follows_the_manual():
    """For MSR DAIFSet in user mode, QEMU 7.2 swaps op1 and op2, and Unicorn loses the syndrome."""
    ground = Ground(catalog.find("teaching/arm64"), "user")
    machine = ground.machine
    machine.write_physical(ground._physical(0), bytes.fromhex("df4203d5"))
    to_user(ground, machine, ground.text)
    machine.run(Until(instructions=machine.instructions + 1))
    assert machine.pc & ~0xFFF == ground.vectors and not in_user_mode(machine)
    assert machine.read_register("esr_el1") == (
        0x18 << 26 | 1 << 25 | 6 << 17 | 3 << 14 | 4 << 10 | 31 << 5 | 2 << 1)


@pytest.mark.parametrize("arch", ["amd64"], indirect=True)
def test_a_stack_overflow_is_a_double_fault_on_its_own_stack(image):
    """If the stack of the double fault is not mapped, the machine reports a triple fault."""
    ground = Ground(image)
    machine = ground.machine
    machine.write(ground.text, assemble("amd64", "push rax"))
    for absent, ends in ((False, StopReason.ADDRESS), (True, StopReason.UNHANDLED)):
        if absent:
            ground._page(511, "absent")
        machine.pc = ground.text
        machine.write_register("rsp", ground.pairs["absent", "rw"] + PAGE)
        stop = machine.run(Until(addresses=ground.ends, instructions=machine.instructions + 9))
        assert stop.reason is ends
        assert machine.read_register("cr2") == ground.pairs["absent", "rw"] + PAGE - 8 or absent
    assert "triple fault" in stop.detail


@pytest.mark.parametrize("arch", ["amd64"], indirect=True)
def test_an_unmapped_interrupt_table_is_reported(image):
    ground = Ground(image)
    machine = ground.machine
    ground._page(3, "absent")
    machine.write(ground.text, b"\x0f\x0b")
    machine.pc = ground.text
    stop = machine.run(Until(addresses=ground.ends, instructions=machine.instructions + 9))
    assert stop.reason is StopReason.UNHANDLED and "IDT" in stop.detail


@pytest.mark.parametrize("arch", ["amd64"], indirect=True)
def test_a_trap_that_cannot_push_its_frame_faults_at_the_instruction(image):
    """The fault is reported at the trapping instruction, not at the next one."""
    ground = Ground(image)
    machine = ground.machine
    for code in (b"\xcc", b"\xcd\x80", b"\x0f\x0b"):
        machine.write(ground.text, code)
        machine.pc = ground.text
        machine.write_register("rsp", ground.pairs["absent", "rw"] + PAGE)
        stop = machine.run(Until(addresses=ground.ends, instructions=machine.instructions + 9))
        # Pushing the frame of the page fault fails, too, which causes a double fault.
        assert stop.pc == ground.vectors + 8 * 8
        assert machine.read_u64(machine.sp + 8) == ground.text, code


@pytest.mark.parametrize("arch", ["amd64"], indirect=True)
def test_page_tables_outside_ram_cause_a_guest_fault(image):
    ground = Ground(image)
    machine = ground.machine
    machine.write(ground.text, b"\x0f\x0b")
    pml4 = machine.read_register("cr3") & 0xFFFFFFFFF000
    machine.write_physical(pml4 + 8 * 200, (0x300000000 | 3).to_bytes(8, "little"))
    machine.write_register("rsp", 200 << 39 | -1 << 48 if 200 & 256 else 200 << 39 | 0x1000)
    machine.pc = ground.text
    stop = machine.run(Until(addresses=ground.ends, instructions=machine.instructions + 9))
    assert stop.reason is StopReason.ADDRESS and stop.pc == ground.vectors + 8 * 8
