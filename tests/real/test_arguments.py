"""Tests that arguments read by probes match those that the called functions have stored."""

import pytest

import kinst_emu
from emu.host.errors import KinstError
from tests.conftest import ARCHES, real_kernel
from tests.generated_calls import SCALARS, SEEN, build
from tests.kinst_emu.commands.test_front import run

CALLS, PARTS = 1000, 10  # numbers of generated calls and of modules that contain them
LISTED, WORDS = 12, 10  # maximum numbers of compared parameters, and of arguments argN in D
SEED = 53
SIGNED = {"signed char", "short", "int", "long"}
FORMAT = "args[{}]{}"


@pytest.fixture(scope="module", params=ARCHES)
def kernel(request):
    return request.param, real_kernel(request.param)


def number(kind, content):
    return int.from_bytes(content, "little", signed=kind in SIGNED)


def parts(parameter):
    """Return (C suffix, offset, type) for each number in a parameter."""
    if not parameter.members:
        return [("", 0, parameter.type)]
    numbers, at = [], 0
    for kind, name, count in parameter.members:
        size = SCALARS[kind]
        at = at if parameter.packed else -(-at // size) * size
        for n in range(max(count, 1)):
            numbers.append((f".{name}[{n}]" if count else f".{name}", at, kind))
            at += size
    return numbers


def wanted(call, seen):
    """Return the numbers that the callee has stored, as one list for each compared parameter."""
    return [[number(kind, seen[offset + at : offset + at + SCALARS[kind]])
             for _suffix, at, kind in parts(parameter)]
            for parameter, offset in zip(call.parameters[:LISTED], call.offsets()[:LISTED],
                                         strict=True)]


def words_alone(call):
    """Return whether every parameter of a call is passed in exactly one word.

    Structures take several words, and on some architectures ``arg0`` is the address of a result.
    """
    return call.result == "void" and all(not p.members for p in call.parameters[:LISTED])


def program(calls):
    """Return a D program with fbt and kinst probes that print the arguments of every call."""
    clauses = []
    for call in calls:
        names = [FORMAT.format(n, suffix) for n, p in enumerate(call.parameters[:LISTED])
                 for suffix, _at, _kind in parts(p)]
        plain = min(len(names), WORDS) if words_alone(call) else 0
        names += [f"arg{n}" for n in range(plain)]
        text = " ".join(["%x"] * len(names))
        casts = ", ".join(f"(uint64_t){name}" for name in names)
        clauses += [f'{where} {{ printf("{call.name} {text}\\n", {casts}); }}'
                    for where in (f"fbt::{call.name}:entry", f"kinst::{call.name}:0")]
    return "\n".join(clauses)


def shown(call, numbers):
    """Return the values of ``args[]`` and ``argN`` that the D program should print for a call."""
    kinds = [kind for p in call.parameters[:LISTED] for _suffix, _at, kind in parts(p)]
    # FreeBSD's DTrace treats enumerations as unsigned.
    flat = [value & (1 << 8 * SCALARS[kind] if kind.startswith("enum") else 1 << 64) - 1
            for kind, value in zip(kinds, (value for values in numbers for value in values),
                                   strict=True)]
    raw = []
    if words_alone(call):
        raw = [(value, SCALARS[p.type]) for (value,), p in zip(
            numbers, call.parameters[:LISTED], strict=True)][:WORDS]
    return flat, raw


def held(call, line, numbers):
    name, *words = line.split()
    flat, raw = shown(call, numbers)
    values = [int(word, 16) for word in words]
    assert name == call.name
    assert values[: len(flat)] == flat, call
    # argN is the whole word that was passed; its bits above a narrow type are undefined.
    for value, (want, size) in zip(values[len(flat) :], raw, strict=True):
        mask = (1 << 8 * size) - 1
        assert value & mask == want & mask, call


def hold(lines, calls, stored):
    """Assert that the D program printed the values that the callees have stored."""
    assert len(lines) == 2 * len(calls)
    for n, (call, numbers) in enumerate(zip(calls, stored, strict=True)):
        held(call, lines[2 * n], numbers)
        held(call, lines[2 * n + 1], numbers)


def make_calls(machine, calls):
    """Make the calls and return the values that the callees have stored."""
    seen_at, stored = machine.kernel.symbol("seen"), []
    for call in calls:
        machine.call(f"drive{call.number}")
        stored.append(wanted(call, machine.read(seen_at, SEEN)))
    return stored


@pytest.fixture(scope="module")
def modules(kernel, tmp_path_factory):
    arch, image = kernel
    folder = tmp_path_factory.mktemp(arch)
    return [(image.path, *build(folder, arch, SEED + part, CALLS // PARTS))
            for part in range(PARTS)]


@pytest.mark.parametrize("part", range(PARTS))
def test_arguments_in_d_match_what_the_callee_stores(modules, part):
    path, module, calls = modules[part]
    machine = kinst_emu.open(path, [module]).boot()
    with machine.trace(program(calls), options={"strsize": 64, "bufsize": "16m"}) as trace:
        stored = make_calls(machine, calls)
        lines = [record.values[0].strip() for record in trace.records]
    assert not trace.errors
    hold(lines, calls, stored)


@pytest.mark.parametrize("part", range(PARTS))
def test_arguments_in_python_match_what_the_callee_stores(modules, part):
    path, module, calls = modules[part]
    machine = kinst_emu.open(path, [module]).boot()
    seen_at = machine.kernel.symbol("seen")
    fired = []

    def fire(firing):
        call = calls[int(firing.function.removeprefix("call"))]
        values = []
        for n, parameter in enumerate(call.parameters[:LISTED]):
            value = firing.arg(n)
            assert firing.args[f"p{n}"] == value or parameter.members
            values.append([number_of(value, suffix) for suffix, _at, _kind in parts(parameter)])
        fired.append(values)

    for where in ("fbt::call*:entry", "kinst::call*:0"):
        # unsafe=True includes functions without a frame, which patterns exclude as in FreeBSD.
        with machine.probe(where, fire, unsafe=True):
            for call in calls:
                fired.clear()
                machine.call(f"drive{call.number}")
                assert fired == [wanted(call, machine.read(seen_at, SEEN))], call


def number_of(value, suffix):
    """Return the number that a C suffix such as ``.name[1]`` selects in a value."""
    name, _bracket, index = suffix.removeprefix(".").rstrip("]").partition("[")
    if name:
        value = value[name]
    return int(value[int(index)]) if index else int(value)


@pytest.mark.parametrize("part", range(PARTS))
def test_arguments_on_qemu_match_what_the_callee_stores(modules, part, tmp_path):
    path, module, calls = modules[part]
    stored = make_calls(kinst_emu.open(path, [module]).boot(), calls)
    script = tmp_path / "arguments.d"
    script.write_text(program(calls))
    traced = run(
        "kdtrace", "-k", str(path), "--module", str(module), "--machine", "qemu", "-q", "-s",
        str(script), "-x", "bufsize=16m", "-c", "; ".join(f"drive{c.number}()" for c in calls))
    assert traced.returncode == 0, traced.stderr
    hold([line for line in traced.stdout.splitlines() if line.startswith("call")], calls, stored)


def test_reading_an_unknown_argument_is_an_error_and_others_are_readable(kernel):
    _arch, image = kernel
    machine = kinst_emu.open(image.path).boot()
    refused = []

    def fire(firing):
        for name in firing.args:
            try:
                firing.args[name]
            except KinstError as error:
                refused.append((firing.name, name, str(error)))

    with machine.probe("kinst::malloc:*", fire) as probes:
        machine.call("malloc", 100, machine.kernel.symbol("M_TEMP"), 2)
    assert probes.count > len(refused) // 3 > 0  # some arguments can be read after the entry
    assert all("is unknown at this instruction" in text for _where, _name, text in refused)
    assert not any(where == "0" for where, _name, _text in refused)
