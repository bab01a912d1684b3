import pytest
import unicorn

from emu.arch.parts import Parts
from emu.host.errors import MachineError
from emu.machine.call import Caller
from kinst.code.listing import image_code, instructions
from kinst.probes.breakpoints import Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers.kinst_provider import create
from kinst.relocation.trap import TRAPS
from kinst.relocation.verdict import Refuse

# Functions of the teaching kernel, with arguments that cover every path through them.
CALLS = [
    ("strlen", ["hello"]), ("strcmp", ["abc", "abd"]), ("memcmp", ["abc", "abc", 3]),
    ("strtoul", [" -0x1fg", 0, 0]), ("strtoul", ["0755", 0, 0]), ("crc32", [0, "hello", 5]),
    ("fletcher32", ["abcdefgh", 4]), ("adler32", ["abcdefgh", 8]), ("fibonacci", [6]),
    ("collatz", [27]), ("account", [5]), ("account", [2_000_000]), ("refund", [999_999]),
    ("audit", [7]), ("tail_even", [4]), ("tail_even", [7]), ("describe", [3]),
    *(("classify", [kind, 12]) for kind in range(9)),
    ("spin_lock", [b"\0" * 8]), ("spin_unlock", [b"\1" + b"\0" * 7]), ("cnputs", ["text\n"]),
    ("print_number", [123456, 10]),
]

FOOTPRINTS = Parts("emu.unicorn.{}._cpu", "FOOTPRINT")


def run(machine, name, arguments):
    caller = Caller(machine)
    values = []
    for argument in arguments:
        if isinstance(argument, str):
            argument = argument.encode() + b"\0"
        values.append(caller.place(argument) if isinstance(argument, bytes) else argument)
    return caller.call(machine.symbol(name).address, values, name)


def listed(machine, name):
    symbol = machine.symbol(name)
    return list(instructions(TRAPS[machine.arch.name], image_code(machine.image, symbol), symbol))


# Options for handling a firing; all of them must have the same effect.
WAYS = {"guest": {"path": "guest"}, "direct": {"path": "direct"},
        "double": {"path": "double"}, "python": {"path": "double", "python": True}}


@pytest.mark.parametrize("name, arguments", CALLS, ids=lambda v: str(v))
def test_tracing_every_instruction_changes_nothing_on_any_trap_path(booted, name, arguments):
    """The compared digests cover memory, registers, devices, the clock and the console."""
    machine = booted
    plain = machine.snapshot()
    value = run(machine, name, arguments)
    untraced = machine.digest()
    orders = []
    for way in WAYS.values():
        machine.restore(plain)
        order = []
        kinst = Breakpoints(machine, lambda probe, state, o=order: o.append(probe.id), **way)
        numbers = create(kinst, name, "")
        kinst.enable()
        traced = run(machine, name, arguments)
        kinst.disable()
        assert traced == value
        assert order and set(order) <= {n + 1 for n in numbers}
        assert machine.digest() == untraced
        orders.append(order)
    assert all(order == orders[0] for order in orders)


def executed(machine, function, work):
    """Return the offsets that a function executes, as recorded by a Unicorn hook."""
    symbol = machine.symbol(function)
    seen = []
    hook = machine.uc.hook_add(
        unicorn.UC_HOOK_CODE, lambda _uc, at, _size, _d: seen.append(at - symbol.address),
        begin=symbol.address, end=symbol.address + symbol.size - 1)
    machine.engine.flush_translations()
    plain = machine.snapshot()
    work()
    machine.uc.hook_del(hook)
    machine.restore(plain)
    return seen


def fired(machine, function, work):
    kinst = Breakpoints(machine)
    order = []
    kinst.fire = lambda probe, state: order.append(probe.instruction.offset)
    probes = {kinst.probe(n).instruction.offset for n in create(kinst, function, "")}
    kinst.enable()
    work()
    kinst.disable()
    return order, probes


@pytest.mark.parametrize("name, arguments", [
    ("strlen", ["hello"]), ("fibonacci", [5]), ("crc32", [0, "abc", 3]), ("classify", [5, 27]),
    ("strtoul", ["0x1f", 0, 0]), ("spin_lock", [b"\0" * 8]),
], ids=lambda v: str(v))
def test_every_executed_probe_site_fires_in_order(booted, name, arguments):
    truth = executed(booted, name, lambda: run(booted, name, arguments))
    order, probes = fired(booted, name, lambda: run(booted, name, arguments))
    assert order == [offset for offset in truth if offset in probes]
    assert len(order) > 3


def test_a_firing_sees_the_registers_before_the_instruction(booted):
    kinst = Breakpoints(booted)
    seen = []
    first = booted.arch.arguments[0]
    kinst.fire = lambda probe, state: seen.append((state.get(first), state.get(booted.arch.pc)))
    create(kinst, "fibonacci", "0")
    kinst.enable()
    run(booted, "fibonacci", [3])
    begin = booted.symbol("fibonacci").address
    assert seen[0] == (3, begin) and seen[1] == (2, begin)


def test_disabling_probes_restores_memory(booted):
    before = booted.digest()
    kinst = Breakpoints(booted)
    for name in ("strlen", "crc32", "classify"):
        create(kinst, name, "")
    kinst.enable()
    assert booted.digest() != before
    kinst.disable()
    assert booted.digest() == before


def test_probes_in_several_functions_work_together(booted):
    kinst = Breakpoints(booted)
    names = set()
    kinst.fire = lambda probe, state: names.add(probe.function)
    for name in ("classify", "account", "fibonacci"):
        create(kinst, name, "")
    kinst.enable()
    assert run(booted, "classify", [4, 10]) == 55
    assert names == {"classify", "fibonacci"}


def test_instructions_of_an_exclusive_access_are_refused(booted, arch):
    if arch == "amd64":
        kinst = Breakpoints(booted)
        # amd64 uses an instruction with a LOCK prefix, which can be displaced.
        assert create(kinst, "spin_lock", "")
        return
    kinst = Breakpoints(booted)
    refused = [i for i in listed(booted, "spin_lock")
               if isinstance(i.verdict, Refuse)]
    assert len(refused) >= 3
    assert all("exclusive" in i.verdict.reason or "reserved" in i.verdict.reason
               for i in refused)


@pytest.mark.parametrize("function, name, says", [
    ("strlne", "", "no function 'strlne'; did you mean strlen"),
    ("strlen", "100000", "ends at offset"),
    ("strlen", "-1", "not a decimal byte offset"),
    ("strlen", "two", "not a decimal byte offset"),
    ("cpu_switch", "", "excluded"),
])
def test_an_impossible_probe_is_refused_with_the_reason(booted, function, name, says):
    with pytest.raises(ProbeError, match=says):
        create(Breakpoints(booted), function, name)


def test_an_offset_inside_an_instruction_reports_the_nearest_boundaries(booted):
    kinst = Breakpoints(booted)
    table = listed(booted, "crc32")
    long = next(i for i in table if len(i.code) > 2 and i.offset)
    after = long.offset + len(long.code)
    with pytest.raises(ProbeError, match=f"nearest are {long.offset} and {after}"):
        create(kinst, "crc32", str(long.offset + 1))


def test_creating_the_same_probe_twice_adds_it_once(booted):
    kinst = Breakpoints(booted)
    one = create(kinst, "strlen", "0")
    every = create(kinst, "strlen", "")
    assert one[0] in every and len(kinst.probes) == len(every)


@pytest.mark.parametrize("fails", ["write_u64", "patch", "read_u64"])
def test_a_failure_while_enabling_probes_restores_memory(booted, monkeypatch, fails):
    before = booted.digest()
    kinst = Breakpoints(booted)
    create(kinst, "strlen", "")

    def broken(*_arguments):
        raise MachineError("simulated failure")

    with monkeypatch.context() as patched:
        patched.setattr(booted, fails, broken)
        with pytest.raises(MachineError, match="simulated failure"):
            kinst.enable()
    assert not kinst.enabled and booted.digest() == before
    kinst.enable()
    assert run(booted, "strlen", ["abc"]) == 3
    kinst.disable()


def test_a_trap_path_that_uses_too_much_stack_is_reported(booted):
    """Simulate a trap path that writes too far down the stack."""
    def deep(_address, _frame):
        address, content = booted.engine.detour.kept_stack
        booted.write(address + 16, bytes([content[16] ^ 1]))

    breakpoints = Breakpoints(booted, python=True)
    breakpoints.trapped = deep
    create(breakpoints, "strlen", "")
    breakpoints.enable()
    limit = FOOTPRINTS[booted.arch.name]
    with pytest.raises(MachineError, match=f"has used more than {limit} bytes of stack"):
        run(booted, "strlen", ["hello"])


def test_the_trap_path_stays_within_the_saved_stack(booted):
    """At each firing, the trap path has used less than half of the saved stack."""
    used = []

    def measure(_address, _frame):
        address, before = booted.engine.detour.kept_stack
        now = booted.read(address, len(before))
        lowest = next((n for n in range(len(now)) if now[n] != before[n]), len(now))
        used.append(len(now) - lowest)

    breakpoints = Breakpoints(booted, python=True)
    breakpoints.trapped = measure
    create(breakpoints, "strlen", "")
    breakpoints.enable()
    run(booted, "strlen", ["hello"])
    assert used and 0 < max(used) < FOOTPRINTS[booted.arch.name] // 2
