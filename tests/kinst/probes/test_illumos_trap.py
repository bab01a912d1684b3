"""Tests of the illumos trap path, on which the kernel emulates the probed instruction."""

import shutil

import pytest

import kinst_emu
from emu.machine.call import Caller
from emu.machine.machine import Until
from images import boots, catalog
from kinst.probes.breakpoints import DIRECT, DOUBLE, Breakpoints
from kinst.probes.probed_code import ProbeError
from kinst.providers.fbt import create
from tests.conftest import MEMORY
from tests.kinst_emu.commands.test_front import refused, run

NAME = "teaching/amd64-illumos"
CALLS = ('strlen("hello")', 'strtoul(" -0x12zz", 0, 16)', 'crc32(0, "hello", 5)', "describe(3)",
         "classify(4, 1000)", "run_lesson()", 'note_keep("buy milk")', "note_letters()")


@pytest.fixture
def kernel():
    return kinst_emu.open(NAME)


@pytest.fixture
def machine(kernel):
    return kernel.boot("64M")


def counted(machine, wanted="fbt:::"):
    """Trace ``CALLS`` and return (number of firings by probe, call results, digest)."""
    with machine.trace(f"{wanted} {{ @[probefunc, probename] = count(); }}") as traced:
        results = [machine.evaluate(call) for call in CALLS]
    return traced.aggregations.get("@", {}), results, machine.digest()


def test_all_fbt_probes_fire_as_on_the_freebsd_kernel_and_change_nothing(machine):
    state = machine.keep()
    plain = [machine.evaluate(call) for call in CALLS]
    untouched = machine.digest()
    machine.restore(state)
    fired, results, digest = counted(machine)
    assert results == plain and digest == untouched
    other = kinst_emu.open("teaching/amd64").boot("64M")
    expected, freebsd, _digest = counted(other)
    assert [one for one in freebsd if not isinstance(one, kinst_emu.CPointer)] == [
        one for one in plain if not isinstance(one, kinst_emu.CPointer)]
    # As on illumos, a jump to another function cannot carry a probe.
    entries = {key: count for key, count in expected.items() if key[1] == "entry"
               and machine.kernel.instructions(key[0])[0].text == "push rbp"}
    assert len(entries) > 8
    assert {key: count for key, count in fired.items() if key[1] == "entry"} == entries
    returns = {key: count for key, count in fired.items() if key[1] == "return"}
    assert len(returns) >= 8
    assert all(expected[key] >= count for key, count in returns.items())
    assert returns["strlen", "return"] == expected["strlen", "return"]


def test_the_prompt_works_with_all_fbt_probes_and_a_ticking_clock(machine):
    state = machine.keep()

    def session():
        for line in ("strings\r", "lesson\r", "keep\r"):
            machine.type(line)
            machine.run(console=kinst_emu.PROMPTS)
        return machine.console, machine.instructions, machine.digest()

    plain = session()
    machine.restore(state)
    with machine.probe("fbt:::") as probes:
        probed = session()
    assert probed == plain and probes.count > 500
    machine.restore(state)
    with machine.probe("fbt:::", trap_path="direct") as direct:
        assert session() == plain
    assert direct.count == probes.count


@pytest.mark.parametrize("size", [1, 7, 100])
def test_running_in_small_steps_changes_nothing(kernel, size):
    def session(size, probed):
        machine = kernel.boot("64M")
        machine.type("strings\r")
        first, count = machine.instructions, 0
        if probed:
            with machine.probe("fbt::str*:") as probes:
                while machine.instructions < first + 1400:
                    machine.run(instructions=size)
            count = probes.count
        else:
            machine.run(instructions=1400)
        return count, machine.digest()

    plain = session(1400, False)
    assert session(1400, True)[1] == plain[1]
    count, digest = session(size, True)
    assert digest == plain[1] and count > 4


def called(machine, *arguments):
    return Caller(machine).call_symbol(machine.symbol("note_letters"), list(arguments))


# push %rbp; mov %rsp, %rbp; nop; lea 1(%rdi), %rax; leave; ret
CODE = bytes.fromhex("55 4889e5 90 488d4701 c9 c3")


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("offset", [0, 4, 9, 10])
def test_the_kernel_emulates_each_of_the_four_instructions(offset, python):
    """The four probed instructions are push %rbp, nop, leave and ret."""
    def machine():
        found = boots.booted(catalog.find(NAME), MEMORY)
        found.write_code(found.symbol("note_letters").address, CODE)
        return found

    plain = machine()
    result = called(plain, 41)
    probed = machine()
    seen = []
    table = Breakpoints(probed, lambda probe, state: seen.append(
        [state.get(name) for name in ("rdi", "rsp", "rbp", "rip", "rflags")]),
        DOUBLE if python else "guest", python=python)
    function = probed.symbol("note_letters")
    found = next(one for one in table.instructions(function) if one.offset == offset)
    table.add(function, 0, found)
    table.enable()
    assert called(probed, 41) == result == 42
    table.disable()
    assert len(seen) == 1 and seen[0][0] == 41 and seen[0][3] == function.address + offset
    assert probed.digest() == plain.digest()


def test_instructions_that_the_vectors_cannot_emulate_are_refused(machine):
    with pytest.raises(kinst_emu.KinstError, match="cannot be emulated by this kernel's vectors"):
        machine.probe("kinst::strlen:1")
    with machine.probe("kinst::strlen:") as probes:
        assert [name.rpartition(":")[2] for name in probes.names] == ["0", "28"]
    verdicts = {one.text: one.verdict for one in machine.kernel.instructions("strlen")}
    assert verdicts["push rbp"] == "emulate" == verdicts["ret"]
    assert verdicts["mov rbp, rsp"].startswith("refuse: cannot be emulated")
    refused(run("kinst", "explain", "-k", NAME, "strlen:4", "-c", 'strlen("a")'),
            "cannot be probed")


def test_the_trap_path_is_excluded_from_probes():
    machine = boots.booted(catalog.find(NAME), MEMORY)
    table = Breakpoints(machine)
    create(table, "*", "")
    names = {table.names(number)[2] for number in range(len(table.probes))}
    assert "strlen" in names and not names & {"brktrap", "dtrace_invop", "tr_brktrap", "invop_ret"}
    with pytest.raises(ProbeError, match="excluded"):
        create(table, "dtrace_invop", "entry")


def test_the_kernel_handles_breakpoints_without_a_probe():
    machine = boots.booted(catalog.find(NAME), MEMORY)
    machine.write_code(machine.symbol("note_letters").address, b"\xcc")
    with pytest.raises(kinst_emu.CallError) as failed:
        called(machine)
    assert b"breakpoint at " in bytes(machine.console.text) or "breakpoint at" in str(
        getattr(failed.value, "console", ""))
    other = boots.booted(catalog.find(NAME), MEMORY)
    other.write_code(other.symbol("note_letters").address, b"\x0f\x0b")
    with pytest.raises(kinst_emu.CallError):
        called(other)
    assert b"invalid opcode at " in bytes(other.console.text)


def test_an_invalid_opcode_is_not_mistaken_for_a_breakpoint(machine):
    """Execute UD2, which also calls dtrace_invop, at an address without a probe."""
    with machine.probe("fbt::strlen:") as probes:
        machine.emulated.write_code(machine.kernel.symbol("note_letters"), b"\x0f\x0b")
        with pytest.raises(kinst_emu.CallError):
            machine.call("note_letters")
    assert probes.count == 0


def test_an_explanation_shows_the_illumos_stack_frame_and_return(tmp_path):
    page = tmp_path / "x.html"
    done = run("kinst", "explain", "-k", NAME, "strlen:0", "-c", 'strlen("hi")', "-n",
               "{ trace(arg0); }", "--html", str(page))
    assert done.returncode == 0, done
    text = page.read_text()
    for said in ("tr_brktrap", "brktrap has decremented it", "the handler returns 1",
                 "The kernel does the work of the instruction and returns", "invop_push",
                 "savfp", "dtrace_invop_handler"):
        assert said in text, said
    assert "The trampoline</a>" not in text


def test_the_direct_path_fires_the_same_probes(machine):
    state = machine.keep()
    fired, results, digest = counted(machine)
    machine.restore(state)
    with machine.trace("fbt::: { @[probefunc, probename] = count(); }",
                       trap_path=DIRECT) as traced:
        assert [machine.evaluate(call) for call in CALLS] == results
    assert traced.aggregations["@"] == fired and machine.digest() == digest


def test_a_run_stops_at_an_address_after_a_probed_return(machine):
    machine.type("strings\r")
    with machine.probe("fbt::strlen:return") as probes:
        machine.emulated.run(Until(addresses=[machine.kernel.symbol("crc32")]))
        assert machine.pc == machine.kernel.symbol("crc32") and probes.count == 1


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
def test_qemu_fires_the_same_probes(machine):
    wanted = "fbt::strtoul:"
    call = 'strtoul(" -0x12zz", 0, 16)'
    with machine.on_qemu() as other, other.probe(wanted) as there:
        result = other.evaluate(call)
    with machine.probe(wanted) as here:
        assert machine.evaluate(call) == result
    assert [one.probe for one in there.records] == [one.probe for one in here.records]
    assert here.count == there.count == 2


@pytest.mark.parametrize("words, says", [
    (("quiz", "-k", NAME, "--questions", "1"), "no questions can be asked"),
    (("relocate", "-k", NAME, "strlen"), "no instruction can be relocated"),
    (("explain", "-k", NAME, "strlen:0", "-c", 'strlen("a")', "--what-if", "copy"),
     "needs trampolines"),
    (("explain", "-k", NAME, "strlen:0", "--run", 'strlen("a")', "--run", 'strlen("b")',
      "--schedule", "A B"), "no trampolines to share")])
def test_commands_about_trampolines_are_refused(words, says):
    refused(run("kinst", *words), says)


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="QEMU is not installed")
def test_calls_agree_with_qemu_in_lockstep_and_a_fault_is_found():
    done = run("kinst", "xval", "-k", NAME, "-c", 'strlen("hello")')
    assert done.returncode == 0 and "1 calls agree" in done.stdout, done
    assert "2 firings on both machines" in done.stdout
    assert run("kinst", "xval", "-k", NAME, "-c", 'strlen("hello")', "--fault",
               "delivery").returncode == 1
