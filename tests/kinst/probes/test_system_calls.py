"""Tests of system call probes on teaching kernels, with a dispatcher that the tests provide.

The tests overwrite ``describe`` with a dispatcher like that of a kernel: it computes the address of
the arguments in the thread and calls the function whose address is the thread's first word.  That
function overwrites ``note_letters`` and returns the thread's fifth word.
"""

import struct

import pytest

from dwarf.types import Integer, Member, Parameter, Pointer, Procedure, Structure, Void
from emu.guest.guest import CallMembers, GuestProbes, GuestPrograms, SystemCalls
from emu.guest.static_probe import CallTable, StaticProbe, SystemCall
from emu.machine.call import Caller
from kinst.probes import system_calls
from kinst.probes.breakpoints import PATHS, Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers.kinst_provider import create
from kinst.relocation.trap import TRAPS

# Per architecture: code of the dispatcher, code of the function it calls, thread register.
CODE = {
    "amd64": ("488db740000000" "ff17" "90" "c3", "8b4720" "c3", "gs_base"),
    "arm64": ("fd7bbfa9" "01000191" "090040f9" "20013fd6" "1f2003d5" "fd7bc1a8" "c0035fd6",
              "002040b9" "c0035fd6", "x18"),
    "riscv64": ("4111" "06e4" "93050504" "03330500" "0293" "13000000" "a260" "4101" "8280",
                "03250502" "8280", "tp"),
}
ARGUMENTS, ENTRY, VALUE, ERROR, FLAGS, KEPT = 64, 128, 136, 144, 148, 8
INT, LONG = Integer("int", 4, True), Integer("unsigned long", 8, False)


def structure(name, **members):
    made = tuple(Member(one, 8 * at, None, lambda kind=kind: kind)
                 for one, (at, kind) in members.items())
    return Structure("struct", name, 256, lambda: made)


CALL = structure("call_args", fd=(0, INT), fd_r_=(4, INT), length=(8, LONG), dummy=(16, INT))
THREAD = structure("thread", args=(ARGUMENTS, LONG), entry=(ENTRY, LONG), value=(VALUE, LONG),
                   error=(ERROR, INT), flags=(FLAGS, INT))


class Types:
    thread = THREAD

    def named(self, name):
        return [self.thread] if name == "struct thread" else []

    def function(self, name, address=None):
        return Procedure(tuple(Parameter("", lambda kind=kind: Pointer(lambda: kind))
                               for kind in (THREAD, CALL)), False, Void)


@pytest.fixture
def machine(booted):
    dispatcher, function, register = CODE[booted.arch.name]
    booted.write(booted.symbol("describe").address, bytes.fromhex(dispatcher))
    booted.write(booted.symbol("note_letters").address, bytes.fromhex(function))
    booted.table = table = CallTable(0x5000, 32, 3)
    probes = [StaticProbe("syscall", "freebsd", name, kind, (), (), SystemCall(
        table, index, "describe", kind == "return"))
        for index, name in ((1, "read"), (2, "write")) for kind in ("entry", "return")]
    booted.guest = booted.guest._replace(
        probes=GuestProbes(calls=lambda image, memory: probes),
        threads=booted.guest.threads._replace(per_cpu=register),
        programs=GuestPrograms(
            system_calls=SystemCalls(b"", "", (), "", ("", 0), "describe"),
            call_members=CallMembers("struct thread", "args", "entry", "value", "error", "flags",
                                     KEPT)))
    return booted


def thread(entry, function, error, flags=0, value=7):
    return (struct.pack("<QQQQQ", function, 0, 0, 0, error & 0xFFFFFFFF) + bytes(24)
            + struct.pack("<QQQ", 0xFFFFFFFF_FFFFFFFE & 0x1_FFFFFFFE, 1 << 40, 3)
            + bytes(ENTRY - 88) + struct.pack("<QQiI", entry, value, 55, flags))


def called(machine, content, times=1):
    """Call the dispatcher for a thread and return the memory of the thread after the call."""
    caller = Caller(machine)
    at, head = caller.place(content), None
    head = caller.place(struct.pack("<Q", at))
    machine.write_register(CODE[machine.arch.name][2], head)
    for _time in range(times):
        caller.call(machine.symbol("describe").address, [at], "describe")
    return machine.read(at, len(content))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("beside", ["", "describe"])
def test_probes_report_arguments_value_and_error_and_leave_no_trace(machine, path, beside):
    function = machine.symbol("note_letters").address
    good, bad, own, other = (thread(0x5000 + 32 * index, function, error, flags) for
                             index, error, flags in ((1, 0, 0), (2, 9, 0), (2, 9, KEPT), (0, 0, 0)))
    plain = machine.snapshot()
    kept = [called(machine, one) for one in (good, bad, own, other)]
    untraced = machine.digest()
    machine.restore(plain)
    reported = []

    def fire(probe, state):
        static = breakpoints.static(probe.id - 1)
        if static is not None:
            at = machine.read_u64(machine.read_register(machine.guest.threads.per_cpu))
            error = int.from_bytes(machine.read(at + ERROR, 4), "little", signed=True)
            reported.append((static.function, static.name, breakpoints.dispatcher.made[:3], error))

    breakpoints = Breakpoints(machine, fire=fire, path=path)
    numbers = [breakpoints.add_static(n, Types) for n in range(4)]
    assert breakpoints.add_static(2, Types) == numbers[2]
    others = create(breakpoints, beside, "") if beside else []
    breakpoints.enable()
    assert [called(machine, one) for one in (good, bad, own, other)] == kept
    breakpoints.disable()
    assert machine.digest() == untraced
    minus = (1 << 64) - 1
    given = (minus - 1, 1 << 40, 3)  # the first argument is an int
    assert reported == [("read", "entry", given, 55), ("read", "return", (7, 7, 0), 0),
                    ("write", "entry", given, 55), ("write", "return", (minus, minus, 0), 9),
                    ("write", "entry", given, 55), ("write", "return", (minus, minus, 0), 55)]
    counts = [breakpoints.dispatcher.probe(n)[4] for n in others]
    # A probe either fires at each of the four system calls, or is in code that is not executed.
    assert set(counts) <= {0, 4} and (not others or counts.count(4) >= 4)


def test_a_kernel_with_unexpected_types_or_code_is_refused(machine):
    with pytest.raises(ProbeError, match="need the kernel's types"):
        Breakpoints(machine).add_static(0)
    types = Types()
    types.thread = structure("thread", args=(ARGUMENTS + 8, LONG), entry=(0, LONG), value=(0, LONG),
                             error=(0, INT), flags=(0, INT))
    with pytest.raises(ProbeError, match="describe does not call"):
        Breakpoints(machine).add_static(0, lambda: types)
    types.thread = structure("thread", args=(0, LONG))
    with pytest.raises(ProbeError, match="struct thread has no member entry"):
        Breakpoints(machine).add_static(0, lambda: types)


@pytest.mark.parametrize("arch, code, wanted", [
    ("amd64", "488db728040000", 1064), ("amd64", "498db7f8ffffff", -8), ("amd64", "488d7728", None),
    ("amd64", "488db42428040000", None), ("amd64", "488dbf28040000", None),
    ("arm64", "01a11091", 1064), ("arm64", "00a11091", None), ("arm64", "01a150d1", None),
    ("riscv64", "93858c42", 1064), ("riscv64", "93858cff", -8),
    ("riscv64", "13858c42", None), ("riscv64", "a145", None)])
def test_the_offset_of_the_second_argument_is_decoded(arch, code, wanted):
    assert TRAPS[arch].instructions.second_argument(bytes.fromhex(code)) == wanted


def test_system_call_tables_are_bounded(machine):
    dispatcher = Breakpoints(machine).dispatcher
    for count, size in ((0, 32), (1 << 20, 32), (3, 4), (3, 1 << 20)):
        with pytest.raises(ValueError, match="invalid table of"):
            dispatcher.add_call_table(0, size, count)
    for _table in range(4):
        dispatcher.add_call_table(0, 32, 3)
    with pytest.raises(ValueError, match="too many tables"):
        dispatcher.add_call_table(0, 32, 3)
    number = dispatcher.add_static(0)
    for table, index, widths in ((4, 0, []), (-1, 0, []), (0, 3, []), (0, 0, [0] * 9),
                                 (0, 0, [64])):
        with pytest.raises(ValueError, match="system call"):
            dispatcher.add_call(table, index, False, number, widths)
    assert system_calls.width(CALL.members[0]) == -32
