import contextlib
import re

import pytest

import kinst_emu
from dwarf.types import Parameter, Procedure, Structure, Void
from tests.pythondoc import DOC, first_example, typed_in


def test_the_examples_produce_the_output_on_the_page(image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert typed_in(image, freebsd=False) == ""


def test_fifteen_lines_boot_a_kernel_and_print_a_register_at_each_firing(
        image, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *rows, last = first_example(image).splitlines()
    assert len(rows) > 10
    assert all(re.fullmatch(r"kinst:kernel:strlen:\d+: (rdi|x0|a0) = 0x[0-9a-f]+", row)
               for row in rows), rows
    assert last.startswith(f"5 characters, {len(rows)} firings of ")


def test_every_public_name_is_documented():
    text = DOC.read_text()
    for name in kinst_emu.__all__:
        assert f"kinst_emu.{name}" in text or f"`{name}`" in text, name


def test_every_public_name_exists():
    assert sorted(kinst_emu._MODULES) == sorted(kinst_emu.__all__)
    for name in kinst_emu.__all__:
        assert getattr(kinst_emu, name) is not None


# -- invalid uses of machines --------------------------------------------------------------------


@pytest.fixture
def machine(image):
    return kinst_emu.open(image.path).boot(memory="64M")


def test_a_machine_with_broken_page_tables_can_be_restored_with_probes():
    machine = kinst_emu.open("teaching/amd64").boot(memory="64M")
    state, digest = machine.keep(), machine.digest()
    probes = machine.probe("kinst::strlen:0")
    machine.emulated.write_register("cr3", 0x1000000)
    machine.restore(state)
    assert machine.call("strlen", "ab") == 2 and probes.count == 1
    machine.restore(state)
    probes.close()
    assert machine.digest() == digest


@pytest.mark.parametrize("change", [
    lambda m, p: m.call("strlen", "a"), lambda m, p: m.place("a"), lambda m, p: m.write(m.sp, b"a"),
    lambda m, p: m.registers.update({next(iter(m.registers)): 1}), lambda m, p: p.close(),
    lambda m, p: setattr(m, "pc", 0), lambda m, p: m.evaluate('strlen("a")'), lambda m, p: m.keep(),
    lambda m, p: m.probe("kinst::strlen:"),
], ids=range(9))
@pytest.mark.parametrize("where", ["ours", "QEMU"])
def test_callbacks_cannot_change_the_machine(machine, change, where):
    said = []

    def look(_firing):
        with pytest.raises(kinst_emu.KinstError) as error:
            change(here, probes)
        said.append(str(error.value))

    with contextlib.ExitStack() as stack:
        here = machine if where == "ours" else stack.enter_context(machine.on_qemu())
        with here.probe("kinst::strlen:0", look) as probes:
            assert here.call("strlen", "hello") == 5
        assert len(said) == 1 and here.call("strlen", "again") == 5


def test_an_exception_in_a_callback_on_qemu_stops_at_the_instruction(machine):
    def fail(_firing):
        raise ValueError("simulated failure")

    with machine.on_qemu() as other:
        with pytest.raises(ValueError, match="simulated"), other.probe("kinst::strlen:0", fail):
            other.call("strlen", "hello")
        assert other.where(other.pc) == "strlen+0x0"


def test_a_state_of_another_machine_is_refused(machine):
    larger = kinst_emu.open(machine.kernel.path).boot(memory="96M")
    before = machine.digest()
    with pytest.raises(kinst_emu.KinstError, match="belongs to another kernel, or to a machine"):
        machine.restore(larger.keep())
    assert machine.digest() == before


def test_probes_that_a_restored_state_cannot_have_are_closed(arch):
    machine = kinst_emu.open(f"teaching/{arch}").reset(memory="64M")
    first = machine.keep()
    machine.run(console=kinst_emu.PROMPTS)
    probes = machine.probe("kinst::uart_put:0")
    try:
        machine.restore(first)
    except kinst_emu.KinstError as error:
        assert "the probes were closed because they cannot be enabled again" in str(error)
        probes.close()
    machine.close_probes()
    assert machine.run(console=kinst_emu.PROMPTS).reason is kinst_emu.StopReason.CONSOLE
    machine.probe("kinst::uart_put:0").close()


def test_placed_data_is_kept_on_qemu_and_stays_below_the_stack(machine):
    first = machine.place("first")
    with machine.on_qemu() as other:
        assert other.call("strlen", "hello") == 5 and other.string(first) == "first"
    with pytest.raises(kinst_emu.CallError):
        machine.call("fibonacci", 30, limit=500)
    assert machine.place("y" * 100) < machine.sp


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "", "no/such/folder/a.rec"])
def test_an_invalid_recording_path_raises_a_one_line_error(machine, tmp_path, name):
    with pytest.raises(kinst_emu.KinstError) as error, machine.record(tmp_path / name):
        pass
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_program_options_must_be_a_dictionary(machine):
    with pytest.raises(TypeError, match="must be a dictionary"):
        machine.trace("BEGIN { exit(0); }", options="strsize=64")


def test_invalid_addresses_and_trap_paths_are_refused(machine):
    for place in (-1, 1 << 70, "strlen+x", "nowhere"):
        with pytest.raises(kinst_emu.KinstError):
            machine.run(place)
    with pytest.raises(kinst_emu.KinstError, match="must be one of guest, direct, double"):
        machine.probe("kinst::strlen:0", trap_path="fast")
    state = machine.keep()
    machine.restore(state)
    assert machine.run("strlen", instructions=10).reason is kinst_emu.StopReason.INSTRUCTIONS


def test_arguments_follow_the_calling_convention(machine):
    minus = machine.call("fibonacci", -1)
    assert machine.call("fibonacci", 0xFFFF_FFFF) == minus
    assert machine.evaluate("fibonacci(4294967295)") == minus
    with pytest.raises(kinst_emu.KinstError, match="does not fit"):
        machine.call("fibonacci", 1 << 32)
    with pytest.raises(kinst_emu.KinstError, match="does not fit"):
        machine.evaluate("p = 0x100000000; fibonacci(p)")
    with pytest.raises(TypeError, match="cannot be passed"):
        machine.call("fibonacci", 1.5)
    assert machine.evaluate("strlen(buf(4))", unchecked=True) == 0


def test_a_function_with_a_structure_parameter_is_refused(machine, monkeypatch):
    structure = Structure("struct", "s", 24, lambda: ())
    monkeypatch.setattr(machine.kernel.prototypes, "of", lambda name, address: Procedure(
        (Parameter("a", lambda: structure),), False, Void))
    with pytest.raises(kinst_emu.KinstError, match="of type struct s are not supported"):
        machine.call("strlen", "a")
