"""Tables of instructions, pages and addresses for tests of memory faults.

A row is an instruction, a pair of neighboring pages, and an offset near the border between them.
All pages lie in one table of 4 KiB pages, and each has its own memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.kinst.verify.test_upstream_mistakes import assemble, words

PAGE = 4096


@dataclass(frozen=True)
class Access:
    """A tested instruction, usually one that accesses memory.

    :param code: machine code; the address is in the register of the first argument.
    :param width: number of bytes accessed, or 0 for none.
    :param below: the access is below the address, as by a push.
    :param setup: other registers that the instruction needs, with their values.
    :param aligned: hardware and QEMU raise an exception for misaligned addresses, but Unicorn's
        CPU model does not (docs/unicorn.md), so the table only has aligned ones.
    """

    name: str
    code: bytes
    width: int
    below: bool = False
    setup: dict[str, int] = field(default_factory=dict)
    aligned: bool = False


@dataclass(frozen=True)
class Table:
    """Instructions, page kinds and addresses to test on one architecture.

    :param address: name of the register that holds the address.
    :param accesses: instructions that access memory.
    :param pages: by kind of page, a function from physical address to page table entry.
    :param fetch: an instruction that jumps to the address.
    :param others: instructions without a tested access, most of which raise an exception.
    :param places: offsets below the border of two pages where accesses begin.
    :param fetched: a four-byte instruction at the address of a fetch.
    :param crossing: whether an instruction may cross from one page into the next.
    :param programs: function that turns a kernel page table entry into a user one, and back.
    :param privileged: additional ``others`` for user mode.
    :param translates_on: kinds of pages where no fetch near the border is tested: Unicorn's CPU
        model translates past the border and reports a fault there at the block's first
        instruction, with nothing executed (docs/unicorn.md).
    :param mode: ``kernel`` or ``user``.
    """

    address: str
    accesses: tuple[Access, ...]
    pages: dict[str, Callable[[int], int]]
    fetch: Access
    others: tuple[Access, ...]
    places: tuple[int, ...]
    fetched: bytes
    crossing: bool
    programs: Callable[[int], int]
    privileged: tuple[Access, ...]
    translates_on: frozenset[str] = frozenset()
    mode: str = "kernel"

    def for_user_mode(self) -> "Table":
        """Return this table for user mode, with kernel and user pages exchanged."""
        swapped = {kind: lambda p, entry=entry: self.programs(entry(p))
                   for kind, entry in self.pages.items()}
        return replace(self, pages=swapped, others=self.others + self.privileged, mode="user")


def _amd64() -> Table:
    def a(text, width, name=None, **more):
        return Access(name or text, assemble("amd64", text), width, **more)

    vector = {"rcx": 0x1122334455667788}
    kinds = {1: ("byte", "al"), 2: ("word", "ax"), 4: ("dword", "eax"), 8: ("qword", "rax")}
    accesses = []
    for width, (size, register) in kinds.items():
        accesses += [
            a(f"mov {register}, {size} ptr [rdi]", width),
            a(f"mov {size} ptr [rdi], {register}", width),
            a(f"add {size} ptr [rdi], {register}", width, "read-modify-write"),
            a(f"lock add {size} ptr [rdi], {register}", width, "atomic"),
            a(f"xchg {size} ptr [rdi], {register}", width, "exchange"),
            a(f"lock cmpxchg {size} ptr [rdi], {register}", width, "compare and exchange"),
        ]
    accesses += [
        a("movups xmm0, xmmword ptr [rdi]", 16), a("movups xmmword ptr [rdi], xmm0", 16),
        a("movaps xmm0, xmmword ptr [rdi]", 16, aligned=True),
        a("movaps xmmword ptr [rdi], xmm0", 16, aligned=True),
        a("lock cmpxchg16b xmmword ptr [rdi]", 16),
        Access("push", assemble("amd64", "push rax"), 8, True, vector),
        Access("push16", assemble("amd64", "push ax"), 2, True),
        Access("call", assemble("amd64", "call rbx"), 8, True),
        Access("enter", b"\xc8\x10\x00\x00", 8, True),
        Access("pop", assemble("amd64", "pop rax"), 8), Access("ret", b"\xc3", 8),
        Access("leave", b"\xc9", 8),
        a("stosq", 8, "stos"), a("rep stosq", 8, "rep stos", setup={"rcx": 3}),
        a("lodsb", 1, "lods"), a("sgdt [rdi]", 10, "sgdt"), a("cmp qword ptr [rdi], rax", 8),
    ]
    present, write, user, accessed, no_execute = 1, 2, 4, 0x60, 1 << 63
    pages = {
        "rw": lambda p: p | present | write | accessed | no_execute,
        "absent": lambda p: p & ~PAGE, "ro": lambda p: p | present | accessed | no_execute,
        "rx": lambda p: p | present | accessed,
        "fresh": lambda p: p | present | write,  # accessed and dirty bits are clear
        "user": lambda p: p | present | write | user | accessed,
        "reserved": lambda p: p | present | write | accessed | 1 << 51,
    }
    others = tuple(Access(name, code, 0, setup=setup or {}) for name, code, setup in (
        ("ud2", b"\x0f\x0b", None), ("ud1", b"\x0f\xb9\xc0", None),
        ("div by zero", assemble("amd64", "div rcx"), {"rcx": 0}),
        ("div overflow", assemble("amd64", "div rcx"), {"rcx": 1, "rdx": 2}),
        ("not canonical", assemble("amd64", "mov rax, [rcx]"), {"rcx": 1 << 60}),
        ("not canonical store", assemble("amd64", "mov [rcx], rax"), {"rcx": 1 << 60}),
        ("lidt", assemble("amd64", "lidt [rcx]"), {"rcx": 1 << 60}),
        ("bad selector", assemble("amd64", "mov fs, ecx"), {"rcx": 0x1230}),
        ("bad msr", assemble("amd64", "wrmsr"), {"rcx": 0xC0000080, "rax": 0, "rdx": 1}),
        ("int3", b"\xcc", None), ("int 0x80", b"\xcd\x80", None), ("int 0xd", b"\xcd\x0d", None),
        ("int 0xe", b"\xcd\x0e", None), ("int 0x0", b"\xcd\x00", None),
        ("int 0x3", b"\xcd\x03", None), ("nop", b"\x90", None),
        ("lock nop", b"\xf0\x90", None), ("mov cr8", assemble("amd64", "mov rax, cr8"), None),
        ("mov cr1", b"\x0f\x20\xc8", None),
        ("into", b"\xce", None), ("salc", b"\xd6", None),
    ))
    privileged = tuple(Access(name, code, 0, setup=setup or {}) for name, code, setup in (
        ("syscall", b"\x0f\x05", None), ("hlt", b"\xf4", None), ("cli", b"\xfa", None),
        ("sti", b"\xfb", None), ("clts", b"\x0f\x06", None), ("rdmsr", b"\x0f\x32", None),
        ("swapgs", b"\x0f\x01\xf8", None), ("sysret", b"\x48\x0f\x07", None),
        ("mov to cr3", b"\x0f\x22\xd8", None), ("mov of dr7", b"\x0f\x21\xf8", None),
        ("int 0x81", b"\xcd\x81", None), ("int 0x2", b"\xcd\x02", None),
        ("int 0x8", b"\xcd\x08", None), ("invlpg", b"\x0f\x01\x3f", None),
        ("wbinvd", b"\x0f\x09", None), ("lmsw", b"\x0f\x01\xf0", None),
        ("kernel selector", assemble("amd64", "mov fs, ecx"), {"rcx": 16}),
        ("popf keeps IF", assemble("amd64", "popfq"), None),
        ("kernel's memory", assemble("amd64", "mov rax, [rcx]"), {"rcx": -1 << 31 & (1 << 64) - 1}),
    ))
    return Table("rdi", tuple(accesses), pages,
                 Access("fetch", assemble("amd64", "jmp rdi"), 0), others,
                 (0, 1, 2, 3, 4, 6, 7, 8, 9, 12, 15, 16), assemble("amd64", "add rax, 1"), True,
                 lambda entry: entry ^ user, privileged, frozenset(("rx", "fresh", "user")))


def _arm64() -> Table:
    def a(text, width, name=None, **more):
        return Access(name or text, assemble("arm64", text), width, **more)

    accesses = (
        a("ldrb w1, [x0]", 1), a("strb w1, [x0]", 1), a("ldrh w1, [x0]", 2),
        a("strh w1, [x0]", 2), a("ldr w1, [x0]", 4), a("str w1, [x0]", 4),
        a("ldr x1, [x0]", 8), a("str x1, [x0]", 8), a("ldrsw x1, [x0]", 4),
        a("ldrsb w1, [x0]", 1), a("ldp x1, x2, [x0]", 16), a("stp x1, x2, [x0]", 16),
        a("ldr q0, [x0]", 16), a("str q0, [x0]", 16), a("ldr x1, [x0], #16", 8),
        a("str x1, [x0, #-8]!", 8, below=True), a("stp x1, x2, [x0, #-16]!", 16, below=True),
        a("ldxr w1, [x0]", 4), a("ldxr x1, [x0]", 8), a("ldaxr x1, [x0]", 8),
        a("ldxp x1, x2, [x0]", 16), a("ldar x1, [x0]", 8, aligned=True),
        a("stlr x1, [x0]", 8, aligned=True),
        a("stlrb w1, [x0]", 1), a("ldxrb w1, [x0]", 1), a("ldtr x1, [x0]", 8, "ldtr"),
        a("sttr x1, [x0]", 8, "sttr"), a("dc zva, x0", 64, "dc zva"),
        a("dc cvac, x0", 1, "dc cvac"), a("ic ivau, x0", 1, "ic ivau"), a("prfm pldl1keep, [x0]", 0,
                                                                       "prfm"),
        a("at s1e1r, x0", 0, "at"),
    )
    table, af, share, user, read_only = 3, 1 << 10, 3 << 8, 1 << 6, 1 << 7
    pxn, uxn = 1 << 53, 1 << 54
    usual = table | af | share
    pages = {
        "rw": lambda p: p | usual | pxn | uxn, "absent": lambda p: p & ~3,
        "ro": lambda p: p | usual | read_only | pxn | uxn,
        "rx": lambda p: p | usual | read_only | uxn,
        "fresh": lambda p: p | usual & ~af | pxn | uxn,  # access flag is clear
        "user": lambda p: p | usual | user, "reserved": lambda p: p | usual & ~2 | pxn,
    }
    others = tuple(Access(name, code, 0) for name, code in (
        ("udf", words(0)), ("brk", words(0xD4200000 | 0x40D << 5)), ("brk 7", words(0xD42000E0)),
        ("svc", words(0xD4000001 | 0x123 << 5)), ("nop", words(0xD503201F)),
        ("unallocated", words(0x00112233)),
        ("mrs of EL2", words(0xD53C1100)), ("msr of EL2", words(0xD51C1100)),
        ("mrs of EL3", words(0xD53E1100)), ("mrs of an unknown register", words(0xD53BFFE0)),
        ("msr of a read-only register", words(0xD5180000)), ("hlt", words(0xD4400000)),
        ("lse atomic", words(0xF8210002)), ("sve", words(0x04E03000)),
        ("pacia", words(0xDAC10020)), ("sev", words(0xD503209F)),
        ("dcps1", words(0xD4A00001)),
    ))
    def programs(entry):
        never = pxn | uxn
        if entry & never in (pxn, uxn):
            entry ^= never
        return entry ^ user

    privileged = tuple(Access(name, code, 0) for name, code in (
        ("mrs of EL1", words(0xD5381000)), ("msr of EL1", words(0xD5181000)),
        ("msr of tpidr_el0", words(0xD51BD040)), ("eret", words(0xD69F03E0)),
        ("tlbi", words(0xD508871F)),
        ("hvc", words(0xD4000002)), ("smc", words(0xD4000003)),
        ("dc ivac", words(0xD5087620)), ("dc isw", words(0xD5087640)),
        ("mrs of nzcv", words(0xD53B4200)), ("mrs of ctr", words(0xD53B0020)),
        ("mrs of dczid", words(0xD53B00E0)), ("msr of spsel", words(0xD50040BF)),
        ("mrs of currentel", words(0xD5384240)),
    ))
    return Table("x0", accesses, pages, Access("fetch", assemble("arm64", "br x0"), 0), others,
                 (0, 1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 64), words(0x91000421), False,
                 programs, privileged)


def _riscv64() -> Table:
    def load(kind, opcode=0x03):
        return words(opcode | 11 << 7 | kind << 12 | 10 << 15)

    def store(kind, opcode=0x23):
        return words(opcode | kind << 12 | 10 << 15 | 11 << 20)

    def atomic(function, width, source=11):
        return words(0x2F | 12 << 7 | width << 12 | 10 << 15 | source << 20 | function << 27)

    accesses = [Access(f"l{n}", load(kind), 1 << (kind & 3))
                for kind, n in enumerate(("b", "h", "w", "d", "bu", "hu", "wu"))]
    accesses += [Access(f"s{n}", store(kind), 1 << kind) for kind, n in enumerate("bhwd")]
    accesses += [Access("flw", load(2, 0x07), 4), Access("fld", load(3, 0x07), 8),
                 Access("fsw", store(2, 0x27), 4), Access("fsd", store(3, 0x27), 8)]
    for width, n in ((2, "w"), (3, "d")):
        accesses += [Access(f"lr.{n}", atomic(2, width, 0), 1 << width),
                     Access(f"sc.{n}", atomic(3, width), 1 << width)]
        accesses += [Access(f"amo{name}.{n}", atomic(function, width), 1 << width)
                     for name, function in (("add", 0), ("swap", 1), ("or", 8), ("maxu", 28))]
    # Compressed loads and stores of a1 at the address in a0
    accesses += [Access(name, code.to_bytes(2, "little"), width) for name, code, width in (
        ("c.lw", 0x410C, 4), ("c.sw", 0xC10C, 4), ("c.ld", 0x610C, 8), ("c.sd", 0xE10C, 8))]
    valid, read, write, execute, user, used = 1, 2, 4, 8, 16, 0xC0

    def entry(bits):
        return lambda p: p >> 2 | bits

    pages = {
        "rw": entry(valid | read | write | used), "absent": entry(0),
        "ro": entry(valid | read | used), "rx": entry(valid | read | execute | used),
        "fresh": entry(valid | read | write), "user": entry(valid | read | write | user | used),
        "reserved": entry(valid | write | used), "execute": entry(valid | execute | used),
        "user code": entry(valid | read | execute | user | used),
    }
    others = tuple(Access(name, code, 0) for name, code in (
        ("unimp", words(0xC0001073)), ("c.unimp", b"\0\0"), ("ebreak", words(0x00100073)),
        ("c.ebreak", b"\x02\x90"), ("all ones", words(0xFFFFFFFF)), ("nop", words(0x13)),
        ("mret", words(0x30200073)), ("csr of M", words(0x30002573)),
        ("unknown csr", words(0x5C002573)), ("write of a read-only csr", words(0xC0051073)),
    ))
    privileged = tuple(Access(name, code, 0) for name, code in (
        ("ecall", words(0x73)), ("sret", words(0x10200073)), ("sfence.vma", words(0x12000073)),
        ("csr of S", words(0x10002573)), ("write of a csr of S", words(0x10051073)),
        ("frcsr", words(0x00302573)), ("fence.i", words(0x0000100F)),
    ))
    return Table("a0", tuple(accesses), pages,
                 Access("fetch", words(0x00050067), 0), others,
                 (0, 1, 2, 3, 4, 6, 7, 8, 12, 15, 16), words(0x00158593), True,
                 lambda entry: entry ^ user, privileged)


TABLES = {"amd64": _amd64, "arm64": _arm64, "riscv64": _riscv64}
