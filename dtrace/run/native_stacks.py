"""Stacks that the runtime walks by itself: what it must know of the machine and its kernel."""

from collections.abc import Callable

from dtrace.bpf._runtime import Runtime
from dtrace.bpf.layout import ProgramShape, StackShape, StepKind
from dtrace.d.language.identifiers import HOSTED_NUMBERS
from dtrace.run.kernel import CALLER, INSTRUCTION, MARKS
from dtrace.stacks.stack import FrameStep, Stacks, trap_step
from dtrace.stacks.user_programs import UserPrograms
from emu.machine.machine import Machine
from kinst.relocation.trap import TRAPS

Steps = tuple[int, FrameStep | None]


def walk_kernel(runtime: Runtime, machine: Machine, stacks: Callable[[], Stacks],
                marked: bool) -> None:
    """:param marked: frames say what they are, by ``MARKS``."""
    arch, image = machine.arch, machine.image
    places = {name: n for n, name in enumerate(arch.registers)}
    names = [name for name in dict.fromkeys((*arch.dwarf_registers, arch.pc)) if name]
    begins = [*(s.virtual for s in image.segments), *(m.address for m in image.modules)]

    def step(pc: int, is_return: bool) -> Steps:
        if not image.holds_code(pc):
            # Where that is no return, the host knows more.
            return StepKind.OUTSIDE, None
        found = stacks().step(pc, is_return)
        return (StepKind.LAST if found is None else StepKind.TRAP if found.trap
                else StepKind.ON), found

    runtime.walk_stacks(StackShape(
        {name: places[name] for name in names}, arch.pc, arch.sp, trap_step(machine).saved,
        min(begins), image.virtual_end, machine.guest.entry_address(image),
        bool(machine.guest.boot.shell_prompt),
        (MARKS, INSTRUCTION, CALLER) if marked else (0, 0, 0), HOSTED_NUMBERS["stackdepth"],
        HOSTED_NUMBERS["caller"], HOSTED_NUMBERS["ustackdepth"], HOSTED_NUMBERS["ucaller"]), step)


def walk_program(runtime: Runtime, machine: Machine, programs: UserPrograms, thread_frame: int,
                 name_size: int) -> None:
    """:param thread_frame: where a thread has the address of its trap frame.
    :param name_size: bytes of a process's name.
    """
    arch, field = machine.arch, TRAPS[machine.arch.name].frame.field
    register, saved, returns = arch.frame_record
    fields = machine.guest.traps.trap_frame.fields
    found = {index: fields[field(name)]
             for index, name in machine.guest.registers.places.items() if field(name) in fields}
    runtime.walk_programs(ProgramShape(
        thread_frame, found, fields[field(arch.pc)], fields[field(register)],
        (saved, returns), HOSTED_NUMBERS["execname"],
        name_size), lambda name: programs.number(name.decode("utf-8", "replace")))
