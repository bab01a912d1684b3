"""Description of a machine's stacks for the runtime's native stack walks."""

from collections.abc import Callable, Sequence

from dtrace.bpf._runtime import Runtime
from dtrace.bpf.layout import ProgramShape, SpaceOffsets, StackShape, StepKind
from dtrace.d.language.identifiers import HOSTED_NUMBERS
from dtrace.run.kernel import CALLER, INSTRUCTION, MARKS
from dtrace.stacks.frame_step import FrameStep
from dtrace.stacks.stack import Stacks, trap_step
from dtrace.stacks.user_steps import UserStep
from emu.machine.machine import Machine
from kinst.relocation.trap import TRAPS

Steps = tuple[int, FrameStep | None, bool]


def walk_kernel(runtime: Runtime, machine: Machine, stacks: Callable[[], Stacks],
                user_step: Callable[[int, bool], UserStep], marked: bool) -> None:
    """Let a runtime walk kernel stacks natively.

    :param stacks: returns the stack walker that computes the steps between frames.
    :param user_step: returns the step from a word of a user stack (``UserSteps.step``).
    :param marked: whether to mark the kind of each frame's address in the ``MARKS`` bits.
    """
    arch, image = machine.arch, machine.image
    places = {name: n for n, name in enumerate(arch.registers)}
    names = [name for name in dict.fromkeys((*arch.dwarf_registers, arch.pc)) if name]
    begins = [*(s.virtual for s in image.segments), *(m.address for m in image.modules)]

    programs = bool(machine.guest.boot.shell_prompt)

    def step(pc: int, is_return: bool) -> Steps:
        if programs and not pc >> 63:
            found = user_step(pc, is_return)
            return (found.kind if found.kept else 0), found.step, found.called
        if not image.holds_code(pc):
            # A return address outside the kernel ends the stack; the host handles other addresses.
            return StepKind.OUTSIDE, None, False
        frame_step = stacks().step(pc, is_return)
        return (StepKind.LAST if frame_step is None else StepKind.TRAP if frame_step.trap
                else StepKind.ON), frame_step, True

    runtime.walk_stacks(StackShape(
        {name: places[name] for name in names}, arch.pc, arch.sp, trap_step(machine).saved,
        min(begins), image.virtual_end, machine.guest.entry_address(image),
        programs, (MARKS, INSTRUCTION, CALLER) if marked else (0, 0, 0),
        HOSTED_NUMBERS["stackdepth"], HOSTED_NUMBERS["caller"], HOSTED_NUMBERS["ustackdepth"],
        HOSTED_NUMBERS["ucaller"]), step)


def walk_program(runtime: Runtime, machine: Machine, number: Callable[[str], int],
                 thread_frame: int, name_size: int, signal: Sequence[tuple[str, int, int]],
                 space: SpaceOffsets | None) -> None:
    """Let a runtime walk user stacks natively.

    :param number: returns the number of the running process; called with its name.
    :param thread_frame: offset in a thread of the pointer to its trap frame.
    :param name_size: size of a process's name in bytes.
    :param signal: as in ``ProgramShape``, and ``space``.
    """
    arch, field = machine.arch, TRAPS[machine.arch.name].frame.field
    register, saved, returns = arch.frame_record
    fields = machine.guest.traps.trap_frame.fields
    registers = {
        index: fields[field(name)]
        for index, name in machine.guest.registers.places.items() if field(name) in fields}
    runtime.walk_programs(ProgramShape(
        thread_frame, registers, register, (saved, returns), HOSTED_NUMBERS["execname"],
        name_size, signal, space), lambda name: number(name.decode("utf-8", "replace")))
