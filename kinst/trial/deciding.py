"""Which lines of the module's source decided what becomes of an instruction.

The module is stepped through, once for the instruction in question and once for one that needs
nothing special; what only the first comes to is what decided, and the last of it is named, in each
function.
"""

from collections.abc import Callable, Iterator

from emu.machine import Until
from kinst.trial.bed import NAME, Bed, Sample

FUNCTIONS = 4  # that are named
STEPS = 20_000  # instructions that are stepped through
Describe = Callable[[int], str]  # of an address: function  file:line


def deciding(bed: Bed, code: bytes, plain: bytes, state: int, describe: Describe) -> str:
    """The lines that made the probe what it is, and that carried it out.

    :param plain: an instruction that can be copied, for comparison.
    """
    made, done = _lines(bed, code, state, describe)
    made_plain, done_plain = _lines(bed, plain, state, describe)
    words = [f"{word} {', '.join(lines)}" for word, lines in (
        ("decided in", _own(made, made_plain)), ("carried out in", _own(done, done_plain)))
        if lines]
    return "; ".join(words)


def _own(lines: list[str], others: list[str]) -> list[str]:
    """Of each function, the last line that the others do not come to, the last functions first; the
    last line of all where there is none."""
    known = set(others)
    found: dict[str, str] = {}
    for line in reversed(lines):
        if line not in known:
            found.setdefault(line.partition(" ")[0], line)
    return list(found.values())[:FUNCTIONS] or lines[-1:]


def _lines(bed: Bed, code: bytes, state: int, describe: Describe) -> tuple[list[str], list[str]]:
    """The lines of the module that are executed to make the probe, and to carry it out."""
    machine, (before, after) = bed.machine, bed.around(code)
    machine.restore(bed.base)
    begin = bed.function.address
    sample = Sample(code, begin + len(before))
    content = before + code + after
    size = len(content)
    machine.write_code(begin, content.ljust(size + 16, bed.trap.breakpoint(4)[:1]))
    back = bed.module.enter(NAME, begin, size)
    made = _stepped(bed, {back}, describe)
    placed = bed.place([code])[0]
    if placed.probe is None:
        return made, []
    bed.enable(placed, True)
    bed.prepare(sample, state)
    done = _stepped(bed, {sample.after}, describe)
    bed.restart()
    return made, done


def _stepped(bed: Bed, ends: set[int], describe: Describe) -> list[str]:
    machine = bed.machine
    module = next(m for m in machine.image.modules if m.name == bed.module.file)
    found: list[str] = []
    for pc in _addresses(bed, ends):
        if module.address <= pc < module.end:
            line = describe(pc)
            if not found or found[-1] != line:
                found.append(line)
    return found


def _addresses(bed: Bed, ends: set[int]) -> Iterator[int]:
    machine = bed.machine
    for _ in range(STEPS):
        yield machine.pc
        machine.run(Until(instructions=machine.instructions + 1))
        if machine.pc in ends or machine.pc in bed.faults:
            return

