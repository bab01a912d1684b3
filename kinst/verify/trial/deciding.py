"""Which lines of the module's source decided what becomes of an instruction.

The module is stepped through, once for the instruction in question and once for one that needs
nothing special.  What only the first comes to is what decided, and the last of it is named, in each
function.  So is what the module keeps of the instruction, where that is something else than of the
other one, with the lines that wrote it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from emu.elf.kernel_module import Module
from emu.machine.machine import Until
from kinst.verify.trial.provider_module import MadeProbe
from kinst.verify.trial.sample import Sample
from kinst.verify.trial.trial import NAME, Trial

FUNCTIONS = 4  # that are named
WRITERS = 3  # lines that wrote a member, that are named
STEPS = 20_000  # instructions that are stepped through
SHOWN = 16  # bytes of a member that are shown
AWAY = 5_000_000  # instructions of a function of the kernel that it calls
Describe = Callable[[int], str]  # of an address: function  file:line; empty where there is none


@dataclass
class _Steps:
    """:param lines: of the module, as they are come to.
    :param writers: of the members of its probe, the lines that changed them.
    """

    lines: list[str] = field(default_factory=list)
    writers: dict[str, list[str]] = field(default_factory=dict)
    probe: bytes = b""


def deciding(trial: Trial, code: bytes, plain: bytes, state: int, describe: Describe) -> str:
    """The lines that made the probe what it is, and that carried it out, one a row.

    :param plain: an instruction that can be copied, for comparison.
    """
    made, done = _steps(trial, code, state, describe)
    made_plain, done_plain = _steps(trial, plain, state, describe)
    rows = [f"{word} {', '.join(lines)}" for word, lines in (
        ("decided in", _own(made.lines, made_plain.lines)),
        ("carried out in", _own(done.lines, done_plain.lines))) if lines]
    return "\n".join(rows + _kept(trial, made, made_plain))


def _kept(trial: Trial, made: _Steps, plain: _Steps) -> list[str]:
    """The members of the probe that are not those of the other one, each with who wrote it."""
    rows = []
    for path, offset, size in trial.module.probe.members():
        value, other = (one.probe[offset : offset + size] for one in (made, plain))
        if value == other or path not in made.writers:
            continue
        text = (hex(int.from_bytes(value, "little")) if size <= 8
                else value[:SHOWN].hex(" ") + " ..." * (size > SHOWN))
        rows.append(f"{path} is {text}, written by {', '.join(made.writers[path][-WRITERS:])}")
    return rows


def _own(lines: list[str], others: list[str]) -> list[str]:
    """Of each function, the last line that the others do not come to, the last functions first; the
    last line of all where there is none."""
    known = set(others)
    found: dict[str, str] = {}
    for line in reversed(lines):
        if line not in known:
            found.setdefault(line.partition(" ")[0], line)
    return list(found.values())[:FUNCTIONS] or lines[-1:]


def _steps(trial: Trial, code: bytes, state: int, describe: Describe) -> tuple[_Steps, _Steps]:
    """Making the probe, and carrying it out."""
    machine, (before, after) = trial.machine, trial.around(code)
    begin = trial.function.address
    sample = Sample(code, begin + len(before))
    content = before + code + after
    size = len(content)

    def make(watch: MadeProbe | None) -> _Steps:
        machine.restore(trial.base)
        machine.write_code(begin, content.ljust(size + 16, trial.trap.breakpoint(4)[:1]))
        return _stepped(trial, {trial.module.enter(NAME, begin, size)}, describe, watch)

    made = make(None)
    probe = trial.module.probes(sample.address, sample.after).get(sample.address)
    if probe is not None:
        made = make(probe)  # it is there again: nothing else has happened
    placed = trial.place([code])[0]
    if placed.probe is None:
        return made, _Steps()
    trial.enable(placed, True)
    trial.prepare(sample, state)
    done = _stepped(trial, {sample.after}, describe, None)
    trial.restart()
    return made, done


def _stepped(trial: Trial, ends: set[int], describe: Describe, watch: MadeProbe | None) -> _Steps:
    """:param watch: the probe whose members' writers are looked for."""
    machine, found = trial.machine, _Steps()
    size = trial.module.probe.size
    members = trial.module.probe.members()
    module = _module(trial)
    line, last = "", 0
    before = machine.read(watch.place, size) if watch is not None else b""
    for pc in _addresses(trial, ends):
        if watch is not None and (now := machine.read(watch.place, size)) != before:
            # What the kernel writes (malloc, memcpy) is of the module's line that called it.
            line = describe(last) if last else line
            for path, offset, length in members:
                part = slice(offset, offset + length)
                if now[part] != before[part]:
                    writers = found.writers.setdefault(path, [])
                    if line not in writers:
                        writers.append(line)
            before = now
        if module.address <= pc < module.end:
            line, last = describe(pc) or line, pc
            if line and (not found.lines or found.lines[-1] != line):
                found.lines.append(line)
    found.probe = machine.read(watch.place, size) if watch is not None else bytes(size)
    return found


def _module(trial: Trial) -> Module:
    return next(m for m in trial.machine.image.modules if m.name == trial.module.file)


def _addresses(trial: Trial, ends: set[int]) -> Iterator[int]:
    """Where it is, instruction by instruction; what the module calls is one."""
    machine, module, stops = trial.machine, _module(trial), [*ends, *trial.faults.handlers]
    for _ in range(STEPS):
        before = machine.pc
        yield before
        machine.run(Until(instructions=machine.instructions + 1))
        if module.address <= before < module.end and not module.address <= machine.pc < module.end:
            back = _return_address(trial)
            if module.address <= back < module.end and machine.pc not in stops:
                machine.run(Until(addresses=[back, *stops],
                                  instructions=machine.instructions + AWAY))
        if machine.pc in stops:
            return


def _return_address(trial: Trial) -> int:
    """Where a function goes on that has just been called."""
    machine = trial.machine
    return machine.arch.return_address(machine)
